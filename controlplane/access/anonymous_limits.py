"""Calls without a credential: how many may be open, since who needs no token can open many.

Each address has a limit, and all together have one; `Health.Check` and `Health.Watch` have room of their own, so that
nobody else's calls keep a load balancer from its answer. Where there is no room, a call that has not sent its request
gives way: the oldest of the address with the most.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import NsmlError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

CHECK: Final = "/grpc.health.v1.Health/Check"
WATCH: Final = "/grpc.health.v1.Health/Watch"


@dataclass(frozen=True, slots=True)
class Room:
    """How many calls one address may have open at once, and all addresses together."""

    each: int
    all: int


CALLS: Final = Room(100, 1_000)
ROOMS: Final = {CHECK: Room(100, 1_000), WATCH: Room(16, 1_000)}
"""Methods with room of their own."""
STREAM_S: Final = 600.0
"""So long a stream without a credential lasts; its client asks again."""
REQUEST_WITHIN_S: Final = 10.0
"""How long it may take to send the one request that it has: these are small."""


@dataclass(slots=True, eq=False)
class _Pool:
    room: Room
    open: Counter[str] = field(default_factory=Counter)
    waiting: dict[AnonymousCall, Callable[[], None]] = field(default_factory=dict)
    """Those whose request has not come, the oldest first, and what ends each."""

    def has_room(self, address: str) -> bool:
        return self.open[address] < self.room.each and self.open.total() < self.room.all

    def make_room(self, address: str) -> bool:
        """End a call that waits for its request; whether there is room then."""
        is_own = self.open[address] >= self.room.each
        among = [one for one in self.waiting if not is_own or one.address == address]
        if among:
            last = max(among, key=lambda one: self.open[one.address])  # the first of equals
            end = self.waiting[last]
            last.leave()
            end()
        return self.has_room(address)


class AnonymousCalls:
    """Those of one server."""

    def __init__(self) -> None:
        self._common = _Pool(CALLS)
        self._own = {method: _Pool(room) for method, room in ROOMS.items()}

    def of(self, method: str, address: str) -> AnonymousCall:
        """A call from an address, which does not count yet."""
        return AnonymousCall(self._own.get(method, self._common), address)


@dataclass(slots=True, eq=False)
class AnonymousCall:
    """One call; `address` as `nsml.common.hosts.client_of` says it."""

    pool: _Pool
    address: str
    counts: bool = False

    def enter(self) -> NsmlError | None:
        """Count it; why it is refused, where it is one too many."""
        if not self.pool.has_room(self.address) and not self.pool.make_room(self.address):
            return Unavailable(
                "too many calls without a token are open from this address",
                attempt="again in a moment, or nsml login HOST",
            )
        self.pool.open[self.address] += 1
        self.counts = True
        return None

    def waits(self, end: Callable[[], None]) -> None:
        """Its request has not come: it gives way by `end`."""
        if self.counts:
            self.pool.waiting[self] = end

    def goes_on(self) -> None:
        """Its request has come."""
        self.pool.waiting.pop(self, None)

    def leave(self) -> None:
        """It has ended; again does no harm."""
        if self.counts:
            self.counts = False
            self.goes_on()
            self.pool.open[self.address] -= 1
            if not self.pool.open[self.address]:
                del self.pool.open[self.address]
