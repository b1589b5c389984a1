"""The queue, kept in lines: sessions of one line ask for the same, and differ in age alone."""

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
"""When a session was submitted, and its id: the oldest is the smallest."""
Rank = tuple[int, float, str]
"""The precedence, or `DUE`, and the age: the smallest goes first (see session_rank.py)."""
DUE: Final = 0
"""The precedence of whoever is due."""
_WIDEST: Final = 1 << 40
"""More thousandths of GPUs than any gang has."""

_SPENT_SHARE = 8
"""Those who left a line at its front are cut off once there is one of them for so many who stand in it."""

MOST_PUT_OFF_S: Final = 3 * 3_600.0
"""Nobody is put off for nearly as long: who seems to be was by a clock that was wrong altogether (`nsml/common/clock.py`)."""


class LineKey(NamedTuple):
    """What the sessions of one line have in common; `level` is that of `order.level_of`."""

    request: Request
    project: str
    priority: Priority
    level: int

    @property
    def account(self) -> str:
        """Who its sessions count for: the project, or its user who has none."""
        return self.project or self.request.owner


def demand_of(session: Session) -> Demand:
    """What the order looks at."""
    spec = session.spec
    return Demand(
        gpus=spec.resources.gpu_thousandths * spec.replica_count / WHOLE_DEVICE,
        limit_s=spec.time_limit_s,
        attained_s=_attained_s(session),
    )


def _attained_s(session: Session) -> float:
    """For how long it held its GPUs; with a limit, which is each attempt's, since it used one up last.

    Else one that goes on after its limit would count as one that needs nothing more.
    """
    limit_s, attained_s = session.spec.time_limit_s, 0.0
    for one in session.attempts:
        attained_s += one.held_s
        if one.cause is Cause.TIME_LIMIT or 0 < limit_s <= attained_s:
            attained_s = 0.0
    return attained_s


def waiting_since(session: Session) -> float:
    """When it was submitted, or when its last attempt ended: who is due waited for so long in one piece."""
    return max([session.created_at, *(one.ended_at for one in session.attempts)])


