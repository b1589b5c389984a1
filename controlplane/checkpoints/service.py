"""CheckpointService."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import msgspec

from controlplane.access.current import caller, note_target, require_agent, require_user
from controlplane.checkpoints.checkpoints import SavedCheckpoint
from controlplane.core.paging import LARGEST_PAGE, page_size
from controlplane.domain.errors import InvalidRequest
from controlplane.domain.identity import NodeCaller, UserCaller, identity_of
from controlplane.domain.policy import ALLOW, SEE, may
from controlplane.domain.sealing import check_readable
from controlplane.wire.catalogue import checkpoint_message, tags_by_name
from controlplane.wire.chunking import ENTRY_CHARS, beside, parts_of
from controlplane.wire.errors import Context, answering
from controlplane.wire.times import time_of, timestamp
from nsml.v1 import checkpoints_pb2 as pb
from nsml.v1 import checkpoints_pb2_grpc

if TYPE_CHECKING:
    from controlplane.checkpoints.checkpoints import Checkpoints
    from controlplane.content.content import Content
    from controlplane.domain.values import Session
    from controlplane.history.values import Checkpoint
    from controlplane.limits.concurrency_limits import Turns
    from controlplane.state.references import References

MOST_USERS: Final = 100
"""Max sessions named in an answer that used a checkpoint."""


class CheckpointServicer(checkpoints_pb2_grpc.CheckpointServiceServicer):
    """Checkpoints, for users and nodes."""

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
        """Return a page, oldest first."""
        session, after = await self._find(request), _key(request.cursor)
        size = page_size(request.page_size or LARGEST_PAGE)
        async with self._reading.turn(_reader(request)):
            found = await self._checkpoints.page(session, after=after, limit=size + 1)
            tags = tags_by_name(await self._checkpoints.marks(session))
            retired = None if after else await self._checkpoints.retired(session)
            made = (checkpoint_message(one, session.name, tags) for one in found[:size])
            entries = sum(1 + len(one.summary) // ENTRY_CHARS for one in found)
            checkpoints = await beside(lambda: next(parts_of(made)), of=entries)
        cursor = ""
        if len(checkpoints) < len(found):
            last = found[len(checkpoints) - 1]
            cursor = json.dumps([last.saved_at, last.name])
        response = pb.ListCheckpointsResponse(checkpoints=checkpoints, next_cursor=cursor)
        if retired is not None:
            response.keep = session.spec.keep_checkpoints
            response.removed_count = retired.number
            response.removed_bytes = retired.size_bytes
        return response

    @answering
    async def GetCheckpoint(  # noqa: N802
        self, request: pb.GetCheckpointRequest, _: Context
    ) -> pb.GetCheckpointResponse:
        """Return a checkpoint, and allow reading its content."""
        session = await self._find(request)
        async with self._reading.turn(_reader(request)):
            if request.name:
                found = await self._loaded(session, request)
            elif _is_resuming(request, session):
                found = await self._checkpoints.resumed_from(caller(), session)
            else:
                found = await self._checkpoints.newest(session)
        if found.digest:
            self._content.show(caller(), found.digest, session_id=request.for_session or session.id)
        if isinstance(who := caller(), UserCaller):
            message = await self._shown(who, session, found)
        else:
            message = checkpoint_message(found, session.name)
        return pb.GetCheckpointResponse(checkpoint=message)

    async def _loaded(self, session: Session, request: pb.GetCheckpointRequest) -> Checkpoint:
        """Return a checkpoint by name or tag; for a node, protect it while it is loaded.

        No load by a sealed session is noted: its user would see which of a thousand checkpoints it chose.
        """
        found = await self._checkpoints.get(session, request.name)
        if not isinstance(caller(), NodeCaller):
            return found
        asking = request.for_session or session.id
        loading = await self._references.by_id(asking)
        if loading is not None and loading.spec.is_sealed:
            return found
        await self._checkpoints.loaded(session, found.name, asking)
        return await self._checkpoints.get(session, found.name)

    async def _shown(
        self, who: UserCaller, session: Session, checkpoint: Checkpoint
    ) -> pb.Checkpoint:
        """Return the message with tags, node, and the sessions that used it."""
        marks = await self._checkpoints.marks(session)
        message = checkpoint_message(checkpoint, session.name, tags_by_name(marks))
        message.node = checkpoint.node
        others = [
            use for use in marks.uses if use.name == checkpoint.name and use.used_by != session.id
        ]
        for use in others[-MOST_USERS:]:
            user = await self._references.by_id(use.used_by)
            if user is not None and may(who, SEE, user) is ALLOW:
                message.users.add(session=user.name, used_at=timestamp(use.used_at))
        message.hidden_users = len(others) - len(message.users)
        return message

    @answering
    async def TagCheckpoint(  # noqa: N802
        self, request: pb.TagCheckpointRequest, _: Context
    ) -> pb.TagCheckpointResponse:
        """Tag a checkpoint."""
        session = await self._references.find_own(require_user(), request.session)
        check_readable(session)
        note_target(session.name)
        found, before = await self._checkpoints.tag(session, request.name, request.tag)
        tags = tags_by_name(await self._checkpoints.marks(session))
        message = checkpoint_message(found, session.name, tags)
        return pb.TagCheckpointResponse(checkpoint=message, moved_from=before)

    @answering
    async def UntagCheckpoint(  # noqa: N802
        self, request: pb.UntagCheckpointRequest, _: Context
    ) -> pb.UntagCheckpointResponse:
        """Remove a tag."""
        session = await self._references.find_own(require_user(), request.session)
        check_readable(session)
        note_target(session.name)
        name = await self._checkpoints.untag(session, request.tag)
        return pb.UntagCheckpointResponse(name=name)

    @answering
    async def RemoveCheckpoints(  # noqa: N802
        self, request: pb.RemoveCheckpointsRequest, _: Context
    ) -> pb.RemoveCheckpointsResponse:
        """Remove checkpoints."""
        session = await self._references.find_own(require_user(), request.session)
        check_readable(session)
        note_target(session.name)
        removed = await self._checkpoints.remove(
            session, request.names, including_tagged=request.including_tagged
        )
        return pb.RemoveCheckpointsResponse(removed=removed)

    @answering
    async def CommitCheckpoint(  # noqa: N802
        self, request: pb.CommitCheckpointRequest, _: Context
    ) -> pb.CommitCheckpointResponse:
        """Record it as durable or lost."""
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
        return pb.CommitCheckpointResponse(
            removed=await self._checkpoints.removed_among(request.session_id, request.held)
        )

    async def _find(self, request: pb.ListCheckpointsRequest | pb.GetCheckpointRequest) -> Session:
        who, wanted = caller(), request.session
        if isinstance(who, NodeCaller):
            return await self._references.find_for_node(who, wanted, request.for_session)
        return await self._references.find_output(require_user(), wanted)


def _is_resuming(request: pb.GetCheckpointRequest, session: Session) -> bool:
    """Whether a node asks for the resume point of the attempt it runs."""
    is_own = request.for_session in {"", session.id}
    has_earlier = session.attempt > 1 or session.spec.initial_checkpoint is not None
    return isinstance(caller(), NodeCaller) and is_own and has_earlier and bool(session.replicas)


def _reader(request: pb.ListCheckpointsRequest | pb.GetCheckpointRequest) -> str:
    """Return the key for taking turns: a user, or a node's session."""
    who = caller()
    if isinstance(who, UserCaller):
        return who.user.name
    return f"{identity_of(who)} {request.for_session or request.session}"


_KEY = msgspec.json.Decoder(tuple[float, str])


def _key(cursor: str) -> tuple[float, str] | None:
    """Return time and name of the last checkpoint of the previous page."""
    if not cursor:
        return None
    try:
        return _KEY.decode(cursor)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InvalidRequest("the cursor is not one of this platform's") from error
