"""Limits the rate of work for one replica: a flood waits in its files, and none of it is lost here.

Programs write to files and are never slowed down. A log written faster than this is sent later, so that one
program's output does not overload the network, the control plane and its history; the control
plane truncates, with a notice, logs over its limits. The same holds for the agent's own work on records: notes on
its disk, uploads, reports. The files count for the session's disk limit.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from nsml.client.errors import ClientError, NotEnough
from nsml.common.concurrency import first_to_end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsml.common.clock import Clock

LIMIT_PAUSE_S = (15.0, 300.0)
"""First and longest pause after the platform refused to store or receive data over a user's limit."""
_LONGEST_REPEAT_S = 2.0
"""Longest pause if the platform names one itself: final data must not wait longer once it is well."""
BURST_S = 8.0
"""Unused rate of this many seconds may be used at once."""
SAID_EVERY_S = 60.0
_LONGEST_FACT = 200

log = structlog.get_logger()


class Pace:
    """Rate limit of one replica: bytes of its log, or actions for it.

    Args:
        per_s: average rate; 0: unlimited.
        burst_s: seconds of unused rate usable at once.
    """

    def __init__(self, per_s: float, clock: Clock, *, burst_s: float = BURST_S) -> None:
        self._per_s = per_s
        self._burst_s = burst_s
        self._clock = clock
        self._free_at = clock.monotonic() - burst_s
        self._lifted = asyncio.Event()

    def lift(self) -> None:
        """End the limit: no more work is added, and the rest must be done soon."""
        self._lifted.set()

    async def wait(self, count: int = 1) -> None:
        """Return when `count` may be sent or done."""
        if not self._per_s or not count or self._lifted.is_set():
            return
        now, takes_s = self._clock.monotonic(), count / self._per_s
        self._free_at = max(self._free_at, now - self._burst_s) + takes_s
        if self._free_at <= now:
            return
        try:
            await first_to_end(self._clock.sleep(self._free_at - now), _set(self._lifted))
        except BaseException:
            self._free_at -= takes_s  # it was not used
            raise


async def _set(event: asyncio.Event) -> None:
    await event.wait()


class Patience:
    """Pauses before retries of a refused request.

    Each attempt can read all data to send. Attempts over a limit of the owner grow rarer: only people
    can make room. So do attempts with a pause named by the platform, such as waiting for the rest of a gang. All
    other refusals may end any moment.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pause_s = LIMIT_PAUSE_S[0]
        self._factor = 1

    async def wait(self, error: Exception, pause: Callable[[], Awaitable[None]]) -> None:
        """Return when it may be retried; `pause` is always awaited."""
        if isinstance(error, NotEnough):
            await self._clock.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, LIMIT_PAUSE_S[1])
        elif isinstance(error, ClientError) and error.retry_after_s:
            pause_s = self._factor * error.retry_after_s
            await self._clock.sleep(min(pause_s, _LONGEST_REPEAT_S))
            if pause_s < _LONGEST_REPEAT_S:
                self._factor *= 2
        await pause()

    def reset(self) -> None:
        """Reset the pauses after a success."""
        self._pause_s, self._factor = LIMIT_PAUSE_S[0], 1


class CountedLog:
    """Log lines about one replica, which its program can cause: one a minute of each event, with the number of further ones."""

    def __init__(self, replica: str, clock: Clock) -> None:
        self._replica = replica
        self._clock = clock
        self._said: dict[str, tuple[float, int]] = {}

    def say(self, event: str, **facts: object) -> None:
        """Log or count it."""
        now = self._clock.monotonic()
        at, more = self._said.get(event, (float("-inf"), 0))
        if now < at + SAID_EVERY_S:
            self._said[event] = at, more + 1
            return
        self._write(event, more, facts)
        self._said[event] = now, 0

    def close(self) -> None:
        """Log what was only counted."""
        for event, (at, more) in self._said.items():
            if more:
                self._write(event, more, {})
                self._said[event] = at, 0

    def _write(self, event: str, more: int, facts: dict[str, object]) -> None:
        short = {
            name: fact[:_LONGEST_FACT] if isinstance(fact, str) else fact
            for name, fact in facts.items()
        }
        counted = {"more": more} if more else {}
        log.info(event, replica=self._replica, **short, **counted)
