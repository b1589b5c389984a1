"""Decides when a standby may evict the leader before its lease ends.

The fence makes any decision safe; a wrong one costs a failover. So a live leader must never look dead:
its process was met at its address, the connection to it ended, and its host refuses new ones, twice in
a row. A refusal proves that nothing listens there. A timeout proves nothing: the network between the
two may be down, and two control planes that cannot reach each other would evict each other for ever. A
firewall may refuse in a host's name; so an evicted leader that leads again was alive, and is not
evicted by the same standby a second time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

REFUSALS = 2
"""Refusals in a row required as proof."""

NOT_TWICE_WITHIN_S = 5.0
"""Minimum time between two evictions on a platform, by any standby."""


@dataclass(slots=True)
class Judge:
    """A standby's knowledge of leaders; times in monotonic seconds.

    Attributes:
        met: processes that answered at their address.
        accused: processes that we evicted.
    """

    met: set[str] = field(default_factory=set)
    accused: set[str] = field(default_factory=set)
    last_revision: int = 0
    _last_at: float = float("-inf")

    def learn(self, revision: int, now: float) -> None:
        """Note the store's revision of the last eviction (0: there was none)."""
        if revision != self.last_revision:
            self.last_revision, self._last_at = revision, now

    def may_depose(self, process: str, refusals: int, now: float) -> bool:
        """Return whether the leader's process is proven dead."""
        return (
            refusals >= REFUSALS
            and process in self.met
            and process not in self.accused
            and now - self._last_at >= NOT_TWICE_WITHIN_S
        )
