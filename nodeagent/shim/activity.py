"""Whether a replica has run at all since it was last looked at: what has not has nothing to be looked at.

Standard library only: it runs in the shim. The kernel keeps a clock of the processor time of each process,
to the nanosecond and with all its threads: while none of them moves, nothing was allocated, forked or
written. That costs less than a microsecond a process, a whole look some hundreds.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LONGEST_S = 10.0
"""How long clocks alone are believed: then all is looked at once more."""


class Stillness:
    """`look` whenever the replica is looked at; `end` when a process of it was collected.

    `processes` are all of it, now. A listing may miss what forks meanwhile, so two in a row must have
    found the same processes at the same times: nothing ran between them, and the second is complete.
    What hides by forking and ending has a parent that runs, or ends up as a child of the shim.
    """

    def __init__(self, processes: Callable[[], Iterable[int]]) -> None:
        self._processes = processes
        self._clocks: dict[int, int] = {}
        self._listed_at = 0.0
        self._is_sure = False

    def look(self) -> bool:
        """Whether it is certain that nothing of it has run since the last call that said no."""
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
        """Something of it has ended."""
        self._clocks, self._is_sure = {}, False


def _clocks_of(pids: Iterable[int]) -> dict[int, int]:
    """Nanoseconds of processor time of each process; empty when one of them is gone."""
    try:
        # clock_getcpuclockid(3), of the whole thread group; negative, as the kernel wants it
        return {pid: time.clock_gettime_ns(~pid << 3 | 2) for pid in pids}
    except OSError:
        return {}