class Waiting:
    """A session in the queue.

    Attributes:
        age: of the session; so that nobody looks at that who does not take it.
        since: when it began to wait, see `waiting_since`.
        expected: GPU seconds that it is expected to use.
        is_unlimited: whether it has no time limit.
        line: where it stands; None while it is put off.
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
    """Queued sessions that ask for the same, oldest first.

    Attributes:
        key: what they have in common.
        project: of the key, as the next four are: each placement asks for them.
        owner: whose they are.
        priority: their class.
        level: of the service that they need (see session_rank.py).
        count: replicas of each.
        shape: what they ask for without what makes no difference to where it fits.
        account: who they count for.
        claim: what each of them would hold.
        gpus: thousandths of GPUs, at least those of one.
        precedence: by the level of the expected service, then by width; of those of which nobody is due.
        is_small: whether each of them is one replica of at most one device.
        is_wide: whether each is of several devices or replicas, with devices.
        has_right: whether users without anything have a right to one of them: small, and of the class NORMAL or above.
        first: the oldest; there is always one, as nobody keeps a line in which nobody stands.
        fits: where they fit, as of the last pass in which they did; None once none of them does any more.
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
    )

    def __init__(self, key: LineKey, shape: Request) -> None:
        request = key.request
        self.key = key
        self.project = key.project
        self.owner = request.owner
        self.priority = int(key.priority)
        self.level = key.level
        self.count = request.replica_count
        self.shape = shape
        self.account = key.account
        self.claim = claim_of(request)
        self.gpus = max(self.claim.gpu_thousandths, WHOLE_DEVICE)
        # One number: those of two lines are compared at each placement.
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
        """Take one in that is not there, at its place."""
        known = self._waiting
        if known and known[-1].age < waiting.age:
            # Mostly it is the youngest.
            known.append(waiting)
            return
        insort(known, waiting, self._spent, key=_age)
        self.first = known[self._spent]

    def remove(self, waiting: Waiting) -> bool:
        """Take one out; whether others are left."""
        if self.first is waiting:
            return self.take_first()
        del self._waiting[self._place(waiting.age)]
        return True

    def take_first(self) -> bool:
        """Take the oldest out; whether others are left."""
        # What is taken from the front is cut off now and then: each cut moves all that is behind.
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
        """How it stands among the lines of its class and account."""
        first = self.first
        return (self.precedence if now - first.since < patience else DUE, *first.age)

    def ranks(self, now: float, patience: float) -> list[Rank]:
        """How it would stand with each of its sessions at the front, oldest first."""
        precedence = self.precedence
        return [
            (precedence if now - one.since < patience else DUE, *one.age) for one in self.waiting()
        ]

    def waiting(self) -> Iterator[Waiting]:
        """All that stand in it, oldest first."""
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
    """All sessions that wait: in lines, or put off until their time comes.

    Args:
        shape_of: a request without what makes no difference to where it fits.

    Attributes:
        revision: grows when somebody comes.
        backlog_gpu_s: GPU seconds that all who wait are expected to use.
        without_limit: how many of them have no time limit.
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
        # How many lines of each class an account has.
        self._classes: dict[str, Counter[int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._waiting

    @property
    def has_lines(self) -> bool:
        """Whether a session waits that is not put off."""
        return bool(self._lines)

    def get(self, session_id: str) -> Session | None:
        """A session that waits."""
        known = self._waiting.get(session_id)
        return None if known is None else known.session

    def sessions(self) -> Iterator[Session]:
        """All of them, in no order."""
        return (one.session for one in self._waiting.values())

    def lines(self) -> Iterator[QueueClass]:
        """Lines in which somebody stands."""
        return iter(self._lines.values())

    def shapes(self) -> Iterator[tuple[Request, Iterable[QueueClass]]]:
        """The same, those together that fit in the same places."""
        return ((shape, lines.values()) for shape, lines in self._shapes.items())

    def lines_of(self, shape: Request) -> Iterable[QueueClass]:
        """Those that fit in the same places."""
        return self._shapes.get(shape, {}).values()

    def reshape(self) -> None:
        """What makes no difference to where a request fits has changed."""
        self.revision += 1
        self._shapes = {}
        for line in self._lines.values():
            line.shape = self._shape_of(line.key.request)
            self._shapes.setdefault(line.shape, {})[line.key] = line

    def highest_of(self, account: str) -> int:
        """The highest class in which sessions of an account stand in line; 0: none stands."""
        return max(self._classes.get(account, ()), default=0)

    @property
    def lowest(self) -> int:
        """The lowest class in which sessions stand in line; above all classes: none stands."""
        return min((min(one) for one in self._classes.values()), default=max(Priority) + 1)

    def next_due(self, now: float, patience: float) -> float:
        """When the next line is due that is not, Unix seconds; infinity: never."""
        since = (line.first.since for line in self._lines.values())
        return min((at + patience for at in since if now - at < patience), default=math.inf)

    def line_of(self, session_id: str) -> QueueClass | None:
        """Where it stands; None while it is put off."""
        known = self._waiting.get(session_id)
        return None if known is None else known.line

    def add(self, session: Session, *, is_late: bool = False) -> None:
        """Take a session in, or what changed of it; with `is_late` its time has come."""
        self.remove(session.id)
        self.revision += 1
        demand = demand_of(session)
        # Whole numbers: sums of floats would depend on who came and went before.
        expected = round(expected_s(demand) * demand.gpus)
        waiting = self._waiting[session.id] = Waiting(session, expected)
        self._count(waiting, 1)
        if session.not_before and not is_late:
            heappush(self._put_off, (session.not_before, session.id))
        else:
            self._stand(waiting, level_of(demand))

    def take_first(self, line: QueueClass, waiting: Waiting) -> None:
        """The oldest of a line waits no more."""
        del self._waiting[waiting.age[1]]
        self.backlog_gpu_s -= waiting.expected
        self.without_limit -= waiting.is_unlimited
        if not line.take_first():
            self._close(line)

    def put_back(self, session: Session) -> None:
        """Take in again one that stood in line: its time has come."""
        self.add(session, is_late=True)

    def remove(self, session_id: str) -> None:
        """A session waits no more."""
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
        """Nobody stands in a line any more."""
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
        """Let those stand in line whose time has come; who they are."""
        woken: list[Session] = []
        while self._put_off and not self._is_ahead(self._put_off[0][0], now):
            waiting = self._first_put_off()
            heappop(self._put_off)
            if waiting is not None:
                self._stand(waiting, level_of(demand_of(waiting.session)))
                woken.append(waiting.session)
        return woken

    def is_due(self, now: float) -> bool:
        """Whether the time of one that is put off has come."""
        due = self.due()
        return due is not None and not self._is_ahead(due, now)

    @staticmethod
    def _is_ahead(until: float, now: float) -> bool:
        return now < until <= now + MOST_PUT_OFF_S

    def due(self) -> float | None:
        """When the next one that is put off may start, Unix seconds."""
        while self._put_off:
            if self._first_put_off() is not None:
                return self._put_off[0][0]
            heappop(self._put_off)
        return None

    def _first_put_off(self) -> Waiting | None:
        """Who is to stand in line next; None where that one left, or was put off anew."""
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
        key = LineKey(request, session.project, session.spec.priority, level)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = QueueClass(key, self._shape_of(request))
            self._shapes.setdefault(line.shape, {})[key] = line
            self._classes.setdefault(line.account, Counter())[line.priority] += 1
        line.add(waiting)
        waiting.line = line
