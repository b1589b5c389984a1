"""Allowances that refill evenly with time, one for each user or session: leaky buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.state.lru import LruDict

if TYPE_CHECKING:
    from collections.abc import Callable

REMEMBERED: Final = 100_000
"""Users, or sessions, whose use is remembered; the one that used its allowance longest ago goes first."""


class Allowance:
    """How much each key has used lately.

    Args:
        capacity: the most that may be used at once; 0: no limit.
        period_s: within this all of it is given back, evenly.
        now: monotonic seconds.
    """

    def __init__(self, capacity: float, period_s: float, now: Callable[[], float]) -> None:
        self.capacity = capacity
        self._period_s = period_s
        self._now = now
        self._used: LruDict[str, tuple[float, float]] = LruDict(REMEMBERED)

    def used(self, key: str) -> float:
        """What is used now."""
        known = self._used.get(key)
        if known is None:
            return 0.0
        used, at = known
        refill_per_s = max(self.capacity, used) / self._period_s
        return max(used - (self._now() - at) * refill_per_s, 0.0)

    def has_room(self, key: str, amount: float) -> bool:
        """Whether so much more may be used."""
        return self.allows(self.used(key) + amount)

    def allows(self, used: float) -> bool:
        """Whether so much may be used in all."""
        return not self.capacity or used <= self.capacity

    def use(self, key: str, amount: float) -> None:
        """Count it, whether there is room or not."""
        self.set(key, self.used(key) + amount)

    def set(self, key: str, used: float) -> None:
        """So much is used now."""
        self._used.keep(key, (used, self._now()))
