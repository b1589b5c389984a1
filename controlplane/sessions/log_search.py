"""Searches in committed logs: a few steps at a time, however many users search."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import InvalidRequest
from controlplane.limits.concurrency_limits import Turns
from controlplane.records.log_matching import Line, Matcher, Scanner, Search

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from controlplane.sessions.readers import LogPosition, Readers
    from nsml.common.clock import Offload

MOST_AT_ONCE: Final = 2
"""Concurrent search steps, of one page each; others wait, and users take turns."""
MOST_WAITING: Final = 1_000
"""Waiting searches per user."""
LONGEST_STEP_S: Final = 1.0
"""CPU time limit of a page; patterns built to be slow fail at the first one."""
SILENT_BYTES: Final = 8 << 20
"""A search reports its position at least once per so many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Results of a step; continue at byte `next` of the attempt, in line `next_line` (0: unknown)."""

    lines: list[Line]
    attempt: int
    next: int
    next_line: int
    missing_bytes: int = 0


class Searches:
    """Searches logs for patterns."""

    def __init__(self, *, followers: Readers, run: Offload) -> None:
        self._followers = followers
        self._run = run
        self._turns = Turns(
            "to search logs", slots=MOST_AT_ONCE, each=MOST_AT_ONCE, most_waiting=MOST_WAITING
        )

    async def log(
        self,
        who: str,
        session_id: str,
        start: LogPosition,
        search: Search,
        *,
        line: int,
        follow: bool,
    ) -> AsyncGenerator[Findings, None]:
        """Yield found lines in order, each once; ends as Readers.log, raises as that and Matcher.

        `who` waits for a turn for each page. `line`: the line number at the start; 0: unknown.
        """
        matcher = await self._run(partial(Matcher, search))
        scanner, attempt, silent = Scanner(matcher, line=line), 0, 0
        async with aclosing(self._followers.log(who, session_id, start, follow=follow)) as pages:
            async for page in pages:
                if page.attempt != attempt:
                    if attempt:
                        yield _findings(await self._step(who, scanner.end), attempt, scanner)
                    is_whole = page.offset == 0
                    first = 1 if is_whole else line if not attempt else 0
                    scanner, attempt = Scanner(matcher, line=first), page.attempt
                lines = await self._step(who, partial(scanner.feed, page))
                silent += len(page.data)
                if lines or page.missing_bytes or silent >= SILENT_BYTES:
                    yield _findings(lines, attempt, scanner, page.missing_bytes)
                    silent = 0
        if attempt:
            yield _findings(await self._step(who, scanner.end), attempt, scanner)

    async def _step(self, who: str, work: Callable[[], list[Line]]) -> list[Line]:
        """Run a step; if cancelled, it keeps the turn until it ends."""
        await self._turns.take(who)
        running = asyncio.ensure_future(self._run(partial(_timed, work)))
        running.add_done_callback(partial(self._end_turn, who))
        lines, taken_s = await asyncio.shield(running)
        if taken_s > LONGEST_STEP_S:
            raise InvalidRequest(
                "the pattern takes too long",
                why=f"{taken_s:.1f} s for a quarter of a megabyte",
                attempt="one with fewer repetitions, or a plain text",
            )
        return lines

    def _end_turn(self, who: str, running: asyncio.Future[tuple[list[Line], float]]) -> None:
        self._turns.give_back(who)
        if not running.cancelled():
            running.exception()  # raised where it is awaited, if it still is


def _timed(work: Callable[[], list[Line]]) -> tuple[list[Line], float]:
    """Return the result of `work`, and its CPU time: a busy machine does not make a pattern slow."""
    begin = time.thread_time()
    lines = work()
    return lines, time.thread_time() - begin


def _findings(lines: list[Line], attempt: int, scanner: Scanner, missing: int = 0) -> Findings:
    offset, number = scanner.place
    return Findings(
        lines=lines, attempt=attempt, next=offset, next_line=number, missing_bytes=missing
    )
