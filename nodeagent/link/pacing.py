"""Pacing of programs' output: programs that print without end leave CPUs to everybody else.

Each byte takes CPU here, in its program and in its client. On 2 cores three such programs made the slowest of a hundred
calls of a control plane beside them 3 to 4 times as slow, and 1.2 times with pacing (`python -m bench.inside`).
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsml.common.clock import Clock

FREE_BYTES: Final = 256 << 20
"""Unpaced bytes of each connection: enough for people, and for most copies."""
PAUSE_S: Final = 1.0
"""After this silence a connection has its free bytes again: one ssh connection runs many commands."""
BYTES_PER_S_OF_CPU: Final = 32 << 20
"""Rate after that, for each CPU of the machine, of all such connections to its agent together."""


class Pacing:
    """Paces all connections to one agent; `cpus`: CPUs that it may use, by default those of this process."""

    def __init__(self, clock: Clock, *, cpus: int | None = None) -> None:
        self._clock = clock
        self._bytes_per_s = BYTES_PER_S_OF_CPU * (cpus or len(os.sched_getaffinity(0)))
        self._free_at = -math.inf

    def of_connection(self) -> ConnectionPacing:
        """Return the pacing of a new connection."""
        return ConnectionPacing(self, self._clock)

    async def wait(self, size: int) -> None:
        """Wait to send `size` bytes on a connection that has used its `FREE_BYTES`."""
        now = self._clock.monotonic()
        starts_at = max(self._free_at, now)
        self._free_at = starts_at + size / self._bytes_per_s
        if starts_at > now:
            await self._clock.sleep(starts_at - now)


class ConnectionPacing:
    """Paces one connection; see `Pacing.of_connection`."""

    def __init__(self, shared: Pacing, clock: Clock) -> None:
        self._shared = shared
        self._clock = clock
        self._passed = 0
        self._passed_at = -math.inf

    async def wait(self, size: int) -> None:
        """Wait until `size` bytes may be sent."""
        if self._clock.monotonic() - self._passed_at > PAUSE_S:
            self._passed = 0
        self._passed += size
        if self._passed > FREE_BYTES:
            await self._shared.wait(size)
        self._passed_at = self._clock.monotonic()
