"""Detects whether a replica has run since the last look: an idle one need not be measured.

Standard library only: it runs in the shim. The kernel keeps a clock of the processor time of each process,
to the nanosecond and with all its threads: while none of them advances, nothing was allocated, forked or
written. Reading one takes less than a microsecond, a whole look some hundreds.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LONGEST_S = 10.0
"""How long clocks alone are trusted before a new listing."""


class Stillness:
    """Call `look` at each look at the replica, and `end` when one of its processes was reaped.

    `processes` lists all of it. A listing may miss concurrent forks, so two in a row must have
    the same processes with the same times: nothing ran between them, and the second is complete.
    A process that hides by forking and exiting has a running parent, or becomes a child of the shim.
    """

    def __init__(self, processes: Callable[[], Iterable[int]]) -> None:
        self._processes = processes
        self._clocks: dict[int, int] = {}
        self._listed_at = 0.0
        self._is_sure = False

    def look(self) -> bool:
        """Whether certainly nothing of it has run since the last call that returned False."""
        now = time.monotonic()
        if self._is_sure and now - self._listed_at < _LONGEST_S:
            self._is_sure = _clocks_of(self._clocks) == self._clocks
            if self._is_sure:
                return True
        found = _clocks_of(self._processes())
        self._is_sure = bool(found) and found == self._clocks
        self._clocks, self._listed_at = found, now
        return False

    def end(self) -> None:
        """A process of it has ended."""
        self._clocks, self._is_sure = {}, False


def _clocks_of(pids: Iterable[int]) -> dict[int, int]:
    """Return nanoseconds of processor time of each process; empty when one has ended."""
    try:
        # clock_getcpuclockid(3), of the whole thread group; negative, as the kernel wants it
        return {pid: time.clock_gettime_ns(~pid << 3 | 2) for pid in pids}
    except OSError:
        return {}
