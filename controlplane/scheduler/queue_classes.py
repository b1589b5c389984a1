"""The queue, grouped in lines: sessions of one line have equal requests, and differ only in age."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from heapq import heappop, heappush
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.values import WHOLE_DEVICE, Cause, Priority
from controlplane.scheduler.entitlement import claim_of
from controlplane.scheduler.fit import Request, asked_by
from controlplane.scheduler.session_rank import Demand, expected_s, level_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from controlplane.domain.values import Session
    from controlplane.scheduler.feasibility import AnyFeasible

Age = tuple[float, str]
"""Submission time of a session, and its id: the oldest is the smallest."""
Rank = tuple[int, float, str]
"""The precedence, or `DUE`, and the age: the smallest goes first (see session_rank.py)."""
DUE: Final = 0
"""The precedence of a due session."""
_WIDEST: Final = 1 << 40
"""More thousandths of GPUs than any gang has."""

_SPENT_SHARE = 8
"""Removed entries at the front of a line are deleted once they are one in so many."""

MOST_PUT_OFF_S: Final = 3 * 3_600.0
"""No session is postponed for nearly as long: a longer time is from a wrong clock (`nsml/common/clock.py`)."""


class LineKey(NamedTuple):
    """Common properties of the sessions in one line; `level` as of `order.level_of`, `teams` of competitions."""

    request: Request
    project: str
    priority: Priority
    level: int
    teams: tuple[str, ...] = ()

    @property
    def account(self) -> str:
        """The account its sessions are charged to: the project, or without one the user."""
        return self.project or self.request.owner


def demand_of(session: Session) -> Demand:
    """Build the inputs of the order."""
    spec = session.spec
    return Demand(
        gpus=spec.resources.gpu_thousandths * spec.replica_count / WHOLE_DEVICE,
        limit_s=spec.time_limit_s,
        attained_s=_attained_s(session),
    )


def _attained_s(session: Session) -> float:
    """Return how long it held its GPUs; with a limit, which is per attempt, since it last used one up.

    Else a session resumed after its limit would seem to need nothing more.
    """
    limit_s, attained_s = session.spec.time_limit_s, 0.0
    for one in session.attempts:
        attained_s += one.held_s
        if one.cause is Cause.TIME_LIMIT or 0 < limit_s <= attained_s:
            attained_s = 0.0
    return attained_s


def waiting_since(session: Session) -> float:
    """Return when it was submitted, or its last attempt ended: patience counts one uninterrupted wait."""
    return max([session.created_at, *(one.ended_at for one in session.attempts)])


class Waiting:
    """A session in the queue.

    Attributes:
        age: the session's, copied for fast access.
        since: when it began to wait, see `waiting_since`.
        expected: expected GPU seconds.
        is_unlimited: whether it has no time limit.
        line: its line; None while it is postponed.
    """

    __slots__ = ("age", "expected", "is_unlimited", "line", "session", "since")

    def __init__(self, session: Session, expected: int) -> None:
        self.session = session
        self.age = (session.created_at, session.id)
        self.since = waiting_since(session) if session.attempts else session.created_at
        self.expected = expected
        self.is_unlimited = not session.spec.time_limit_s
        self.line: QueueClass | None = None


_age = attrgetter("age")


class QueueClass:
    """Queued sessions with equal requests, oldest first.

    Attributes:
        key: their common properties.
        project: copied from the key for fast access, as the next five.
        owner: their user.
        teams: the teams of competitions that they count for.
        priority: their class.
        level: of their expected service (see session_rank.py).
        count: replicas of each.
        shape: their request without fields that do not affect where it fits.
        account: the account they are charged to.
        claim: what each of them would hold.
        gpus: thousandths of GPUs, at least those of one.
        precedence: by the level of the expected service, then by width; without due sessions.
        is_small: whether each of them is one replica of at most one device.
        is_wide: whether each has several devices or replicas, with devices.
        has_right: whether users who hold nothing have a right to one of them: small, and of the class NORMAL or above.
        first: the oldest; there is always one, since empty lines are removed.
        fits: where they fit, as of the last pass in which they did; None once none of them does.
    """

    __slots__ = (
        "_spent",
        "_waiting",
        "account",
        "claim",
        "count",
        "first",
        "fits",
        "gpus",
        "has_right",
        "is_small",
        "is_wide",
        "key",
        "level",
        "owner",
        "precedence",
        "priority",
        "project",
        "shape",
        "teams",
    )

    def __init__(self, key: LineKey, shape: Request) -> None:
        request = key.request
        self.key = key
        self.project = key.project
        self.owner = request.owner
        self.teams = key.teams
        self.priority = int(key.priority)
        self.level = key.level
        self.count = request.replica_count
        self.shape = shape
        self.account = key.account
        self.claim = claim_of(request)
        self.gpus = max(self.claim.gpu_thousandths, WHOLE_DEVICE)
        # One number: it is compared between lines at each placement.
        self.precedence = 1 + key.level * _WIDEST + self.gpus
        self.is_small = request.replica_count == 1 and request.gpu_thousandths <= WHOLE_DEVICE
        self.is_wide = self.claim.gpu_thousandths > 0 and not self.is_small
        self.has_right = self.is_small and self.priority >= Priority.NORMAL
        self.fits: AnyFeasible | None = None
        self._waiting: list[Waiting] = []
        self._spent = 0
        self.first: Waiting

    def __len__(self) -> int:
        return len(self._waiting) - self._spent

    def __iter__(self) -> Iterator[Session]:
        for waiting in self._waiting[self._spent :]:
            yield waiting.session

    def add(self, waiting: Waiting) -> None:
        """Insert a new session at its place."""
        known = self._waiting
        if known and known[-1].age < waiting.age:
            # Usually it is the youngest.
            known.append(waiting)
            return
        insort(known, waiting, self._spent, key=_age)
        self.first = known[self._spent]

    def remove(self, waiting: Waiting) -> bool:
        """Remove a session; return whether others are left."""
        if self.first is waiting:
            return self.take_first()
        del self._waiting[self._place(waiting.age)]
        return True

    def take_first(self) -> bool:
        """Remove the oldest; return whether others are left."""
        # Removed entries are deleted in batches: each deletion moves all later ones.
        waiting = self._waiting
        self._spent = spent = self._spent + 1
        if spent * _SPENT_SHARE > len(waiting):
            del waiting[:spent]
            self._spent = spent = 0
            if not waiting:
                return False
        self.first = waiting[spent]
        return True

    def rank(self, now: float, patience: float) -> Rank:
        """Return its rank among the lines of its class and account."""
        first = self.first
        return (self.precedence if now - first.since < patience else DUE, *first.age)

    def ranks(self, now: float, patience: float) -> list[Rank]:
        """Return its rank with each of its sessions as the head, oldest first."""
        precedence = self.precedence
        return [
            (precedence if now - one.since < patience else DUE, *one.age) for one in self.waiting()
        ]

    def waiting(self) -> Iterator[Waiting]:
        """Iterate over its sessions, oldest first."""
        return islice(self._waiting, self._spent, None)

    @property
    def age(self) -> Age:
        """Of the oldest."""
        return self.first.age

    @property
    def head(self) -> Session:
        """The session of the oldest."""
        return self.first.session

    def _place(self, age: Age) -> int:
        return bisect_left(self._waiting, age, self._spent, key=_age)


class Queue:
    """All queued sessions: in lines, or postponed until their time.

    Args:
        shape_of: removes fields of a request that do not affect where it fits.

    Attributes:
        revision: grows with each added session.
        backlog_gpu_s: expected GPU seconds of all sessions.
        without_limit: number of sessions without a time limit.
    """

    def __init__(self, shape_of: Callable[[Request], Request]) -> None:
        self.revision = 0
        self.backlog_gpu_s = 0
        self.without_limit = 0
        self._shape_of = shape_of
        self._waiting: dict[str, Waiting] = {}
        self._lines: dict[LineKey, QueueClass] = {}
        self._shapes: dict[Request, dict[LineKey, QueueClass]] = {}
        self._put_off: list[tuple[float, str]] = []
        # Number of an account's lines by class.
        self._classes: dict[str, Counter[int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._waiting

    @property
    def has_lines(self) -> bool:
        """Whether there is a session that is not postponed."""
        return bool(self._lines)

    def get(self, session_id: str) -> Session | None:
        """Return a queued session, if known."""
        known = self._waiting.get(session_id)
        return None if known is None else known.session

    def sessions(self) -> Iterator[Session]:
        """Iterate over all sessions, unordered."""
        return (one.session for one in self._waiting.values())

    def lines(self) -> Iterator[QueueClass]:
        """Iterate over lines."""
        return iter(self._lines.values())

    def shapes(self) -> Iterator[tuple[Request, Iterable[QueueClass]]]:
        """Iterate over lines by shape: those of one shape fit in the same places."""
        return ((shape, lines.values()) for shape, lines in self._shapes.items())

    def lines_of(self, shape: Request) -> Iterable[QueueClass]:
        """Return the lines of a shape."""
        return self._shapes.get(shape, {}).values()

    def reshape(self) -> None:
        """Recompute all shapes after a change of `shape_of`."""
        self.revision += 1
        self._shapes = {}
        for line in self._lines.values():
            line.shape = self._shape_of(line.key.request)
            self._shapes.setdefault(line.shape, {})[line.key] = line

    def highest_of(self, account: str) -> int:
        """Return the highest class of an account's lines; 0: there are none."""
        return max(self._classes.get(account, ()), default=0)

    @property
    def lowest(self) -> int:
        """The lowest class of all lines; above all classes: there are none."""
        return min((min(one) for one in self._classes.values()), default=max(Priority) + 1)

    def next_due(self, now: float, patience: float) -> float:
        """Return when the next line becomes due, Unix seconds; infinity: never."""
        since = (line.first.since for line in self._lines.values())
        return min((at + patience for at in since if now - at < patience), default=math.inf)

    def line_of(self, session_id: str) -> QueueClass | None:
        """Return a session's line; None while it is postponed."""
        known = self._waiting.get(session_id)
        return None if known is None else known.line

    def add(self, session: Session, *, is_late: bool = False) -> None:
        """Add or update a session; `is_late`: ignore its `not_before`."""
        self.remove(session.id)
        self.revision += 1
        demand = demand_of(session)
        # Integers: sums of floats would depend on the history of additions.
        expected = round(expected_s(demand) * demand.gpus)
        waiting = self._waiting[session.id] = Waiting(session, expected)
        self._count(waiting, 1)
        if session.not_before and not is_late:
            heappush(self._put_off, (session.not_before, session.id))
        else:
            self._stand(waiting, level_of(demand))

    def take_first(self, line: QueueClass, waiting: Waiting) -> None:
        """Remove the oldest of a line."""
        del self._waiting[waiting.age[1]]
        self.backlog_gpu_s -= waiting.expected
        self.without_limit -= waiting.is_unlimited
        if not line.take_first():
            self._close(line)

    def put_back(self, session: Session) -> None:
        """Add again a session that was in a line: its `not_before` is past."""
        self.add(session, is_late=True)

    def remove(self, session_id: str) -> None:
        """Remove a session."""
        waiting = self._waiting.pop(session_id, None)
        if waiting is None:
            return
        self._count(waiting, -1)
        line = waiting.line
        if line is None:
            return
        if not line.remove(waiting):
            self._close(line)

    def _close(self, line: QueueClass) -> None:
        """Remove an empty line."""
        line.fits = None
        del self._lines[line.key]
        classes = self._classes[line.account]
        classes[line.priority] -= 1
        if not classes[line.priority]:
            del classes[line.priority]
            if not classes:
                del self._classes[line.account]
        alike = self._shapes[line.shape]
        del alike[line.key]
        if not alike:
            del self._shapes[line.shape]

    def wake(self, now: float) -> list[Session]:
        """Move postponed sessions into lines when their time has come, and return them."""
        woken: list[Session] = []
        while self._put_off and not self._is_ahead(self._put_off[0][0], now):
            waiting = self._first_put_off()
            heappop(self._put_off)
            if waiting is not None:
                self._stand(waiting, level_of(demand_of(waiting.session)))
                woken.append(waiting.session)
        return woken

    def is_due(self, now: float) -> bool:
        """Return whether the time of a postponed session has come."""
        due = self.due()
        return due is not None and not self._is_ahead(due, now)

    @staticmethod
    def _is_ahead(until: float, now: float) -> bool:
        return now < until <= now + MOST_PUT_OFF_S

    def due(self) -> float | None:
        """Return when the next postponed session may start, Unix seconds; None: there is none."""
        while self._put_off:
            if self._first_put_off() is not None:
                return self._put_off[0][0]
            heappop(self._put_off)
        return None

    def _first_put_off(self) -> Waiting | None:
        """Return the next postponed session; None if that one was removed, or postponed anew."""
        until, session_id = self._put_off[0]
        waiting = self._waiting.get(session_id)
        if waiting is None or waiting.line is not None:
            return None
        return waiting if waiting.session.not_before == until else None

    def _count(self, waiting: Waiting, by: int) -> None:
        self.backlog_gpu_s += by * waiting.expected
        self.without_limit += by * waiting.is_unlimited

    def _stand(self, waiting: Waiting, level: int) -> None:
        session = waiting.session
        request = asked_by(session)
        key = LineKey(
            request, session.project, session.spec.priority, level, session.competition_teams
        )
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = QueueClass(key, self._shape_of(request))
            self._shapes.setdefault(line.shape, {})[key] = line
            self._classes.setdefault(line.account, Counter())[line.priority] += 1
        line.add(waiting)
        waiting.line = line
