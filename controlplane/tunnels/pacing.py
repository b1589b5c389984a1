"""Pacing of tunnels' bytes: programs with endless output slow themselves, not other users' calls.

All calls and tunnels of a control plane share one loop. Without pacing three such programs made the slowest of a
hundred calls 30 times as slow, on 16 cores (`python -m bench.inside`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from controlplane.limits.ordinary_calls import OrdinaryCalls

SMALL_BYTES: Final = 8 << 10
"""Pieces below this size, such as interactive input and output, do not wait."""
_SETTLED_WITHIN_S: Final = 0.02
_BYTES_PER_S: Final = 64 << 20
"""Rate of all tunnels together while calls are made; otherwise unlimited."""


class Pacing:
    """Pacing of all tunnels of one control plane."""

    def __init__(self, calls: OrdinaryCalls) -> None:
        self._calls = calls
        self._free_at = 0.0

    async def wait(self, size: int) -> None:
        """Wait until `size` bytes may be passed on."""
        if size < SMALL_BYTES or not self._calls.are_made():
            return
        await self._calls.settled(_SETTLED_WITHIN_S)
        now = asyncio.get_running_loop().time()
        starts_at = max(self._free_at, now)
        self._free_at = starts_at + size / _BYTES_PER_S
        await asyncio.sleep(starts_at - now)
