"""Queue of builds on a node: a few at once, in turn between users, within a share of memory and disk.

`choose` decides and is pure. `BuildQueue` has waiting and running builds; it is of one process, since an
agent's builds end with it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodeagent.environments.errors import EnvironmentCancelled
from nodeagent.storage.eviction import NoRoom
from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Waits = Callable[[str], object]
    """Receives why a build waits, for its user; "" once it starts."""

DECENT_DISK_BYTES = 10_000_000_000
"""A build is granted at least this much disk, unless it wants less or less is free."""
_LEAST_DISK_BYTES = 64 << 20
"""With less free disk no build starts."""
_LOOK_EVERY_S = 0.1
_TELL_AGAIN_S = 60.0
"""Seconds between reports of a changed reason to wait: the control plane stores each."""
_MOST_OWNERS = 10_000
"""Owners whose last turn is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Limits of all builds of a queue: concurrent builds, in all and per owner, and bytes of memory."""

    at_once: int = 4
    per_owner: int = 2
    memory_bytes: int = 64 << 30

    @property
    def memory_each(self) -> int:
        """Maximum bytes of memory for one build: two owners can always build."""
        return self.memory_bytes // min(self.at_once, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A waiting build: owner, place in the order of arrival, and maximum memory and disk in bytes."""

    owner: str
    number: int
    memory_bytes: int
    disk_bytes: int


@dataclass(slots=True, kw_only=True)
class Turn:
    """A running build and its grant, in bytes. The caller updates `written_bytes`."""

    owner: str
    memory_bytes: int
    disk_bytes: int
    is_disk_short: bool = False
    """Whether free disk, not the setting, limits its writes."""
    written_bytes: int = 0

    @property
    def reserved_bytes(self) -> int:
        """Bytes that it may still write."""
        return max(self.disk_bytes - self.written_bytes, 0)


def choose(
    waiting: Sequence[Request],
    running: Sequence[Turn],
    limits: QueueLimits,
    *,
    room_bytes: int,
    last_turns: Mapping[str, int],
) -> tuple[Request, Turn] | None:
    """The build to start now, with its grant; None: none is eligible, or too little is free.

    Owners with fewer builds come first, then owners with the oldest last turn (`last_turns`, higher is
    later), then by arrival. No build overtakes one that waits for memory or disk. `room_bytes`: what
    all builds together may write from now on. Raises NoRoom.
    """
    request = _first(waiting, running, limits, last_turns)
    if request is None:
        return None
    memory_bytes = min(request.memory_bytes, limits.memory_each)
    if sum(one.memory_bytes for one in running) + memory_bytes > limits.memory_bytes:
        return None
    room_bytes -= sum(one.reserved_bytes for one in running)
    disk_bytes = _disk_share(request.disk_bytes, room_bytes, is_alone=not running)
    if disk_bytes is None:
        return None
    return request, Turn(
        owner=request.owner,
        memory_bytes=memory_bytes,
        disk_bytes=disk_bytes,
        is_disk_short=disk_bytes < request.disk_bytes,
    )


def _first(
    waiting: Sequence[Request],
    running: Sequence[Turn],
    limits: QueueLimits,
    last_turns: Mapping[str, int],
) -> Request | None:
    builds = Counter(one.owner for one in running)
    places = limits.at_once - len(running)

    def may_build(owner: str) -> bool:
        # the last place is for an owner without builds
        return builds[owner] < limits.per_owner and places > (1 if builds[owner] else 0)

    return min(
        (one for one in waiting if may_build(one.owner)),
        key=lambda one: (builds[one.owner], last_turns.get(one.owner, -1), one.number),
        default=None,
    )


