"""Current and past usage of accounts, for budgets (`budget_usage.py`) and fair shares (`scheduler/fair_share.py`).

An account is a project, or a user for sessions of no other project. Each allocated second counts once, and no counter
is stored: both sums are computed from the attempts of live sessions and from one row of the history's ledger for each
ended attempt. Live sessions are counted by our own state, and their rows skipped; one that leaves the store stays
counted. When the ledger is read again, its rows replace all sessions that had left before the reading began. So the
number of readings, their page size and concurrent changes do not matter.
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
"""Interval of reading an account's ledger again, in case the end of a session was missed."""
RECENT_S: Final = 7200.0
"""Rows up to this age are remembered, since we may see their attempts end only later: the bound of our lag
behind the store, with clocks that differ."""


class _Sums:
    """Usage of an account: for its fair share, and for its budget if it has one."""

    __slots__ = ("_recent", "past", "spent")

    def __init__(self, past: Past | None = None, spent: Spent | None = None) -> None:
        self.past = past
        self.spent = spent
        self._recent: set[tuple[str, int]] = set()

    def ended(self, session_id: str, attempts: Iterable[EndedAttempt]) -> None:
        """Count attempts whose end we have seen."""
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
        """Change the held amount from `at` on; only for fair shares: budgets add running sessions themselves."""
        if self.past is not None:
            self.past.step(gpu_thousandths, at)


class _Followed:
    """A session counted by our own state: its ended attempts, and its running GPUs with their start."""

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
        """Sessions removed during a reading of the ledger; None: there is no reading."""

    def stop(self, followed: _Followed) -> None:
        """End the running part: it is counted as an ended attempt, or from the ledger."""
        self.sums.step(-followed.gpu, followed.since)
        followed.gpu = 0


class Reading:
    """A reading of the ledger for an account.

    Attributes:
        since: its start, in Unix seconds.
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
        """Apply the rows, once all are counted; otherwise the earlier sums stay."""
        for session_id, one in self._account.followed.items():
            self._sums.ended(session_id, one.attempts)
            if one.gpu:
                self._sums.step(one.gpu, one.since)
        self._account.sums = self._sums
        self.is_finished = True


class Accounts:
    """All accounts, updated by changes; nothing here blocks.

    An account is known if it had a session here, or has a record. Until the ledger is read, it is ordered by its live
    usage, and its budget usage is unknown.

    Args:
        held_s: returns the seconds that a placed session has held its devices, at a given time.
        half_life_s: 0: accounts are ordered by their current usage.
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
        """By account, the oldest reading first."""

    def put_project(self, project: Project) -> None:
        """Add or update a project: its share is shown even without sessions."""
        self._account(project.name)
        if project.budget is None:
            self._budgeted.pop(project.name, None)
        else:
            self._budgeted[project.name] = project

    def remove_project(self, name: str) -> None:
        """Remove a project; its sessions may still exist."""
        self._budgeted.pop(name, None)

    def put_session(self, session: Session) -> None:
        """Add or update a session."""
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
        """Remove a session; its charges stay."""
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
        """Read the ledger again for all accounts: sessions may have been missed."""
        for name in self._accounts:
            self._read_again(name)

    @property
    def placed(self) -> int:
        """Number of placed sessions with their start not yet recorded."""
        return len(self._placed)

    def settle(self, now: float, most: int) -> None:
        """Record the start of at most `most` placed sessions; their allocations are known by now."""
        for session_id in list(islice(self._placed, most)):
            session = self._placed.pop(session_id)
            account = self._accounts[_name(session)]
            followed = account.followed[session_id]
            followed.gpu, followed.since = _gpu(session), now - self._held_s(session, now)
            account.sums.step(followed.gpu, followed.since)

    def unread(self, now: float, at: float) -> str | None:
        """Return the most urgent account to read the ledger for; `at`: seconds of a steady clock."""
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
        """Read the ledger for an account; one reading at a time."""
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
        """Whether all relevant usage of an account is counted, not only the live one."""
        return name in self._read_at or not self.half_life_s

    def names(self) -> list[str]:
        """Return the names of all known accounts."""
        return list(self._accounts)

    def holding(self, name: str) -> list[Session]:
        """Return the placed sessions of an account."""
        account = self._accounts.get(name)
        return list(account.holding.values()) if account else []

    def lately(self, name: str, now: float) -> float:
        """Return an account's recent usage, in GPUs; 0 for an unknown one."""
        account = self._accounts.get(name)
        past = account.sums.past if account else None
        return past.lately(now) if past else 0.0

    @property
    def budgeted(self) -> list[str]:
        """The projects with a budget."""
        return list(self._budgeted)

    def counted_since(self, name: str, now: float) -> float | None:
        """Return the start of the current budget period of a project; None if its usage is unknown."""
        project = self._budgeted.get(name)
        spent = self._accounts[name].sums.spent if project else None
        is_known = project and spent and spent.has(project, now)
        return project.period(now)[0] if project and is_known else None

    def used(self, now: float) -> Iterator[Used]:
        """Yield the known usage of each project with a budget."""
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
