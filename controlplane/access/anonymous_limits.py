"""Limits of open calls without a credential, since without tokens clients can open many.

There is a limit per address, and one for all; `Health.Check` and `Health.Watch` have limits of their own, so that
others' calls do not block a load balancer. If there is no room, a call that has not sent its request is cancelled:
the oldest of the address with the most.
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
    """Maximum number of open calls of one address, and of all addresses together."""

    each: int
    all: int


CALLS: Final = Room(100, 1_000)
ROOMS: Final = {CHECK: Room(100, 1_000), WATCH: Room(16, 1_000)}
"""Methods with limits of their own."""
STREAM_S: Final = 600.0
"""Maximum duration of a stream without a credential; its client reconnects."""
REQUEST_WITHIN_S: Final = 10.0
"""How long a call may take to send its only request, which is small."""


@dataclass(slots=True, eq=False)
class _Pool:
    room: Room
    open: Counter[str] = field(default_factory=Counter)
    waiting: dict[AnonymousCall, Callable[[], None]] = field(default_factory=dict)
    """Calls without a received request, oldest first, with a function that ends each."""

    def has_room(self, address: str) -> bool:
        return self.open[address] < self.room.each and self.open.total() < self.room.all

    def make_room(self, address: str) -> bool:
        """Cancel a call that waits for its request; return whether there is room then."""
        is_own = self.open[address] >= self.room.each
        among = [one for one in self.waiting if not is_own or one.address == address]
        if among:
            last = max(among, key=lambda one: self.open[one.address])  # the first of equals
            end = self.waiting[last]
            last.leave()
            end()
        return self.has_room(address)


class AnonymousCalls:
    """The anonymous calls of one server."""

    def __init__(self) -> None:
        self._common = _Pool(CALLS)
        self._own = {method: _Pool(room) for method, room in ROOMS.items()}

    def of(self, method: str, address: str) -> AnonymousCall:
        """Create a call from an address, not counted yet."""
        return AnonymousCall(self._own.get(method, self._common), address)


@dataclass(slots=True, eq=False)
class AnonymousCall:
    """One call; `address` as of `nsml.common.hosts.client_of`."""

    pool: _Pool
    address: str
    counts: bool = False

    def enter(self) -> NsmlError | None:
        """Count it; return why it is refused, if there are too many."""
        if not self.pool.has_room(self.address) and not self.pool.make_room(self.address):
            return Unavailable(
                "too many calls without a token are open from this address",
                attempt="again in a moment, or nsml login HOST",
            )
        self.pool.open[self.address] += 1
        self.counts = True
        return None

    def waits(self, end: Callable[[], None]) -> None:
        """Mark it as waiting for its request: `end` cancels it."""
        if self.counts:
            self.pool.waiting[self] = end

    def goes_on(self) -> None:
        """Mark its request as received."""
        self.pool.waiting.pop(self, None)

    def leave(self) -> None:
        """Remove an ended call; idempotent."""
        if self.counts:
            self.counts = False
            self.goes_on()
            self.pool.open[self.address] -= 1
            if not self.pool.open[self.address]:
                del self.pool.open[self.address]
