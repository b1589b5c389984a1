"""Watches boards: each change is computed once, however many watch, and sent at most ten times a second."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import structlog

from controlplane.domain.boards.values import BoardKind
from controlplane.history.board_values import board_key

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

    from controlplane.boards.boards import Board
    from controlplane.history.sql.history import History
    from controlplane.history.subscriptions import Change
    from nsml.common.clock import Clock

R = TypeVar("R")

REST_S: Final = 0.1
"""Least time between two answers of a watcher,"""
ANSWERS_REST: Final = 1.0
"""and as a multiple of what the answers to all watchers took: with very many, there are fewer answers."""
REPORTS_EVERY_S: Final = 1.0
"""Interval between looks at the reports of sessions,"""
REST: Final = 10.0
"""and as a multiple of a look's duration: with very many reports, looks become rare."""
ANYWAY_S: Final = 5.0
"""Interval between looks at a dataset's board without a change of its submissions: the dataset may have changed."""
RETRY_S: Final = 1.0
_TURNS: Final = 3
"""Of the event loop, until every woken watcher has run."""

_log = structlog.get_logger()

Key = tuple[str, str, BoardKind]
"""Owner, name and kind of a board."""


class _Feed(Generic[R]):
    """One watched board as last read; `board` None: it was removed."""

    def __init__(self) -> None:
        self.number = 0
        self.board: Board | None = None
        self.ranking: R | None = None
        self.watchers: dict[asyncio.Event, None] = {}
        self.task: asyncio.Task[None] | None = None

    def update(self, board: Board | None, ranking: R | None) -> None:
        """Wake the watchers if this is new."""
        if self.number and board == self.board and ranking is self.ranking:
            return
        self.number += 1
        self.board, self.ranking = board, ranking
        for one in self.watchers:
            one.set()


class BoardFeeds(Generic[R]):
    """Reads the boards that are watched, again after each change.

    Args:
        find: returns a board; None if there is none any more.
        rank: returns a board's ranking, the same object while nothing changed.
    """

    def __init__(
        self,
        *,
        history: History,
        find: Callable[[Key], Awaitable[Board | None]],
        rank: Callable[[Board], Awaitable[R]],
        clock: Clock,
    ) -> None:
        self._history = history
        self._find = find
        self._rank = rank
        self._clock = clock
        self._feeds: dict[Key, _Feed[R]] = {}

    async def follow(self, key: Key) -> AsyncGenerator[tuple[Board | None, R | None], None]:
        """Yield a board and its ranking, now and after each change; None: the board was removed."""
        with self._watched(key) as (feed, event):
            seen = 0
            while True:
                while feed.number == seen:
                    event.clear()
                    await event.wait()
                seen = feed.number
                yield feed.board, feed.ranking

    @contextlib.contextmanager
    def _watched(self, key: Key) -> Iterator[tuple[_Feed[R], asyncio.Event]]:
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = _Feed()
            feed.task = asyncio.create_task(self._run(key, feed), name="boards.feed")
        event = asyncio.Event()
        feed.watchers[event] = None
        try:
            yield feed, event
        finally:
            del feed.watchers[event]
            if not feed.watchers:
                del self._feeds[key]
                if feed.task is not None:
                    feed.task.cancel()

    async def _run(self, key: Key, feed: _Feed[R]) -> None:
        owner, name, kind = key
        with self._history.streams.changed(board_key(owner, name)) as change:
            while True:
                begun = self._clock.monotonic()
                try:
                    board = await self._find(key)
                    feed.update(board, None if board is None else await self._rank(board))
                except Exception as error:  # noqa: BLE001 - its watchers wait for it
                    _log.warning("boards.not_read", board=f"{owner}/{name}", reason=str(error))
                    await self._clock.sleep(RETRY_S)
                    continue
                took_s = self._clock.monotonic() - begun
                answered_s = await self._answered()
                rest_s = max(REST_S - took_s, ANSWERS_REST * answered_s)
                await self._clock.sleep(max(0.0, rest_s))
                every_s = ANYWAY_S
                if kind is BoardKind.METRIC:
                    every_s = max(REPORTS_EVERY_S, REST * took_s) - REST_S
                await self._changed(change, every_s)

    async def _answered(self) -> float:
        """Let the watchers that were woken make their answers; return how long that took."""
        begun = self._clock.monotonic()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        return self._clock.monotonic() - begun

    async def _changed(self, change: Change, within_s: float) -> None:
        """Wait for a change, or so long."""
        waiting = asyncio.ensure_future(change.wait())
        timeout = asyncio.ensure_future(self._clock.sleep(within_s))
        try:
            await asyncio.wait({waiting, timeout}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            timeout.cancel()
