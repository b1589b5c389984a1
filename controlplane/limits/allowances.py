"""Allowances that refill evenly with time, one for each user or session: leaky buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.state.lru import LruDict

if TYPE_CHECKING:
    from collections.abc import Callable

REMEMBERED: Final = 100_000
"""Users, or sessions, with remembered use; the least recent ones are dropped."""


class Allowance:
    """Recent use of each key.

    Args:
        capacity: the most that may be used at once; 0: no limit.
        period_s: time to refill all of it, evenly.
        now: monotonic seconds.
    """

    def __init__(self, capacity: float, period_s: float, now: Callable[[], float]) -> None:
        self.capacity = capacity
        self._period_s = period_s
        self._now = now
        self._used: LruDict[str, tuple[float, float]] = LruDict(REMEMBERED)

    def used(self, key: str) -> float:
        """Return the current use."""
        known = self._used.get(key)
        if known is None:
            return 0.0
        used, at = known
        refill_per_s = max(self.capacity, used) / self._period_s
        return max(used - (self._now() - at) * refill_per_s, 0.0)

    def has_room(self, key: str, amount: float) -> bool:
        """Whether `amount` more may be used."""
        return self.allows(self.used(key) + amount)

    def allows(self, used: float) -> bool:
        """Whether `used` is within the capacity."""
        return not self.capacity or used <= self.capacity

    def use(self, key: str, amount: float) -> None:
        """Count use, whether there is room or not."""
        self.set(key, self.used(key) + amount)

    def set(self, key: str, used: float) -> None:
        """Set the current use."""
        self._used.keep(key, (used, self._now()))
