"""Connections of an HTTP server: limits per client, timeouts, and the order of eviction.

No sockets here: the server reports changes of its connections, and closes connections on request.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nsml.common.hosts import client_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Phase(enum.Enum):
    """What a connection is doing."""

    HANDSHAKE = enum.auto()
    """TLS is being set up."""
    HEAD = enum.auto()
    """The head of a request is being received."""
    BODY = enum.auto()
    """The body of a request is being received."""
    ANSWER = enum.auto()
    """A whole request is being answered."""
    IDLE = enum.auto()
    """Answered; the client may send another request."""
    UPGRADED = enum.auto()
    """A WebSocket, which ends dead clients by its own pings."""
    CLOSING = enum.auto()
    """Closed by us; what is left to send is being sent."""


WAITING: Final = frozenset({Phase.HANDSHAKE, Phase.HEAD, Phase.BODY, Phase.IDLE, Phase.CLOSING})
"""Phases in which the server waits for the client: these connections are evicted first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on clients of an HTTP server.

    Attributes:
        connections: open at once, in total.
        reserved: further ones when all of those are busy, for paths that must always answer.
        per_address: open at once of one address; of IPv6 of one /64 network.
        handshake_s, head_s, body_s: for a whole TLS handshake, request head, request body.
        idle_s: between two requests.
        stalled_s: how long a client may leave sent data unread.
        slow_s: a client that reads nothing for this long may be evicted.
        closing_s: how long the last bytes may take after we close.
    """

    connections: int = 450
    reserved: int = 50
    per_address: int = 100
    handshake_s: float = 10.0
    head_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 30.0
    stalled_s: float = 30.0
    slow_s: float = 5.0
    closing_s: float = 2.0

    def seconds(self, phase: Phase) -> float:
        """Return the timeout of a phase."""
        return {
            Phase.HANDSHAKE: self.handshake_s,
            Phase.HEAD: self.head_s,
            Phase.BODY: self.body_s,
            Phase.IDLE: self.idle_s,
            Phase.CLOSING: self.closing_s,
        }.get(phase, float("inf"))


@dataclass(slots=True, kw_only=True, eq=False)
class Connection:
    """One connection.

    Attributes:
        client: the client it counts for; see `nsml.common.hosts.client_of`.
        is_reserved: accepted beyond the limit: only for paths that must always answer.
        since: start of the phase.
        unsent_since: since when the client has read none of the pending data; None: none is pending.
        abort: closes it at once.
        end: closes it after a timeout.
        look: updates `unsent_since`.
    """

    client: str
    is_reserved: bool
    since: float
    phase: Phase = Phase.HANDSHAKE
    unsent_since: float | None = None
    abort: Callable[[], Any] = lambda: None
    end: Callable[[], Any] = lambda: None
    look: Callable[[], Any] = lambda: None

    def enter(self, phase: Phase, now: float) -> None:
        """Set the phase; re-entering the same phase does not restart its timeout."""
        if phase is not self.phase:
            self.phase, self.since = phase, now

    def waits(self, now: float, slow_s: float) -> bool:
        """Return whether it waits for its client."""
        if self.phase in WAITING:
            return True
        return self.unsent_since is not None and now - self.unsent_since >= slow_s


class Connections:
    """The open connections of one server.

    Args:
        is_exempt: whether an address has no limit of its own: a proxy has many clients.
    """

    def __init__(self, limits: Limits, is_exempt: Callable[[str], bool] = lambda _: False) -> None:
        self.limits = limits
        self._is_exempt = is_exempt
        self._open: dict[Connection, None] = {}
        self._per_address: Counter[str] = Counter()
        self._reserved = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._open))

    def admit(self, address: str, now: float) -> Connection | None:
        """Accept a new connection, evicting a waiting one if the limit is reached; None: refuse it."""
        is_exempt = self._is_exempt(address)
        # A proxy's connections do not count against its network.
        client = address if is_exempt else client_of(address)
        is_over = not is_exempt and self._per_address[client] >= self.limits.per_address
        if is_over and not self.make_room(now, lambda one: one.client == client):
            return None
        has_room = len(self._open) - self._reserved < self.limits.connections
        is_reserved = not has_room and not self.make_room(now, lambda one: not one.is_reserved)
        is_over = is_reserved and self._reserved >= self.limits.reserved
        if is_over and not self.make_room(now, lambda one: one.is_reserved):
            return None
        taken = Connection(client=client, is_reserved=is_reserved, since=now)
        self._open[taken] = None
        self._per_address[client] += 1
        self._reserved += is_reserved
        return taken

    def leave(self, connection: Connection) -> None:
        """Remove a closed connection; idempotent."""
        if connection not in self._open:
            return
        del self._open[connection]
        self._reserved -= connection.is_reserved
        self._per_address[connection.client] -= 1
        if not self._per_address[connection.client]:
            del self._per_address[connection.client]

    def make_room(self, now: float, among: Callable[[Connection], bool]) -> bool:
        """Evict a waiting connection: the oldest of the address with the most connections; False: none waits."""
        slow_s = self.limits.slow_s
        waiting = [one for one in self._open if among(one) and one.waits(now, slow_s)]
        if not waiting:
            return False
        last = min(waiting, key=lambda one: (-self._per_address[one.client], one.since))
        self.leave(last)
        last.abort()
        return True

    def overdue(self, now: float) -> list[Connection]:
        """Return the connections beyond their timeouts."""
        return [one for one in self._open if self._is_overdue(one, now)]

    def _is_overdue(self, one: Connection, now: float) -> bool:
        if one.unsent_since is not None and now - one.unsent_since >= self.limits.stalled_s:
            return True
        return now - one.since >= self.limits.seconds(one.phase)
