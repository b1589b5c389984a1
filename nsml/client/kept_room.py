"""What is about to be sent, held against what may be kept still: a push that does not fit is refused before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsml.v1 import content_pb2 as pb

if TYPE_CHECKING:
    from nsml.client.rpc import Rpc


class KeptRoom:
    """The bytes that may be kept for whoever sends, and how many of them are wanted so far, as they count.

    Args:
        room: what the platform has told.
        session_id: for which an agent sends.
        project: for which a user does.
    """

    def __init__(self, rpc: Rpc, room: int, *, session_id: str = "", project: str = "") -> None:
        self._rpc = rpc
        self._room: int | None = room
        self._session_id = session_id
        self._project = project
        self.wanted = 0

    async def add(self, size: int) -> None:
        """Want so many more; raises NotEnough where the platform keeps no more than it has told."""
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
    """How many bytes more may be kept; None: without a limit, or the control plane is too old to say."""
    return answer.room if answer.HasField("room") else None
