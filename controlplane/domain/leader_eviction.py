"""When a standby may depose the leader without waiting for the end of its lease.

Whatever is decided here, the fence keeps it safe; a wrong decision costs a change of leaders. So the
proof must be one that a live leader never gives: its process was met at its address, the connection to
it ended, and its host refuses new ones, twice in a row. A host that refuses says itself that nobody
listens there. Silence says nothing: it may be the network between the two, and two control planes
that cannot reach one another would depose each other for ever. What a firewall refuses in a host's
name looks like proof too; so who was deposed and leads again was alive, and is not deposed by the
same standby a second time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

REFUSALS = 2
"""So many in a row are proof."""

NOT_TWICE_WITHIN_S = 5.0
"""Between two deposings of a platform, whoever does them."""


@dataclass(slots=True)
class Judge:
    """What one standby has learned of leaders; every instant is monotonic seconds.

    Attributes:
        met: processes that answered at the address that they give.
        accused: those that we deposed.
    """

    met: set[str] = field(default_factory=set)
    accused: set[str] = field(default_factory=set)
    last_revision: int = 0
    _last_at: float = float("-inf")

    def learn(self, revision: int, now: float) -> None:
        """Somebody was deposed last at this revision of the store (0: nobody ever)."""
        if revision != self.last_revision:
            self.last_revision, self._last_at = revision, now

    def may_depose(self, process: str, refusals: int, now: float) -> bool:
        """Whether what is known of the leader's process is proof of its death."""
        return (
            refusals >= REFUSALS
            and process in self.met
            and process not in self.accused
            and now - self._last_at >= NOT_TWICE_WITHIN_S
        )
