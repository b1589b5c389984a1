"""The clock of a platform whose control planes share a database: the database's, so that all of them agree.

Their own wall clocks differ, and can be set: by what one of them wrote another one would decide too early, too late, or in
another order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.errors import NsmlError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsml.common.clock import Clock

READ_EVERY_S: Final = 60.0
AGAIN_AFTER_S: Final = 1.0
"""Interval until the next reading after one that was not precise."""
PRECISE_S: Final = 0.1
"""The longest that a precise reading takes: it is of some moment in between."""
TRIES: Final = 5

_log = structlog.get_logger()


class SharedClock:
    """A clock with the database's wall clock: read now and then, and counted on by elapsed time in between.

    Until the first reading it has the wall clock of `own`.

    Args:
        own: the machine's clock.
        elapsed: seconds, including the machine's sleep.
        read: returns the database's wall clock, Unix seconds; raises NsmlError.
    """

    def __init__(
        self, own: Clock, elapsed: Callable[[], float], read: Callable[[], Awaitable[float]]
    ) -> None:
        self._own = own
        self._elapsed = elapsed
        self._read = read
        self._ahead: float | None = None

    def time(self) -> float:
        """Unix seconds, by the database."""
        return self._own.time() if self._ahead is None else self._elapsed() + self._ahead

    def monotonic(self) -> float:
        """The machine's."""
        return self._own.monotonic()

    async def sleep(self, seconds: float) -> None:
        """The machine's."""
        await self._own.sleep(seconds)

    def own_ahead_s(self) -> float:
        """Return how far the machine's wall clock is ahead of the database's, in seconds; negative for behind."""
        return self._own.time() - self.time()

    async def look(self) -> bool:
        """Read the database's clock; return whether a reading was precise. Others count only if there was none before.

        Raises:
            NsmlError: it cannot be read.
        """
        readings = []
        for _ in range(TRIES):
            began = self._elapsed()
            at = await self._read()
            took = self._elapsed() - began
            readings.append((took, at - began - took / 2))
            if took <= PRECISE_S:
                break
        took, ahead = min(readings)
        is_precise = took <= PRECISE_S
        if is_precise or self._ahead is None:
            self._ahead = ahead
        return is_precise

    async def run(self) -> NoReturn:
        """Read it again and again until cancelled."""
        while True:
            is_precise = True
            try:
                is_precise = await self.look()
            except NsmlError as error:
                _log.warning("clock.not_read", reason=f"{error.message}: {error.why}")
            await self.sleep(READ_EVERY_S if is_precise else AGAIN_AFTER_S)
