"""What projects hold now, and what they have used of their budgets.

Each allocated second counts once, and none is kept as a counter: what was used is the sum over one
charge for each ended attempt, by session and number, and over the attempts that hold devices. Charges
come from live sessions as they change and from the history's ledger, in any order and as often as one
likes: one that is known is no other one. Of a project without a budget nothing is summed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from controlplane.domain.values import DAY_S, GPU_UNITS, WHOLE_DEVICE, Used

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from controlplane.domain.values import Project, Session
    from controlplane.history.values import AttemptCharge


class Charge(NamedTuple):
    """What an attempt is charged for: `seconds` of so many thousandths of a GPU until `ended_at`."""

    gpu_thousandths: int
    seconds: float
    ended_at: float

    def units(self, since: float, until: float) -> int:
        """What of it lies in a period: see `Used`."""
        begun_at = self.ended_at - self.seconds
        return _units(self.gpu_thousandths, min(self.ended_at, until) - max(begun_at, since))


def _units(gpu_thousandths: int, seconds: float) -> int:
    return gpu_thousandths * round(max(seconds, 0.0) * (GPU_UNITS / WHOLE_DEVICE))


def charge_of(row: AttemptCharge) -> Charge:
    """What a row of the history's ledger says."""
    return Charge(row.gpu_thousandths, row.seconds, row.ended_at)


class _Account:
    """One project with a budget.

    Attributes:
        charges: by session id and attempt.
        known_since: the ledger was read from here on (Unix seconds); None: not yet.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self.charges: dict[tuple[str, int], Charge] = {}
        self.known_since: float | None = None
        self._period = (0.0, 0.0)
        self._ended = 0

    def add(self, key: tuple[str, int], charge: Charge) -> None:
        if key not in self.charges:
            self.charges[key] = charge
            self._ended += charge.units(*self._period)

    def ended(self, period: tuple[float, float]) -> int:
        """What ended attempts used in a period: looked up anew when it is another one."""
        if period != self._period:
            self._period = period
            self._ended = sum(one.units(*period) for one in self.charges.values())
        return self._ended

    def forget(self, since: float) -> None:
        """Let go of what ended a whole period before this one: a clock may be set back a little."""
        if self.project.budget is not None:
            since -= self.project.budget.period_days * DAY_S
        self.charges = {key: one for key, one in self.charges.items() if one.ended_at > since}


class Usage:
    """Kept up by what happens; nothing here waits.

    Args:
        held_s: for how long, at an instant, a session that is placed has held its devices.
    """

    def __init__(self, held_s: Callable[[Session, float], float]) -> None:
        self._held_s = held_s
        self._accounts: dict[str, _Account] = {}
        self._holding: dict[str, dict[str, Session]] = {}

    def holding(self, name: str) -> list[Session]:
        """The sessions of a project that are placed."""
        return list(self._holding.get(name, {}).values())

    def put_session(self, session: Session) -> None:
        """A session is new or changed."""
        account = self._accounts.get(session.project)
        if account is not None:
            _take_attempts(account, session)
        if session.state.holds_devices:
            self._holding.setdefault(session.project, {})[session.id] = session
        else:
            self._release(session)

    def remove_session(self, session: Session) -> None:
        """A session left; what it is charged for stays."""
        self._release(session)

    def _release(self, session: Session) -> None:
        holding = self._holding.get(session.project, {})
        if holding.pop(session.id, None) and not holding:
            del self._holding[session.project]

    def put_project(self, project: Project, live: Iterable[Session]) -> None:
        """A project is new or changed; `live`: all sessions."""
        known = self._accounts.get(project.name)
        if project.budget is None:
            self._accounts.pop(project.name, None)
        elif known is not None:
            known.project = project
        else:
            account = self._accounts[project.name] = _Account(project)
            for session in live:
                if session.project == project.name:
                    _take_attempts(account, session)

    def remove_project(self, name: str) -> None:
        """A project is no more."""
        self._accounts.pop(name, None)

    def unknown(self, now: float) -> dict[str, float]:
        """Projects of whose present period the ledger was not read, and since when it begins."""
        return {
            name: since
            for name, account in self._accounts.items()
            for since in [account.project.period(now)[0]]
            if account.known_since is None or since < account.known_since
        }

    def periods(self, now: float) -> dict[str, tuple[float, float]]:
        """The present period of each project with a budget."""
        return {name: account.project.period(now) for name, account in self._accounts.items()}

    def learn(self, name: str, since: float, charges: Mapping[tuple[str, int], Charge]) -> None:
        """Take what the ledger has of a project since an instant; all of it."""
        account = self._accounts.get(name)
        if account is None:
            return
        account.forget(since)
        for key, charge in charges.items():
            account.add(key, charge)
        account.known_since = since

    def used(self, now: float) -> Iterator[Used]:
        """What each project with a budget has used by now, where that is known."""
        for name, account in self._accounts.items():
            since, until = account.project.period(now)
            if account.known_since is not None and account.known_since <= since:
                live = sum(
                    _units(_gpu(one), min(self._held_s(one, now), now - since))
                    for one in self._holding.get(name, {}).values()
                )
                units = account.ended((since, until)) + live
                yield Used(project=name, gpu_units=units, since=since, until=until)


def _gpu(session: Session) -> int:
    return sum(replica.resources.gpu_thousandths for replica in session.replicas)


def _take_attempts(account: _Account, session: Session) -> None:
    for one in session.attempts:
        account.add((session.id, one.number), Charge(one.gpu_thousandths, one.held_s, one.ended_at))