def _disk_share(wanted: int, room: int, *, is_alone: bool) -> int | None:
    """Bytes that a build may write, of `room` unreserved ones; None: it waits. Raises NoRoom."""
    if room >= wanted:
        return wanted
    if not is_alone:
        return room if room >= min(wanted, DECENT_DISK_BYTES) else None
    # the rest is for others: a long build must not keep them from starting
    share = max(room // 2, min(room, DECENT_DISK_BYTES))
    if share < min(wanted, _LEAST_DISK_BYTES):
        raise NoRoom("the node's disk has too little room for a build")
    return min(share, wanted)


class BuildQueue:
    """Waiting and running builds. Thread-safe.

    `room` returns the bytes that builds may write to their disk before others need the rest.
    """

    def __init__(self, limits: QueueLimits, room: Callable[[], int]) -> None:
        self.limits = limits
        self._room = room
        self._turn = threading.Lock()
        self._tickets: list[Ticket] = []
        self._last_turns: OrderedDict[str, int] = OrderedDict()
        self._arrived = 0
        self._started = 0
        self._looked_at = float("-inf")
        self._next: tuple[Request, Turn] | None = None

    @contextmanager
    def ticket(
        self, owner: str, *, memory_bytes: int, disk_bytes: int, waits: Waits
    ) -> Iterator[Ticket]:
        """A place in the queue, with its grant once its build has started, for as long as the context lasts."""
        with self._turn:
            self._arrived += 1
            request = Request(
                owner=owner,
                number=self._arrived,
                memory_bytes=memory_bytes,
                disk_bytes=disk_bytes,
            )
            ticket = Ticket(self, request, waits)
            self._tickets.append(ticket)
        try:
            yield ticket
        finally:
            with self._turn:
                self._tickets.remove(ticket)
                self._looked_at = float("-inf")

    def start(self, ticket: Ticket) -> tuple[Turn | None, str]:
        """The grant of a ticket if it is its turn, else None and why not. Raises NoRoom."""
        with self._turn:
            if not ticket.is_ready:
                ticket.is_ready, self._looked_at = True, float("-inf")
            running = [one.turn for one in self._tickets if one.turn is not None]
            # many tickets wait, and poll often
            if time.monotonic() >= self._looked_at + _LOOK_EVERY_S:
                self._next = self._choose(running)
                self._looked_at = time.monotonic()
            if self._next is None or self._next[0] is not ticket.request:
                return None, self._reason(ticket.request.owner, running)
            _, turn = self._next
            self._next, self._looked_at = None, float("-inf")
            ticket.turn = turn
            self._started += 1
            self._last_turns[turn.owner] = self._started
            self._last_turns.move_to_end(turn.owner)
            while len(self._last_turns) > _MOST_OWNERS:
                self._last_turns.popitem(last=False)
            return turn, ""

    def stand_by(self, ticket: Ticket) -> None:
        """Skip a ticket until it asks again: another builds the same."""
        with self._turn:
            if ticket.is_ready:
                ticket.is_ready, self._looked_at = False, float("-inf")

    def _choose(self, running: Sequence[Turn]) -> tuple[Request, Turn] | None:
        waiting = [one.request for one in self._tickets if one.is_ready and one.turn is None]
        return choose(
            waiting,
            running,
            self.limits,
            room_bytes=self._room(),
            last_turns=self._last_turns,
        )

    def _reason(self, owner: str, running: Sequence[Turn]) -> str:
        own = sum(one.owner == owner for one in running)
        if own >= self.limits.per_owner:
            return (
                f"{counted(own, 'build')} of your own, the most for one user on this node (its agent's"
                " setting user_builds_at_once)"
            )
        places = self.limits.at_once - len(running)
        if places <= (1 if own else 0):
            kept = " and keeps a place for other users" if places else ""
            return (
                f"this node runs {self.limits.at_once} at once{kept} (its agent's setting"
                " builds_at_once)"
            )
        if running:
            return "others come first, or use the memory or the disk that builds have here"
        return ""


class Ticket:
    """A place in a queue; for one thread."""

    def __init__(self, queue: BuildQueue, request: Request, waits: Waits) -> None:
        self.request = request
        self.turn: Turn | None = None
        self.is_ready = False
        self._queue = queue
        self._waits = waits
        self._reason = ""
        self._told_at = 0.0

    def begin(self) -> bool:
        """Whether the build starts now; `turn` is then its grant. Raises NoRoom."""
        turn, reason = self._queue.start(self)
        # the reason may be empty for a moment
        if turn is not None or reason:
            self._tell(f"waiting for other builds: {reason}" if reason else "")
        return turn is not None

    def stand_by(self) -> None:
        """Do not start for now: another builds the same."""
        self._queue.stand_by(self)
        self._tell("")

    def _tell(self, reason: str) -> None:
        """Report a changed reason; from one reason to another only once in _TELL_AGAIN_S."""
        now = time.monotonic()
        is_early = bool(reason and self._reason) and now < self._told_at + _TELL_AGAIN_S
        if reason != self._reason and not is_early:
            self._reason, self._told_at = reason, now
            self._waits(reason)

    def granted(self) -> Turn:
        """The grant of the started build."""
        if self.turn is None:
            raise RuntimeError("the build has not begun")
        return self.turn

    def wait(self, cancelled: threading.Event | None) -> Turn:
        """Return once it is this build's turn. Raises NoRoom, EnvironmentCancelled soon after `cancelled` is set."""
        while not self.begin():
            if cancelled is not None and cancelled.is_set():
                raise EnvironmentCancelled
            time.sleep(_LOOK_EVERY_S)
        return self.granted()
