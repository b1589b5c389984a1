"""CheckpointService."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.access.current import caller, require_user
from controlplane.domain.errors import TooLarge
from controlplane.domain.identity import NodeCaller, UserCaller, identity_of
from controlplane.operations.checkpoints import SavedCheckpoint
from controlplane.services.agents import require_agent
from controlplane.services.convert.catalogue import checkpoint_message
from controlplane.services.convert.times import time_of
from controlplane.services.errors import Context, answering
from controlplane.services.parts import PART_BYTES
from nsml.v1 import checkpoints_pb2 as pb
from nsml.v1 import checkpoints_pb2_grpc

if TYPE_CHECKING:
    from controlplane.domain.values import Session
    from controlplane.operations.checkpoints import Checkpoints
    from controlplane.operations.content import Content
    from controlplane.operations.references import References
    from controlplane.operations.turns import Turns


class CheckpointServicer(checkpoints_pb2_grpc.CheckpointServiceServicer):
    """Checkpoints, as users and nodes see them."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        references: References,
        content: Content,
        reading: Turns,
    ) -> None:
        self._reading = reading
        self._checkpoints = checkpoints
        self._references = references
        self._content = content

    @answering
    async def ListCheckpoints(  # noqa: N802 - named by the contract
        self, request: pb.ListCheckpointsRequest, _: Context
    ) -> pb.ListCheckpointsResponse:
        """Oldest first."""
        session = await self._find(request)
        who = caller()
        reader = who.user.name if isinstance(who, UserCaller) else identity_of(who)
        async with self._reading.turn(reader):
            found = await self._checkpoints.list(session)
            messages = [checkpoint_message(one, session.name) for one in found]
            return pb.ListCheckpointsResponse(checkpoints=_fitted(messages))

    @answering
    async def GetCheckpoint(  # noqa: N802
        self, request: pb.GetCheckpointRequest, _: Context
    ) -> pb.GetCheckpointResponse:
        """One of them; its content may be read from then on."""
        session = await self._find(request)
        if request.name:
            found = await self._checkpoints.get(session, request.name)
        else:
            found = await self._checkpoints.newest(session)
        if found.digest:
            self._content.show(caller(), found.digest, session_id=request.for_session or session.id)
        message = checkpoint_message(found, session.name)
        return pb.GetCheckpointResponse(checkpoint=message)

    @answering
    async def CommitCheckpoint(  # noqa: N802
        self, request: pb.CommitCheckpointRequest, _: Context
    ) -> pb.CommitCheckpointResponse:
        """It is durable, or lost."""
        saved = SavedCheckpoint(
            session_id=request.session_id,
            attempt=request.attempt,
            name=request.name,
            digest=request.digest,
            size_bytes=request.size_bytes,
            file_count=request.file_count,
            saved_at=time_of(request.saved_at),
            why_lost=request.why_lost,
        )
        await self._checkpoints.commit(require_agent(), saved)
        return pb.CommitCheckpointResponse()

    async def _find(self, request: pb.ListCheckpointsRequest | pb.GetCheckpointRequest) -> Session:
        who, wanted = caller(), request.session
        if isinstance(who, NodeCaller):
            return await self._references.find_for_node(who, wanted, request.for_session)
        return await self._references.find(require_user(), wanted)


def _fitted(checkpoints: list[pb.Checkpoint]) -> list[pb.Checkpoint]:
    """Only the newest with their summaries when one message does not hold them all.

    Raises:
        TooLarge: they do not fit even without.
    """
    room = PART_BYTES - sum(one.ByteSize() - one.summary.ByteSize() for one in checkpoints)
    if room < 0:
        raise TooLarge(f"{len(checkpoints)} checkpoints are more than one answer holds")
    for one in reversed(checkpoints):
        room -= one.summary.ByteSize()
        if room < 0:
            one.ClearField("summary")
    return checkpoints
