"""How fast the log of one replica is sent: a flood waits in its file, and nothing of it is lost here.

Programs write to files and are never slowed down. A log that is written faster than this is sent later, so that one
program's output takes no more of the network, the control plane and its history than is sensible; the control
plane cuts, with a notice, what is over its limits. The file counts for the session's disk limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsml.clock import Clock

BURST_S = 8.0
"""What was not sent in so many seconds may be sent at once."""


class LogPace:
    """Of one replica.

    Args:
        bytes_per_s: in the long run; 0: as fast as it goes.
    """

    def __init__(self, bytes_per_s: int, clock: Clock) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._free_at = clock.monotonic()

    async def wait(self, size: int) -> None:
        """Return when so many bytes may be sent."""
        if not self._bytes_per_s:
            return
        now = self._clock.monotonic()
        self._free_at = max(self._free_at, now - BURST_S) + size / self._bytes_per_s
        if self._free_at > now:
            await self._clock.sleep(self._free_at - now)
