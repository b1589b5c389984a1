"""What accounts hold and what they used: of it follow budgets (`budget_usage.py`) and fair shares (`scheduler/fair_share.py`).

An account is a project, or a user for what counts for no other project. Each allocated second counts once, and none is
kept as a counter: both sums follow from the attempts of live sessions and from one row of the history's ledger for each
that ended. Sessions that are live here are counted by what we see of them, and their rows passed over; one that leaves the
store stays counted. When the ledger is read again, its rows count in place of all sessions that had left before the
reading began. So it does not matter how often it is read, in pages of which size, and what happens meanwhile.
"""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import TYPE_CHECKING, Final

from controlplane.scheduler.fair_share import HALF_LIFE_S, Past, counts_since
from controlplane.state.budget_usage import Spent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from controlplane.domain.values import EndedAttempt, Project, Session, Used
    from controlplane.history.values import AttemptCharge

AFRESH_EVERY_S: Final = 3600.0
"""How often the ledger is read again for an account, against an end that was not heard of."""
RECENT_S: Final = 7200.0
"""A row is remembered that is no older, since we may be told of that attempt only later: so far we may be behind the
store, with clocks that differ."""


class _Sums:
    """What an account used: for its fair share, and for its budget if it has one."""

    __slots__ = ("_recent", "past", "spent")

    def __init__(self, past: Past | None = None, spent: Spent | None = None) -> None:
        self.past = past
        self.spent = spent
        self._recent: set[tuple[str, int]] = set()

    def ended(self, session_id: str, attempts: Iterable[EndedAttempt]) -> None:
        """Count attempts that we see end."""
        for one in attempts:
            if (session_id, one.number) not in self._recent:
                self._held(one.gpu_thousandths, one.ended_at - one.held_s, one.ended_at)

    def charged(self, row: AttemptCharge, *, is_recent: bool) -> None:
        """Count a row of the ledger."""
        self._held(row.gpu_thousandths, row.ended_at - row.seconds, row.ended_at)
        if is_recent:
            self._recent.add((row.session_id, row.attempt))

    def _held(self, gpu_thousandths: int, since: float, until: float) -> None:
        for one in (self.past, self.spent):
            if one is not None:
                one.held(gpu_thousandths, since, until)

    def step(self, gpu_thousandths: int, at: float) -> None:
        """From an instant on it holds so much more, or less: budgets look at what runs by themselves."""
        if self.past is not None:
            self.past.step(gpu_thousandths, at)


class _Followed:
    """A session that is counted by what we see of it: its ended attempts, and what runs since when."""

    __slots__ = ("attempts", "gpu", "since")

    def __init__(self) -> None:
        self.attempts: tuple[EndedAttempt, ...] = ()
        self.gpu = 0
        self.since = 0.0


class _Account:
    __slots__ = ("followed", "holding", "left", "sums")

    def __init__(self, past: Past | None) -> None:
        self.sums = _Sums(past)
        self.followed: dict[str, _Followed] = {}
        self.holding: dict[str, Session] = {}
        self.left: set[str] | None = None
        """Sessions that left while the ledger is read; None: it is not."""

    def stop(self, followed: _Followed) -> None:
        """What runs does not any more: it is counted as an ended attempt, or from the ledger."""
        self.sums.step(-followed.gpu, followed.since)
        followed.gpu = 0


class Reading:
    """The ledger is being read for an account.

    Attributes:
        since: from which instant on, Unix seconds.
    """

    def __init__(self, account: _Account, sums: _Sums, *, since: float, now: float) -> None:
        self.since = since
        self._account = account
        self._sums = sums
        self._recently = now - RECENT_S
        self.is_finished = False

    def take(self, rows: Iterable[AttemptCharge]) -> None:
        """Count rows."""
        for row in rows:
            if row.session_id not in self._account.followed:
                self._sums.charged(row, is_recent=row.ended_at > self._recently)

    def finish(self) -> None:
        """All rows were taken; without this what was known before stays."""
        for session_id, one in self._account.followed.items():
            self._sums.ended(session_id, one.attempts)
            if one.gpu:
                self._sums.step(one.gpu, one.since)
        self._account.sums = self._sums
        self.is_finished = True


