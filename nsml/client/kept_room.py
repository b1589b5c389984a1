"""Check the size of an upload against the quota left: a push that does not fit is refused before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsml.v1 import content_pb2 as pb

if TYPE_CHECKING:
    from nsml.client.rpc import Rpc


class KeptRoom:
    """The quota left to the sender, and the bytes counted against it so far (`wanted`).

    Args:
        room: bytes left, as reported by the platform.
        session_id: the session, if an agent sends.
        project: the project, if a user sends.
    """

    def __init__(self, rpc: Rpc, room: int, *, session_id: str = "", project: str = "") -> None:
        self._rpc = rpc
        self._room: int | None = room
        self._session_id = session_id
        self._project = project
        self.wanted = 0

    async def add(self, size: int) -> None:
        """Count `size` bytes; beyond the room, ask again: raises NotEnough if they do not fit."""
        self.wanted += size
        if self._room is None or self.wanted <= self._room:
            return
        request = pb.FindMissingBlobsRequest(
            bytes=self.wanted, session_id=self._session_id, project=self._project
        )
        answer = await self._rpc.unary(
            "ContentService/FindMissingBlobs", request, pb.FindMissingBlobsResponse
        )
        self._room = room_in(answer)


def room_in(answer: pb.FindMissingBlobsResponse) -> int | None:
    """Return the quota left, in bytes; None: no limit, or the control plane is too old to report it."""
    return answer.room if answer.HasField("room") else None
