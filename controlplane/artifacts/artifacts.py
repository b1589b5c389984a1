"""Artifacts: versioned files saved by sessions, and their durability."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
import structlog

from controlplane.checkpoints.lost_uploads import MOST_WORDS, plain
from controlplane.domain.errors import InvalidRequest, MissingBlobs, NotFound, StateConflict
from controlplane.domain.names import MOST_CHECKPOINT_NAME, check_digest
from controlplane.history.records import LATEST_TIME, finite, records_of_kind
from controlplane.history.sql.artifacts import MOST_OF_SESSION
from controlplane.history.values import Artifact, ArtifactState
from nsml._path_text import recorded_name

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from controlplane.artifacts.output_datasets import OutputDatasets
    from controlplane.content.content import Content
    from controlplane.domain.identity import NodeCaller
    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.history.values import ArtifactKey, Chunk
    from controlplane.state.live_state import LiveState
    from controlplane.state.replica_rights import Rights

MOST_A_PAGE: Final = 100
MOST_REMOVED: Final = 1_000
"""Max versions removed per call."""
_MOST_REASON: Final = 2_048
_SHOWN: Final = 200
_FOLDER: Final = re.compile("[!-~]{1,200}")

_log = structlog.get_logger()


class Artifacts:
    """Lists, removes and commits artifacts."""

    def __init__(
        self,
        *,
        history: History,
        state: LiveState,
        content: Content,
        rights: Rights,
        outputs: OutputDatasets,
    ) -> None:
        self._state = state
        self._outputs = outputs
        self._history = history
        self._content = content
        self._rights = rights

    async def page(
        self, session: Session, *, name: str, after: ArtifactKey | None, limit: int
    ) -> tuple[Artifact, ...]:
        """Return artifacts of a session, oldest first, after this key."""
        return await self._history.artifacts.list(session.id, name=name, after=after, limit=limit)

    async def of_owner(self, owner: str, name: str) -> AsyncGenerator[Artifact, None]:
        """Yield the durable artifacts of a name among a user's sessions, newest first."""
        # Before the history is read: a session that ends meanwhile is in both.
        live = [one.value.id for one in self._state.sessions.values() if one.value.owner == owner]
        last: Artifact | None = None
        while True:
            found = await self._history.artifacts.of_owner(
                owner, name, live=live, after=last, limit=MOST_A_PAGE
            )
            for last in found:
                yield last
            if len(found) < MOST_A_PAGE:
                return

    async def count_removed(self, session: Session, *, name: str) -> int:
        """Count the removed versions of a session."""
        return await self._history.artifacts.count_removed(session.id, name)

    async def count_expired(self, session: Session, *, name: str) -> int:
        """Count those removed because their retention ended."""
        return await self._history.artifacts.count_expired(session.id, name)

    async def remove(self, session: Session, versions: Sequence[tuple[str, int]]) -> None:
        """Remove versions by name and number.

        Raises:
            InvalidRequest: no versions, or more than MOST_REMOVED.
            NotFound: one of them does not exist; none is removed.
        """
        if not 0 < len(versions) <= MOST_REMOVED:
            raise InvalidRequest(f"1 to {MOST_REMOVED:,} versions of artifacts at a time")
        missing = await self._history.artifacts.remove(
            session.id, session.owner, list(dict.fromkeys(versions))
        )
        if missing is not None:
            name, version = missing
            raise NotFound(
                f"{session.name} has no artifact {name[:80]!r} with version {version}",
                attempt=f"nsml artifact ls {session.name}",
            )

    async def commit(self, caller: NodeCaller, saved: Artifact) -> int:
        """Record an artifact as DURABLE or LOST; return its version, 0: none. Idempotent.

        An output folder of a successful session becomes a version of its dataset.

        Raises:
            NotFound: the replica neither runs nor ran on the calling node.
            MissingBlobs: this node has not sent all of its content.
            InvalidRequest: invalid name, folder or digest.
            StateConflict: the session has MOST_OF_SESSION artifacts, or is sealed and its attempt has another one of
                this name.
            Unavailable: it is an output folder, and its session's result is not known yet.
        """
        session = await self._rights.check(
            caller.node, saved.session_id, saved.attempt, saved.rank, joined_at=caller.joined_at
        )
        if not saved.name or len(saved.name.encode()) > MOST_CHECKPOINT_NAME:
            raise InvalidRequest(f"an artifact's name has 1 to {MOST_CHECKPOINT_NAME} bytes")
        if not _FOLDER.fullmatch(saved.folder):
            raise InvalidRequest(f"{saved.folder[:_SHOWN]!r} is not a folder of an artifact")
        if saved.state is ArtifactState.LOST:
            _log.warning(
                "artifact.lost",
                session=saved.session_id,
                node=caller.node,
                artifact=saved.name[:_SHOWN],
                reason=saved.why_lost[:_SHOWN],
            )
        elif not await self._content.may_use(
            caller, check_digest(saved.digest or ""), session_id=saved.session_id
        ) or await self._content.is_incomplete(caller, saved.digest or ""):
            raise MissingBlobs(f"artifact {saved.name!r} has not been sent completely")
        self._outputs.check_over(session, saved)
        # What a sealed program leaves is its result: the first one, also for an agent that has forgotten it.
        is_only = session.spec.is_sealed
        stands = await self._history.artifacts.settle(saved, is_only=is_only)
        if stands is None:
            most = (
                "1 result is kept of an attempt"
                if is_only
                else f"{MOST_OF_SESSION:,} artifacts are kept of one session"
            )
            raise StateConflict(most)
        if saved.digest and stands.state in {ArtifactState.DURABLE, ArtifactState.UNCHANGED}:
            await self._outputs.make(session, saved, saved.digest)
        return stands.version


class _Told(msgspec.Struct):
    """A record of an artifact, written by a user's program: no field is trusted."""

    kind: Literal["artifact"]
    time: Annotated[float, msgspec.Meta(ge=0, lt=LATEST_TIME)]
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_CHECKPOINT_NAME)]
    folder: str
    files: list[msgspec.Raw]
    size: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
    step: float | str | None = None
    lost: Annotated[str, msgspec.Meta(max_length=_MOST_REASON)] = ""


_DECODER = msgspec.json.Decoder(_Told)


def artifacts_in(chunk: Chunk, node: str) -> Iterator[Artifact]:
    """Yield the artifacts in a chunk's records."""
    for told in records_of_kind(chunk, "artifact", _DECODER):
        name = recorded_name(told.name)
        if not _FOLDER.fullmatch(told.folder) or len(name.encode()) > MOST_CHECKPOINT_NAME:
            continue
        yield Artifact(
            session_id=chunk.stream.session_id,
            attempt=chunk.stream.attempt,
            rank=chunk.stream.rank,
            folder=told.folder,
            name=name,
            saved_at=told.time,
            size_bytes=told.size,
            file_count=len(told.files),
            step=finite(told.step),
            node=node,
            state=ArtifactState.LOST if told.lost else ArtifactState.SAVED,
            why_lost=plain(told.lost)[:MOST_WORDS],
        )
