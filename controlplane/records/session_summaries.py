"""Facts of sessions outside their records: queried from the history in batches, with changes reported to watchers.

They are not in the store, so they have no revision there. Instead changes are numbered here, across all sessions:
a watcher remembers a number, and gets all changes with higher ones. So a watcher costs as much as its changes, never
a scan of all sessions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from controlplane.domain.errors import NsmlError
from controlplane.history.errors import HistoryUnavailable
from controlplane.history.summaries import listed_of
from controlplane.history.values import CheckpointCount

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from typing import NoReturn

    from controlplane.history.sql.history import History
    from controlplane.history.subscriptions import Touched
    from controlplane.history.values import Summary, TrainingProgress
    from controlplane.state.live_state import LiveState
    from controlplane.usage.usage import Live, Usages
    from nsml.common.clock import Clock

_log = structlog.get_logger()

EVERY_S: Final = 1.0
"""Interval between checks for changes."""
REST: Final = 20.0
"""Pause after a check, as a multiple of its duration: with very many reports, checks become rare."""
AT_ONCE: Final = 500
"""Most sessions reported to a watcher after one check; the others follow after the next ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastReport:
    """Facts of a session outside its record."""

    number: int
    summary: Summary | None
    """Shortened for lists."""
    checkpoints: CheckpointCount
    usage: Live | None
    training: TrainingProgress | None = None


_NOTHING: Final = LastReport(number=0, summary=None, checkpoints=CheckpointCount(), usage=None)


class Reports(NamedTuple):
    """Facts of sessions outside their records, by id; of sessions without any there is no entry."""

    summaries: Mapping[str, Summary] = MappingProxyType({})
    checkpoints: Mapping[str, CheckpointCount] = MappingProxyType({})
    training: Mapping[str, TrainingProgress] = MappingProxyType({})


@dataclass(slots=True)
class _Question:
    """A history query shared by concurrent callers."""

    ids: set[str] = field(default_factory=set)
    whole_ids: set[str] = field(default_factory=set)
    whole: Mapping[str, Summary] = field(default_factory=dict)
    summaries: Mapping[str, Summary] | None = None
    counts: Mapping[str, CheckpointCount] = field(default_factory=dict)
    training: Mapping[str, TrainingProgress] = field(default_factory=dict)