class Accounts:
    """All of them, kept up by what happens; nothing here waits.

    One is known when it has had a session here, or has a record. Until the ledger was read it is ordered by what is
    live, and what it used of its budget is not known.

    Args:
        held_s: for how long, at an instant, a session that is placed has held its devices.
        half_life_s: 0: accounts are ordered by what they hold now.
    """

    def __init__(
        self, held_s: Callable[[Session, float], float], half_life_s: float = HALF_LIFE_S
    ) -> None:
        self.half_life_s = half_life_s
        self._held_s = held_s
        self._accounts: dict[str, _Account] = {}
        self._budgeted: dict[str, Project] = {}
        self._placed: dict[str, Session] = {}
        self._unread: dict[str, None] = {}
        self._read_at: dict[str, float] = {}
        """By account; whoever was read longest ago comes first."""

    def put_project(self, project: Project) -> None:
        """A project is new or changed: its share is shown, whether it has sessions or not."""
        self._account(project.name)
        if project.budget is None:
            self._budgeted.pop(project.name, None)
        else:
            self._budgeted[project.name] = project

    def remove_project(self, name: str) -> None:
        """A project is no more; its sessions may be."""
        self._budgeted.pop(name, None)

    def put_session(self, session: Session) -> None:
        """A session is new or changed."""
        account = self._account(_name(session))
        before = account.holding.pop(session.id, None)
        is_placed = session.state.holds_devices
        if is_placed:
            account.holding[session.id] = session
        followed = account.followed.get(session.id)
        if followed is None:
            if not is_placed and not session.attempts:
                return
            followed = account.followed[session.id] = _Followed()
        if len(session.attempts) > len(followed.attempts):
            account.sums.ended(session.id, session.attempts[len(followed.attempts) :])
            followed.attempts = session.attempts
        if (session.attempt if is_placed else 0) != (before.attempt if before else 0):
            account.stop(followed)
            self._placed.pop(session.id, None)
            if is_placed:
                self._placed[session.id] = session

    def remove_session(self, session: Session) -> None:
        """A session left; what it is charged for stays."""
        name = _name(session)
        account = self._accounts[name]
        account.holding.pop(session.id, None)
        self._placed.pop(session.id, None)
        if not session.state.is_ended:
            self._read_again(name)
        followed = account.followed.get(session.id)
        if followed is None:
            return
        account.stop(followed)
        if account.left is None:
            del account.followed[session.id]
        else:
            account.left.add(session.id)

    def _account(self, name: str) -> _Account:
        account = self._accounts.get(name)
        if account is None:
            past = Past(self.half_life_s) if self.half_life_s else None
            account = self._accounts[name] = _Account(past)
            self._read_again(name)
        return account

    def _read_again(self, name: str) -> None:
        if self.half_life_s or name in self._budgeted:
            self._unread[name] = None

    def read_all_again(self) -> None:
        """Sessions may have come and gone unseen."""
        for name in self._accounts:
            self._read_again(name)

    @property
    def placed(self) -> int:
        """How many were placed of which it is not noted since when."""
        return len(self._placed)

    def settle(self, now: float, most: int) -> None:
        """Note since when those run that were placed, at most so many; their allocations are known by now."""
        for session_id in list(islice(self._placed, most)):
            session = self._placed.pop(session_id)
            account = self._accounts[_name(session)]
            followed = account.followed[session_id]
            followed.gpu, followed.since = _gpu(session), now - self._held_s(session, now)
            account.sums.step(followed.gpu, followed.since)

    def unread(self, now: float, at: float) -> str | None:
        """An account for which the ledger is to be read, the most urgent first; `at`: a steady clock."""
        for name in self._budgeted:
            if self.counted_since(name, now) is None:
                return name
        for name in self._unread:
            return name
        for name, read_at in self._read_at.items():
            return name if at - read_at >= AFRESH_EVERY_S else None
        return None

    @contextlib.contextmanager
    def reading(self, name: str, now: float, at: float) -> Iterator[Reading]:
        """The ledger is read for an account; one reading at a time."""
        account = self._accounts[name]
        sums, since = _Sums(), now
        if self.half_life_s:
            sums.past, since = Past(self.half_life_s), counts_since(now, self.half_life_s)
        project = self._budgeted.get(name)
        if project is not None and project.budget is not None:
            since = min(since, project.period(now)[0])
            sums.spent = Spent(project, project.budget, since)
        was_unread = name in self._unread
        self._unread.pop(name, None)
        account.left = set()
        reading = Reading(account, sums, since=since, now=now)
        try:
            yield reading
        finally:
            for session_id in account.left:
                account.followed.pop(session_id, None)
            account.left = None
            if reading.is_finished:
                self._read_at.pop(name, None)
                self._read_at[name] = at
            elif was_unread:
                self._unread[name] = None

    def is_known(self, name: str) -> bool:
        """Whether all that counts of what an account used is counted, not only what is live."""
        return name in self._read_at or not self.half_life_s

    def names(self) -> list[str]:
        """The names of all that are known."""
        return list(self._accounts)

    def holding(self, name: str) -> list[Session]:
        """The sessions of an account that are placed."""
        account = self._accounts.get(name)
        return list(account.holding.values()) if account else []

    def lately(self, name: str, now: float) -> float:
        """What one held lately, in GPUs; 0 for one that is not known."""
        account = self._accounts.get(name)
        past = account.sums.past if account else None
        return past.lately(now) if past else 0.0

    @property
    def budgeted(self) -> list[str]:
        """The projects with a budget."""
        return list(self._budgeted)

    def counted_since(self, name: str, now: float) -> float | None:
        """When the present period of a project's budget began; None: what it has used is not known."""
        project = self._budgeted.get(name)
        spent = self._accounts[name].sums.spent if project else None
        is_known = project and spent and spent.has(project, now)
        return project.period(now)[0] if project and is_known else None

    def used(self, now: float) -> Iterator[Used]:
        """What each project with a budget has used by now, where that is known."""
        for name, project in self._budgeted.items():
            account = self._accounts[name]
            spent = account.sums.spent
            if spent is not None and spent.has(project, now):
                running = [(_gpu(one), self._held_s(one, now)) for one in account.holding.values()]
                yield spent.used(project, now, running)


def _name(session: Session) -> str:
    return session.project or session.owner


def _gpu(session: Session) -> int:
    return sum(replica.resources.gpu_thousandths for replica in session.replicas)
