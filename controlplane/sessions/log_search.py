"""Searches in logs, from what is committed: a few steps at a time, however many ask."""

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
"""Steps of searches that run at one time; the others wait, a page each, and users take turns."""
MOST_WAITING: Final = 1_000
"""Searches of one user that wait."""
LONGEST_STEP_S: Final = 1.0
"""Of a page. Patterns that are made to take long are told so with the first one."""
SILENT_BYTES: Final = 8 << 20
"""So much is searched at most without a word of where it has come to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a step found, and where to go on: at byte `next` of an attempt, in a line of that number (0: not known)."""

    lines: list[Line]
    attempt: int
    next: int
    next_line: int
    missing_bytes: int = 0


class Searches:
    """Looks for patterns in logs."""

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
        """Lines in order and once; ends as Readers.log does, and raises what that and Matcher raise.

        `who` waits for a turn for each page. `line`: the number of the line at the start; 0: not known.
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
        """Who leaves meanwhile leaves the turn to what still runs."""
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
            running.exception()  # raised where it is awaited, if anybody still does


def _timed(work: Callable[[], list[Line]]) -> tuple[list[Line], float]:
    """What `work` gives, and how long the processor had with it: a busy machine is no slow pattern."""
    begin = time.thread_time()
    lines = work()
    return lines, time.thread_time() - begin


def _findings(lines: list[Line], attempt: int, scanner: Scanner, missing: int = 0) -> Findings:
    offset, number = scanner.place
    return Findings(
        lines=lines, attempt=attempt, next=offset, next_line=number, missing_bytes=missing
    )
