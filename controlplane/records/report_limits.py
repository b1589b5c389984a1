"""Replaces reports over the limits of their session or user by a notice, and a gap that readers see.

A program is never stopped or slowed by its reports: it writes to its own files, and never waits. So reports
over a limit are left out here, visibly to all readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.errors import RETRY_AFTER_S, Unavailable
from controlplane.history.values import Channel, Chunk
from controlplane.limits.free_space import HISTORY
from controlplane.state.lru import LruDict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from controlplane.domain.values import Session
    from controlplane.history.values import Artifact, Checkpoint, StreamKey
    from controlplane.limits.admission import Admission

_log = structlog.get_logger()

REMEMBERED: Final = 10_000
"""Most remembered streams over a limit: each gets only one notice."""

RECORD_BYTES: Final = 32
"""Counted size of a record, in addition to its text."""

CHUNK_BYTES: Final = 128
"""Minimum counted size of a chunk, or a gap: each is a row of the history."""

_WORDS: Final = {
    "session_log_bytes": "this session has printed more than is kept of one session in a day",
    "reported_bytes": "your sessions have reported more than is kept of one user in a day",
}


class Rationing:
    """Applies the limits of reports."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._cut: LruDict[StreamKey, None] = LruDict(REMEMBERED)

    def notes(self, saved: Checkpoint | Artifact) -> bool:
        """Whether to store one more checkpoint or artifact of its session: each is a row in listings."""
        is_noted = self._admission.checkpoint(saved.session_id)
        if not is_noted:
            _log.warning("checkpoint.left_out", session=saved.session_id, name=saved.name[:80])
        return is_noted

    def check_room(self) -> None:
        """Raise Unavailable while the history is at its free space floor: agents keep reports, and send them later."""
        if self._admission.is_low(HISTORY):
            raise Unavailable(
                "the platform's history is almost full",
                why="nodes keep what sessions report until there is room",
                retry_after_s=RETRY_AFTER_S,
            )

    def rationed(self, owned: Sequence[tuple[Chunk, Session]]) -> list[Chunk]:
        """Replace reports over a limit by gaps. The platform's own records are not limited."""
        kept: list[Chunk] = []
        for chunk, session in owned:
            kept += self._rationed(chunk, session)
        return kept

    def _rationed(self, chunk: Chunk, session: Session) -> Iterator[Chunk]:
        channel = chunk.stream.channel
        if channel is Channel.STATE:
            yield chunk
            return
        size = len(chunk.data) + sum(map(len, chunk.records)) + RECORD_BYTES * len(chunk.records)
        size = max(size, CHUNK_BYTES)
        is_log = channel is Channel.LOG
        limit = self._admission.report(session.owner, session.id, size, is_log=is_log)
        if not limit or chunk.is_gap:
            yield chunk
            return
        yield from _cut(chunk, "" if chunk.stream in self._cut else _WORDS.get(limit, ""))
        self._cut.keep(chunk.stream, None)


def _cut(chunk: Chunk, words: str) -> Iterator[Chunk]:
    """Replace a chunk by a gap; in a log the gap's first bytes are replaced by a notice."""
    first = chunk.first
    if words and chunk.stream.channel is Channel.LOG:
        notice = f"\n[nsml: {words}; what follows is left out until there is room again]\n".encode()
        notice = notice[: chunk.last - first + 1]
        yield Chunk(stream=chunk.stream, first=first, last=first + len(notice) - 1, data=notice)
        first += len(notice)
    if first <= chunk.last:
        yield Chunk(stream=chunk.stream, first=first, last=chunk.last, is_gap=True)
