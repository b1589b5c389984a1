"""Which control plane speaks for the platform next. Decides only; `channels` dials."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MOST_LEARNED = 8
"""Addresses that are remembered beside those of the settings."""
_AVOIDED_S = 5.0
"""For so long an address that was of no use is not dialled because it leads."""


class Route(NamedTuple):
    """The way to the leader: dialled itself, or somebody who passes everything on to it."""

    address: str
    is_relayed: bool = False


class Routes:
    """The way of the Control stream, from attempt to attempt.

    Whoever does not lead says who does. That one is dialled; where it cannot be reached, who said so is
    asked to pass on what the node says. Where nobody answers it goes on with the next address, in an
    order of each node's own, so that nodes that lose one control plane do not all come to the same.

    Args:
        node: its name.
        configured: addresses of the settings, at least one; they stay whatever is learned.
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
        """Go to the first, in this node's own order."""
        self.now = Route(self.addresses[0])

    def learn(self, addresses: Iterable[str]) -> bool:
        """Take the word where the control planes are; whether that is news.

        One that is not there now may be back when all others are gone: it stays for a while.
        """
        before = self.learned
        self.learned = tuple(dict.fromkeys((*sorted(addresses), *before)))[:MOST_LEARNED]
        every = dict.fromkeys((*self._configured, *self.learned))
        self.addresses = tuple(sorted(every, key=self._place))
        return self.learned != before

    def _place(self, address: str) -> tuple[int, str]:
        return zlib.crc32(f"{self._node} {address}".encode()), address

    def avoid(self, address: str, at: float) -> None:
        """Nobody can be reached there, or who is there only fails, at `at` of the monotonic clock."""
        self._avoided[address] = at

    def led_by(self, leader: str, at: float, *, is_dialled: bool) -> None:
        """Whom we asked says that `leader` leads; "": that nobody does.

        `is_dialled`: whether it may be dialled from here at all.
        """
        avoided_at = self._avoided.get(leader)
        is_avoided = avoided_at is not None and at < avoided_at + _AVOIDED_S
        if not leader or leader == self.now.address:
            if leader and self.now.is_relayed:  # who relayed leads itself by now
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
        """Whom we asked is not there, or of no use: on with the next."""
        if self.now.address not in self.addresses:  # a leader that nobody told us of otherwise
            self.now = Route(self.addresses[0])
            return
        place = self.addresses.index(self.now.address) + 1
        self.now = Route(self.addresses[place % len(self.addresses)])
