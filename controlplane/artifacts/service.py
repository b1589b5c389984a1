"""ArtifactService."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from controlplane.access.current import note_target, require_agent, require_user
from controlplane.artifacts.artifacts import MOST_A_PAGE
from controlplane.checkpoints.lost_uploads import MOST_WORDS, plain
from controlplane.domain.errors import InvalidRequest, NotFound
from controlplane.domain.sealing import check_readable
from controlplane.history.values import Artifact, ArtifactKey, ArtifactState
from controlplane.wire.errors import Context, answering
from controlplane.wire.times import time_of, timestamp
from nsml.spec.output_datasets import KEPT_FILES
from nsml.v1 import artifacts_pb2 as pb
from nsml.v1 import artifacts_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controlplane.artifacts.artifacts import Artifacts
    from controlplane.content.content import Content
    from controlplane.domain.values import Session
    from controlplane.limits.concurrency_limits import Turns
    from controlplane.state.references import References


class ArtifactServicer(artifacts_pb2_grpc.ArtifactServiceServicer):
    """Artifacts, for users and nodes.

    `kept_for_s`: retention in seconds, by folder; artifacts in other folders are kept with their session.
    """

    def __init__(
        self,
        artifacts: Artifacts,
        references: References,
        content: Content,
        reading: Turns,
        *,
        kept_for_s: Mapping[str, float],
    ) -> None:
        self._kept_for_s = kept_for_s
        self._artifacts = artifacts
        self._references = references
        self._content = content
        self._reading = reading

    @answering
    async def ListArtifacts(  # noqa: N802 - named by the contract
        self, request: pb.ListArtifactsRequest, _: Context
    ) -> pb.ListArtifactsResponse:
        """Return a page, oldest first, and allow reading their content."""
        who = require_user()
        session = await self._references.find_output(who, request.session)
        after = _key(request.cursor)
        size = min(request.page_size or MOST_A_PAGE, MOST_A_PAGE)
        async with self._reading.turn(who.user.name):
            found = await self._artifacts.page(
                session, name=request.name, after=after, limit=size + 1
            )
            removed = expired = 0
            if after is None:
                removed = await self._artifacts.count_removed(session, name=request.name)
            if removed and request.name == KEPT_FILES:
                expired = await self._artifacts.count_expired(session, name=request.name)
        shown = found[:size]
        for digest in dict.fromkeys(one.digest for one in shown if one.digest):
            self._content.show(who, digest)
        return pb.ListArtifactsResponse(
            artifacts=[_message(one, session.name, self._kept_for_s) for one in shown],
            next_cursor=json.dumps(_key_of(shown[-1])) if len(found) > size else "",
            removed=removed,
            expired=expired,
        )

    @answering
    async def FindArtifact(  # noqa: N802
        self, request: pb.FindArtifactRequest, _: Context
    ) -> pb.FindArtifactResponse:
        """Return the newest one of the owner's sessions, and allow the node to read its content.

        None of a sealed session: its program could leave hidden inputs to the next one in it.
        """
        who = require_agent()
        asking = await self._references.find_for_node(who, request.session_id, request.session_id)
        saved = self._artifacts.of_owner(asking.owner, request.name)
        async with self._reading.turn(asking.id), aclosing(saved):
            async for one in saved:
                session = await self._references.by_id(one.session_id)
                if session is not None and _may_load(asking, session):
                    self._content.show(who, one.digest or "", session_id=asking.id)
                    found = _message(one, session.name, self._kept_for_s)
                    return pb.FindArtifactResponse(artifact=found)
        raise NotFound(f"no session of {asking.owner} has an artifact {request.name[:80]!r}")

    @answering
    async def RemoveArtifacts(  # noqa: N802
        self, request: pb.RemoveArtifactsRequest, _: Context
    ) -> pb.RemoveArtifactsResponse:
        """Remove versions."""
        session = await self._references.find_own(require_user(), request.session)
        check_readable(session)
        note_target(session.name)
        await self._artifacts.remove(session, [(one.name, one.version) for one in request.versions])
        return pb.RemoveArtifactsResponse()

    @answering
    async def CommitArtifact(  # noqa: N802
        self, request: pb.CommitArtifactRequest, _: Context
    ) -> pb.CommitArtifactResponse:
        """Record it as durable or lost."""
        caller = require_agent()
        version = await self._artifacts.commit(
            caller,
            Artifact(
                session_id=request.session_id,
                attempt=request.attempt,
                rank=request.rank,
                folder=request.folder,
                name=plain(request.name),
                saved_at=time_of(request.saved_at),
                size_bytes=request.size_bytes,
                file_count=request.file_count,
                step=request.step if request.HasField("step") else None,
                node=caller.node,
                state=ArtifactState.LOST if request.why_lost else ArtifactState.DURABLE,
                digest=None if request.why_lost else request.digest,
                why_lost=plain(request.why_lost)[:MOST_WORDS],
                note="" if request.why_lost else plain(request.left_out)[:MOST_WORDS],
            ),
        )
        return pb.CommitArtifactResponse(version=version)


def _message(one: Artifact, session: str, kept_for_s: Mapping[str, float]) -> pb.Artifact:
    kept_s = kept_for_s.get(one.folder) if one.state is ArtifactState.DURABLE else None
    return pb.Artifact(
        name=one.name,
        version=one.version,
        session=session,
        state=f"ARTIFACT_STATE_{one.state.value}",
        digest=one.digest or "",
        size_bytes=one.size_bytes,
        file_count=one.file_count,
        saved_at=timestamp(one.saved_at),
        step=one.step,
        attempt=one.attempt,
        rank=one.rank,
        node=one.node,
        why_lost=one.why_lost,
        note=one.note,
        expires_at=timestamp(one.saved_at + kept_s) if kept_s else None,
    )


def _key_of(one: Artifact) -> ArtifactKey:
    return ArtifactKey(one.saved_at, one.attempt, one.rank, one.folder)


_KEY = msgspec.json.Decoder(tuple[float, int, int, str])


def _may_load(asking: Session, session: Session) -> bool:
    """Whether a session may load what another one of its owner saved: not what a sealed one did, but its own."""
    is_theirs = (session.owner, session.owner_id) == (asking.owner, asking.owner_id)
    return is_theirs and (session.id == asking.id or not session.spec.is_sealed)


def _key(cursor: str) -> ArtifactKey | None:
    if not cursor:
        return None
    try:
        key = ArtifactKey._make(_KEY.decode(cursor))
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InvalidRequest("the cursor is not one of this platform's") from error
    if not 0 <= key.attempt < 1 << 32 or not 0 <= key.rank < 1 << 32 or "\0" in key.folder:
        raise InvalidRequest("the cursor is not one of this platform's")
    return key
