"""Records and telemetry from nodes: stored, then acknowledged."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import structlog

from controlplane.artifacts.artifacts import artifacts_in
from controlplane.checkpoints.lost_uploads import MOST_WORDS, plain
from controlplane.domain.errors import NotFound
from controlplane.domain.names import MOST_CHECKPOINT_NAME
from controlplane.history.records import (
    LATEST_TIME,
    finite,
    has_other_kinds,
    is_deep,
    records_of_kind,
)
from controlplane.history.values import (
    Checkpoint,
    CheckpointState,
    Chunk,
    NodeSample,
    StreamKey,
)
from controlplane.media.media import media_in
from controlplane.records.reported_config import configs_in
from controlplane.state.lru import LruDict
from nsml._path_text import recorded_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from controlplane.domain.identity import NodeCaller
    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.history.values import Artifact
    from controlplane.records.report_limits import Rationing
    from controlplane.state.replica_rights import Rights

_log = structlog.get_logger()

_MOST_TOLD: Final = 1_000
MOST_FOLDER_CHARS: Final = 2_048
MOST_REASON_CHARS: Final = 2_048
MOST_SUMMARY_BYTES: Final = 16 << 10
"""Most bytes of a checkpoint's summary; larger ones are dropped: listings of thousands must stay readable."""