class LastReports:
    """Queries the history, and caches the last answers while there are watchers.

    Queries run one after the other. So cached values are never older than an answer already returned
    to a caller.
    """

    def __init__(self, *, state: LiveState, history: History, usages: Usages, clock: Clock) -> None:
        self.number = 0
        self._state = state
        self._history = history
        self._usages = usages
        self._clock = clock
        self._turn = asyncio.Lock()
        self._question = _Question()
        # By number, lowest first.
        self._known: dict[str, LastReport] = {}
        self._readers: dict[Reader, None] = {}
        self._touched: Touched | None = None
        self._following = ExitStack()
        self._is_read = asyncio.Event()

    async def of(self, begun: Collection[str], *, whole: bool = False) -> Reports:
        """Return the reports of started sessions; none while the history is unavailable.

        Summaries are shortened for lists, unless `whole`.
        """
        if not begun:
            return Reports()
        question = self._question
        question.ids.update(begun)
        if whole:
            question.whole_ids.update(begun)
        # Calls during a running query share the next one.
        async with self._turn:
            if question.summaries is None:
                # Later calls must see what is written from now on.
                if self._question is question:
                    self._question = _Question()
                await self._ask(question)
        summaries = question.whole if whole else question.summaries or {}
        return Reports(summaries, question.counts, question.training)

    async def _ask(self, question: _Question) -> None:
        try:
            counts = await self._history.catalogue.checkpoint_counts(question.ids)
            streams = self._history.streams
            whole = await streams.summaries(question.whole_ids) if question.whole_ids else {}
            short = {one: listed_of(summary) for one, summary in whole.items()}
            if rest := question.ids - question.whole_ids:
                short |= await streams.listed_summaries(rest)
            question.training = await streams.progress(question.ids)
            question.summaries, question.whole, question.counts = short, whole, counts
        except HistoryUnavailable as error:
            _log.warning("presenting.without_history", reason=error.why or error.message)
            question.summaries, question.training = {}, {}
            self._forget(question.ids)
            return
        if self._readers:
            for session_id in sorted(question.ids & self._state.sessions.keys()):
                count = question.counts.get(session_id, CheckpointCount())
                training = question.training.get(session_id)
                self._note(session_id, question.summaries.get(session_id), count, training)

    def _forget(self, ids: Collection[str]) -> None:
        """Uncache sessions shown without the history's facts: watchers get them later, changed or not."""
        for session_id in ids:
            self._known.pop(session_id, None)
        if self._touched is not None:
            self._touched.add(ids)

    def _note(
        self,
        session_id: str,
        summary: Summary | None,
        count: CheckpointCount,
        training: TrainingProgress | None,
    ) -> None:
        usage = self._usages.live(session_id)
        known = self._known.get(session_id, _NOTHING)
        seen = (known.summary, known.checkpoints, known.usage, known.training)
        if (summary, count, usage, training) != seen:
            self.number += 1
            self._known.pop(session_id, None)  # so that it is the last
            self._known[session_id] = LastReport(
                number=self.number,
                summary=summary,
                checkpoints=count,
                usage=usage,
                training=training,
            )

    # Watchers

    @contextmanager
    def read(self, poke: Callable[[], None]) -> Iterator[Reader]:
        """Add a watcher while inside; `poke` is called when there is something to take."""
        if not self._readers:
            self._touched = self._following.enter_context(self._history.streams.touched())
            self._is_read.set()
        reader = Reader(self, poke)
        self._readers[reader] = None
        try:
            yield reader
        finally:
            del self._readers[reader]
            if not self._readers:
                self._is_read.clear()
                self._following.close()
                self._touched = None
                self._known.clear()

    def last(self, session_id: str) -> LastReport | None:
        """The cached report of a live session, while there are watchers."""
        return self._known.get(session_id)

    def since(self, number: int) -> list[str]:
        """The sessions with changes after a number, oldest change first."""
        found = []
        for session_id, known in reversed(self._known.items()):
            if known.number <= number:
                break
            found.append(session_id)
        return found[::-1]

    async def run(self) -> NoReturn:
        """Check for changes while there are watchers; until cancelled."""
        while True:
            await self._is_read.wait()
            begun_at = self._clock.monotonic()
            await self._look()
            for reader in tuple(self._readers):
                reader.allow()
            took_s = self._clock.monotonic() - begun_at
            await self._clock.sleep(max(EVERY_S, REST * took_s))

    async def _look(self) -> None:
        live = self._state.sessions
        for gone in self._known.keys() - live.keys():
            del self._known[gone]
        touched = self._touched.take() if self._touched is not None else set()
        if touched is None:
            touched = set(live)
        touched |= {one for one in self._usages.measured() if self._is_measured_anew(one)}
        try:
            await self.of([one for one in touched & live.keys() if live[one].value.attempt])
        except NsmlError as error:
            _log.warning("last_reports.failed", reason=error.message)
            self._forget(touched)

    def _is_measured_anew(self, session_id: str) -> bool:
        return self._usages.live(session_id) != self._known.get(session_id, _NOTHING).usage


class Reader:
    """The pending changes of one watcher."""

    def __init__(self, reports: LastReports, poke: Callable[[], None]) -> None:
        self._reports = reports
        self._poke = poke
        self._told = 0
        self._waiting: deque[str] = deque()
        self._may = False

    async def begin(self, ids: Collection[str], *, is_told: bool) -> None:
        """Continue from the current values of these; `is_told`: the watcher gets these in another way."""
        await self._reports.of(ids)
        self._told = self._reports.number
        self._waiting.clear()
        if not is_told:
            self._waiting.extend(one for one in ids if self._reports.last(one) is not None)

    def allow(self) -> None:
        """Allow one more `take`, if there are changes."""
        if self._waiting or self._told < self._reports.number:
            self._may = True
            self._poke()

    def take(self, fits: Callable[[str], bool]) -> tuple[str, ...]:
        """Return the next changed sessions that fit; empty unless allowed since the last call."""
        if not self._may:
            return ()
        self._may = False
        if not self._waiting:
            self._waiting.extend(filter(fits, self._reports.since(self._told)))
            self._told = self._reports.number
        count = min(len(self._waiting), AT_ONCE)
        return tuple(filter(fits, [self._waiting.popleft() for _ in range(count)]))
