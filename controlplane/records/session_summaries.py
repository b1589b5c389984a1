"""What is seen of sessions beside their records: asked of the history for many at once, and who watches is told what changed.

None of it is in the store, so it has no revision there. It is numbered here instead, each change of any session by
one more: a watcher remembers a number, and what it is still to be told is all that has a higher one. So what a watcher costs
is what it is told, and never a look at all sessions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

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
    from controlplane.history.values import Summary
    from controlplane.state.live_state import LiveState
    from controlplane.usage.usage import Live, Usages
    from nsml.common.clock import Clock

_log = structlog.get_logger()

EVERY_S: Final = 1.0
"""Between two looks at what has changed."""
REST: Final = 20.0
"""We rest for so many times what a look took: where very many report, looks become seldom."""
AT_ONCE: Final = 500
"""Sessions that a watcher is told of after one look; of the others after the next ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastReport:
    """What is seen of a session beside its record."""

    number: int
    summary: Summary | None
    """As lists carry it."""
    checkpoints: CheckpointCount
    usage: Live | None


_NOTHING: Final = LastReport(number=0, summary=None, checkpoints=CheckpointCount(), usage=None)


@dataclass(slots=True)
class _Question:
    """What several ask the history for at the same time."""

    ids: set[str] = field(default_factory=set)
    whole_ids: set[str] = field(default_factory=set)
    whole: Mapping[str, Summary] = field(default_factory=dict)
    summaries: Mapping[str, Summary] | None = None
    counts: Mapping[str, CheckpointCount] = field(default_factory=dict)


class LastReports:
    """Asks the history, and knows as long as somebody watches what it answered last.

    Answers come one after the other. So whoever is told what is known here is never told what is older than
    what was answered to them before.
    """

    def __init__(self, *, state: LiveState, history: History, usages: Usages, clock: Clock) -> None:
        self.number = 0
        self._state = state
        self._history = history
        self._usages = usages
        self._clock = clock
        self._turn = asyncio.Lock()
        self._question = _Question()
        # By their numbers, the lowest first.
        self._known: dict[str, LastReport] = {}
        self._readers: dict[Reader, None] = {}
        self._touched: Touched | None = None
        self._following = ExitStack()
        self._is_read = asyncio.Event()

    async def of(
        self, begun: Collection[str], *, whole: bool = False
    ) -> tuple[Mapping[str, Summary], Mapping[str, CheckpointCount]]:
        """Summaries and counts of checkpoints of sessions that have begun; none while the history does not answer.

        Summaries as lists carry them, or `whole`.
        """
        if not begun:
            return {}, {}
        question = self._question
        question.ids.update(begun)
        if whole:
            question.whole_ids.update(begun)
        # Whoever asks while an answer is on its way asks together with all others.
        async with self._turn:
            if question.summaries is None:
                # What is asked from now on must see what is written now.
                if self._question is question:
                    self._question = _Question()
                await self._ask(question)
        return question.whole if whole else question.summaries or {}, question.counts

    async def _ask(self, question: _Question) -> None:
        try:
            counts = await self._history.catalogue.checkpoint_counts(question.ids)
            streams = self._history.streams
            whole = await streams.summaries(question.whole_ids) if question.whole_ids else {}
            short = {one: listed_of(summary) for one, summary in whole.items()}
            if rest := question.ids - question.whole_ids:
                short |= await streams.listed_summaries(rest)
            question.summaries, question.whole, question.counts = short, whole, counts
        except HistoryUnavailable as error:
            _log.warning("presenting.without_history", reason=error.why or error.message)
            question.summaries = {}
            self._forget(question.ids)
            return
        if self._readers:
            for session_id in sorted(question.ids & self._state.sessions.keys()):
                summary = question.summaries.get(session_id)
                self._note(session_id, summary, question.counts.get(session_id, CheckpointCount()))

    def _forget(self, ids: Collection[str]) -> None:
        """They are shown without what the history has: who watches is told of it later, whether it changed or not."""
        for session_id in ids:
            self._known.pop(session_id, None)
        if self._touched is not None:
            self._touched.add(ids)

    def _note(self, session_id: str, summary: Summary | None, count: CheckpointCount) -> None:
        usage = self._usages.live(session_id)
        known = self._known.get(session_id, _NOTHING)
        if (summary, count, usage) != (known.summary, known.checkpoints, known.usage):
            self.number += 1
            self._known.pop(session_id, None)  # so that it is the last
            self._known[session_id] = LastReport(
                number=self.number, summary=summary, checkpoints=count, usage=usage
            )

    # Who watches

    @contextmanager
    def read(self, poke: Callable[[], None]) -> Iterator[Reader]:
        """One who watches, while inside; `poke` is called when there is something to take."""
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
        """What is known of a live session, while somebody watches."""
        return self._known.get(session_id)

    def since(self, number: int) -> list[str]:
        """The sessions of which something changed behind a number, the longest ago first."""
        found = []
        for session_id, known in reversed(self._known.items()):
            if known.number <= number:
                break
            found.append(session_id)
        return found[::-1]

    async def run(self) -> NoReturn:
        """Look what has changed, while somebody watches; until cancelled."""
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
    """What one watcher is still to be told."""

    def __init__(self, reports: LastReports, poke: Callable[[], None]) -> None:
        self._reports = reports
        self._poke = poke
        self._told = 0
        self._waiting: deque[str] = deque()
        self._may = False

    async def begin(self, ids: Collection[str], *, is_told: bool) -> None:
        """Go on from what is known of these now; `is_told`: the watcher is shown all of it in another way."""
        await self._reports.of(ids)
        self._told = self._reports.number
        self._waiting.clear()
        if not is_told:
            self._waiting.extend(one for one in ids if self._reports.last(one) is not None)

    def allow(self) -> None:
        """Some more may be taken."""
        if self._waiting or self._told < self._reports.number:
            self._may = True
            self._poke()

    def take(self, fits: Callable[[str], bool]) -> tuple[str, ...]:
        """The next sessions to tell of that fit, once for each time that it is allowed."""
        if not self._may:
            return ()
        self._may = False
        if not self._waiting:
            self._waiting.extend(filter(fits, self._reports.since(self._told)))
            self._told = self._reports.number
        count = min(len(self._waiting), AT_ONCE)
        return tuple(filter(fits, [self._waiting.popleft() for _ in range(count)]))