class Ingestor:
    """Stores records that agents read from spools.

    Args:
        saved: called with the id of a session that saved a checkpoint.
    """

    def __init__(
        self,
        *,
        history: History,
        rights: Rights,
        rationing: Rationing | None = None,
        saved: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._saved = saved
        self._rationing = rationing
        self._history = history
        self._rights = rights
        self._told: LruDict[str, None] = LruDict(_MOST_TOLD)
        """Sessions with a logged warning about media over the limit."""

    async def ingest(
        self, caller: NodeCaller, chunks: Sequence[Chunk], sample: NodeSample | None
    ) -> dict[StreamKey, int]:
        """Store chunks and return the next position of each stream; on disk when it returns.

        Chunks of other nodes' replicas, or of removed sessions, are acknowledged as stored and
        dropped, so that a node does not send them for ever. So is what sealed sessions report, apart from
        artifacts: their result is one.

        Raises:
            Unavailable: the history has no room for them now.
        """
        if sample is not None:
            await self._history.telemetry.record([self._own(sample)])
        if chunks and self._rationing is not None:
            self._rationing.check_room()
        wanted, owned = await self._owned(caller, chunks)
        chunks = [chunk for chunk, _ in owned]
        sealed = [chunk for chunk, session in owned if _is_hidden(session)]
        others = [one for one in owned if has_other_kinds(one[0])]
        if saved := [one for chunk, _ in others for one in self._artifacts(chunk, caller.node)]:
            await self._history.artifacts.tell(saved)
        if sealed:
            wanted |= {chunk.stream: chunk.last + 1 for chunk in sealed}
            owned = [one for one in owned if not _is_hidden(one[1])]
            chunks = [chunk for chunk, _ in owned]
        await self._note([one for one, session in others if not _is_hidden(session)], caller.node)
        if self._rationing is not None:
            # Saved checkpoints and artifacts are stored in any case: they have their own limit.
            chunks = self._rationing.rationed(owned)
        if chunks:
            wanted |= await self._history.streams.append(chunks)
        return wanted

    async def _note(self, chunks: Sequence[Chunk], node: str) -> None:
        """Store what chunks have beside reports and artifacts."""
        for chunk in chunks:
            await self._note_checkpoints(chunk, node)
        if shown := [one for chunk in chunks for one in media_in(chunk)]:
            self._say_left_out(await self._history.media.tell(shown))
        configs = [one for chunk in chunks for one in configs_in(chunk)]
        if configs:
            await self._history.reported_config.tell(
                [value for one in configs for value in one.values],
                cut={one.session_id for one in configs if one.is_cut},
            )

    async def _note_checkpoints(self, chunk: Chunk, node: str) -> None:
        for checkpoint in checkpoints_in(chunk, node):
            if self._rationing is None or self._rationing.notes(checkpoint):
                await self._history.catalogue.put_checkpoint(checkpoint)
                self._saved(checkpoint.session_id)

    def _artifacts(self, chunk: Chunk, node: str) -> Iterator[Artifact]:
        for one in artifacts_in(chunk, node):
            if self._rationing is None or self._rationing.notes(one):
                yield one

    async def _owned(
        self, caller: NodeCaller, chunks: Sequence[Chunk]
    ) -> tuple[dict[StreamKey, int], list[tuple[Chunk, Session]]]:
        """Return the next positions of other nodes' streams, and the own chunks with their sessions."""
        refused: dict[StreamKey, int] = {}
        owned = []
        for chunk in chunks:
            key = chunk.stream
            try:
                session = await self._rights.check(
                    caller.node,
                    key.session_id,
                    key.attempt,
                    key.rank,
                    joined_at=caller.joined_at,
                )
            except NotFound as error:
                _log.warning("chunk.refused", node=caller.node, reason=error.message)
                refused[key] = chunk.last + 1
            else:
                owned.append((chunk, session))
        return refused, owned

    def _own(self, sample: NodeSample) -> NodeSample:
        """Remove the readings of other nodes' replicas."""
        if not sample.replicas:
            return sample
        placed = self._rights.placed(sample.node)
        own = [one for one in sample.replicas if (one.session_id, one.attempt, one.rank) in placed]
        return sample if len(own) == len(sample.replicas) else replace(sample, replicas=tuple(own))

    def _say_left_out(self, left_out: Mapping[str, int]) -> None:
        """Log it once per session; `nsml media` shows it to users."""
        for session_id, files in left_out.items():
            if session_id not in self._told:
                self._told.keep(session_id, None)
                _log.warning("media.left_out", session=session_id, files=files)


def _is_hidden(session: Session) -> bool:
    """Whether nobody reads what a session writes: then it is not stored, and its user sees not even how much it was."""
    return session.spec.is_sealed


class _Told(msgspec.Struct):
    """A checkpoint record: written by a program, so no field is trusted."""

    kind: Literal["checkpoint"]
    time: Annotated[float, msgspec.Meta(ge=0, lt=LATEST_TIME)]
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_CHECKPOINT_NAME)]
    folder: Annotated[str, msgspec.Meta(max_length=MOST_FOLDER_CHARS)]
    files: list[msgspec.Raw]
    size: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
    elapsed: float | str | None = None
    summary: dict[str, Any] | None = None
    step: float | str | None = None
    lost: Annotated[str, msgspec.Meta(max_length=MOST_REASON_CHARS)] = ""


_DECODER = msgspec.json.Decoder(_Told)


def checkpoints_in(chunk: Chunk, node: str) -> Iterator[Checkpoint]:
    """Yield the checkpoints in a chunk's records."""
    for told in records_of_kind(chunk, "checkpoint", _DECODER):
        yield _checkpoint(chunk.stream, told, node)


def _checkpoint(stream: StreamKey, told: _Told, node: str) -> Checkpoint:
    return Checkpoint(
        session_id=stream.session_id,
        name=recorded_name(told.name),
        saved_at=told.time,
        size_bytes=told.size,
        file_count=len(told.files),
        elapsed_s=finite(told.elapsed) or 0.0,
        summary=_summary(told.summary or {}),
        step=finite(told.step),
        attempt=stream.attempt,
        rank=stream.rank,
        node=node,
        folder=told.folder,
        state=CheckpointState.LOST if told.lost else CheckpointState.SAVED,
        why_lost=plain(told.lost)[:MOST_WORDS],
    )


def _summary(values: dict[str, Any]) -> str:
    text = "{}" if is_deep(values) else json.dumps(values)
    return text if len(text) <= MOST_SUMMARY_BYTES else "{}"
