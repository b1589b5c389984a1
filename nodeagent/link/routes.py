"""Chooses the control plane to connect to next. Decides only; `channels` dials."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MOST_LEARNED = 8
"""Addresses remembered beside those of the settings."""
_AVOIDED_S = 5.0
"""How long an address that failed is not dialled even if it leads."""


class Route(NamedTuple):
    """The route to the leader: direct, or relayed by another control plane."""

    address: str
    is_relayed: bool = False


class Routes:
    """The route of the Control stream, from attempt to attempt.

    A follower names the leader. That is dialled; if it cannot be reached, the follower is asked
    to relay for the node. If none answers, the next address is used, in an
    order specific to each node, so that nodes that lose one control plane spread over the others.

    Args:
        node: its name.
        configured: addresses of the settings, at least one; they are always kept.
    """

    def __init__(self, node: str, configured: Sequence[str]) -> None:
        self._node = node
        self._configured = tuple(configured)
        self.learned: tuple[str, ...] = ()
        self.addresses = self._configured
        self._avoided: dict[str, float] = {}
        self.learn(())
        self.begin()

    def begin(self) -> None:
        """Use the first address, in this node's own order."""
        self.now = Route(self.addresses[0])

    def learn(self, addresses: Iterable[str]) -> bool:
        """Add addresses of control planes; return whether that is news.

        A missing one may be back when all others are gone: it is kept for a while.
        """
        before = self.learned
        self.learned = tuple(dict.fromkeys((*sorted(addresses), *before)))[:MOST_LEARNED]
        every = dict.fromkeys((*self._configured, *self.learned))
        self.addresses = tuple(sorted(every, key=self._place))
        return self.learned != before

    def _place(self, address: str) -> tuple[int, str]:
        return zlib.crc32(f"{self._node} {address}".encode()), address

    def avoid(self, address: str, at: float) -> None:
        """An address is unreachable, or only fails, at `at` of the monotonic clock."""
        self._avoided[address] = at

    def led_by(self, leader: str, at: float, *, is_dialled: bool) -> None:
        """The control plane asked says that `leader` leads; "": that none does.

        `is_dialled`: whether it may be dialled from here at all.
        """
        avoided_at = self._avoided.get(leader)
        is_avoided = avoided_at is not None and at < avoided_at + _AVOIDED_S
        if not leader or leader == self.now.address:
            if leader and self.now.is_relayed:  # the relaying one leads by now
                self.now = Route(leader)
            else:
                self.lost()
        elif is_dialled and not is_avoided:
            self.now = Route(leader)
        elif not self.now.is_relayed:
            self.now = Route(self.now.address, is_relayed=True)
        else:
            self.lost()

    def lost(self) -> None:
        """The control plane asked is unreachable or useless: use the next."""
        if self.now.address not in self.addresses:  # a leader not learned otherwise
            self.now = Route(self.addresses[0])
            return
        place = self.addresses.index(self.now.address) + 1
        self.now = Route(self.addresses[place % len(self.addresses)])
