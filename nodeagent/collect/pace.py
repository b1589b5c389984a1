"""How fast what one replica brings is worked on: a flood waits in its files, and nothing of it is lost here.

Programs write to files and are never slowed down. A log that is written faster than this is sent later, so that one
program's output takes no more of the network, the control plane and its history than is sensible; the control
plane cuts, with a notice, what is over its limits. The same holds of what the agent itself has to do for records: notes on
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
"""First and longest pause after the platform refused what a session's owner may not have kept, or sent."""
_LONGEST_REPEAT_S = 2.0
"""Longest pause where the platform says itself when to try again: what a session ends with waits no longer once it is well."""
BURST_S = 8.0
"""What was not used in so many seconds may be used at once."""
SAID_EVERY_S = 60.0
_LONGEST_FACT = 200

log = structlog.get_logger()


class Pace:
    """Of one replica: bytes of its log, or things to be done for it.

    Args:
        per_s: in the long run; 0: as fast as it goes.
        burst_s: seconds whose worth may be used at once.
    """

    def __init__(self, per_s: float, clock: Clock, *, burst_s: float = BURST_S) -> None:
        self._per_s = per_s
        self._burst_s = burst_s
        self._clock = clock
        self._free_at = clock.monotonic() - burst_s
        self._lifted = asyncio.Event()

    def lift(self) -> None:
        """Nothing waits any more: no more work is made, and what is left is to be done soon."""
        self._lifted.set()

    async def wait(self, count: int = 1) -> None:
        """Return when so many may be sent or done."""
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
    """Pauses before something that was refused is tried again.

    Each try can read all that is to be sent. What is over a limit of the owner is tried less often each time: only
    what people do makes room. So is what the platform has a pause for, as what waits for the rest of a gang. All
    else may be over any moment.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pause_s = LIMIT_PAUSE_S[0]
        self._factor = 1

    async def wait(self, error: Exception, pause: Callable[[], Awaitable[None]]) -> None:
        """Return when it may be tried again; `pause` is awaited in any case."""
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
        """It went."""
        self._pause_s, self._factor = LIMIT_PAUSE_S[0], 1


class CountedLog:
    """Log lines about one replica, which its program can cause: of each event one a minute, and how many more there were."""

    def __init__(self, replica: str, clock: Clock) -> None:
        self._replica = replica
        self._clock = clock
        self._said: dict[str, tuple[float, int]] = {}

    def say(self, event: str, **facts: object) -> None:
        """Log it, or count it."""
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
