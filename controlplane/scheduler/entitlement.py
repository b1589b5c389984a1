"""Whether a project lets a session start: its quota (at one time) and its budget (per period); and teams' quotas.

Quota: a limit of the resources of its running sessions together, and of each member's. Budget: GPU
time per period (2018 paper, 3.4.1; 2022 paper, "NSML budget system"). If it is used up, no session starts;
running ones continue, and are charged. A session without a GPU uses none of it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.changes import (
    PastChanged,
    ProjectChanged,
    ProjectRemoved,
    TeamQuotaChanged,
    TeamQuotaRemoved,
    UsedChanged,
)
from controlplane.domain.policy import viewers_may_see
from controlplane.domain.values import DAY_S, WHOLE_DEVICE
from controlplane.scheduler.fair_share import share_of
from controlplane.scheduler.fit import DEFAULT_CPU_THOUSANDTHS, DEFAULT_MEMORY_BYTES
from controlplane.scheduler.team_quotas import TeamQuotas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from controlplane.domain.plan import FairShare
    from controlplane.domain.values import Project, Quota, Session, TeamQuota, Used
    from controlplane.scheduler.fit import Request
    from controlplane.scheduler.team_quotas import Shortage

_HOUR_S: Final = 3600
_MEASURES: Final = {
    "gpu_thousandths": ("GPU", "GPUs", WHOLE_DEVICE),
    "cpu_thousandths": ("core", "cores", 1000),
    "memory_bytes": ("GiB of memory", "GiB of memory", 1 << 30),
    "sessions": ("session", "sessions", 1),
}
"""For each measure of a quota: singular, plural, and units in one."""


class Claim(NamedTuple):
    """Resources of one or several running sessions; fields as those of a quota."""

    gpu_thousandths: int = 0
    cpu_thousandths: int = 0
    memory_bytes: int = 0
    sessions: int = 0


Bounds = tuple[tuple[int, int], ...]
"""The set limits of a quota: the index of the measure in a claim, and the limit."""


def bounds_of(quota: Quota) -> Bounds:
    """Return the set limits of a quota."""
    found = ((place, getattr(quota, measure)) for place, measure in enumerate(_MEASURES))
    return tuple((place, bound) for place, bound in found if bound)


def over(bounds: Bounds, held: Sequence[int], claim: Claim) -> tuple[str, int]:
    """Return the first measure in which `claim` plus `held` exceeds its limit, and the limit; ("", 0) if none."""
    for place, bound in bounds:
        if claim[place] and held[place] + claim[place] > bound:
            return Claim._fields[place], bound
    return "", 0


def claim_of(request: Request) -> Claim:
    """Return a session's maximum resources: defaults for cores and memory that it does not request."""
    count = request.replica_count
    return Claim(
        request.gpu_thousandths * count,
        (request.cpu_thousandths or DEFAULT_CPU_THOUSANDTHS) * count,
        (request.memory_bytes or DEFAULT_MEMORY_BYTES) * count,
        1,
    )


def held_by(session: Session) -> Claim:
    """Return the resources of a placed session."""
    replicas = session.replicas
    if len(replicas) == 1:
        one = replicas[0].resources
        return Claim(one.gpu_thousandths, one.cpu_thousandths, one.memory_bytes, 1)
    parts = [replica.resources for replica in replicas]
    return Claim(
        sum(one.gpu_thousandths for one in parts),
        sum(one.cpu_thousandths for one in parts),
        sum(one.memory_bytes for one in parts),
        1,
    )


def never(project: Project, claim: Claim) -> str:
    """Return why a session can never start in a project, whatever ends; "" if it can."""
    for quota, each in ((project.quota, ""), (project.member_quota, "each member of ")):
        measure, bound = over(bounds_of(quota), Claim(), claim)
        if measure:
            asked = amount(measure, getattr(claim, measure))
            most = amount(measure, bound)
            return f"asks for {asked}; {each}project {project.name} may hold {most} at once"
    return ""


def never_in_team(quota: TeamQuota, gpu_thousandths: int) -> str:
    """Return why a session of a competition's team can never start: it asks for more than the team's quota."""
    asked = amount("gpu_thousandths", gpu_thousandths)
    most = amount("gpu_thousandths", quota.gpu_thousandths)
    return f"asks for {asked}; a team of competition {quota.competition} may hold {most} at once"


def exhausted(project: Project, claim: Claim, used: Used | None) -> str:
    """Return why a project's budget bars a session; "" if it does not. `used` None: not yet known."""
    if project.budget is None or not claim.gpu_thousandths:
        return ""
    if used is None:
        return f"what project {project.name} has used of its budget is being counted"
    if used.gpu_seconds < project.budget.gpu_seconds:
        return ""
    spent, whole = gpu_hours(used.gpu_seconds), gpu_hours(project.budget.gpu_seconds)
    until = date_text(used.until)
    return f"project {project.name} has used {spent} of {whole} GPU-hours until {until}"


def amount(measure: str, count: int) -> str:
    """Format an amount: "8 GPUs", "1 session", "2.5 GiB of memory"."""
    one, several, unit = _MEASURES[measure]
    return f"{_number(count, unit)} {one if count == unit else several}"


def gpu_hours(seconds: float) -> str:
    """Format GPU-seconds in GPU-hours: "100", "0.5", "0.0012"."""
    hours = seconds / _HOUR_S
    return f"{round(hours, 2 if hours >= 1 else 4):,}".removesuffix(".0")


def date_text(seconds: float) -> str:
    """Format an instant in UTC: "2026-12-01", with the time of day unless it is midnight."""
    days, rest = divmod(int(seconds), DAY_S)
    hour, minute = divmod(rest // 60, 60)
    return f"{_date(days)} {hour:02}:{minute:02} UTC" if rest else _date(days)


def _date(days: int) -> str:
    """Format a day, counted from 1970-01-01: Hinnant, "chrono-compatible low-level date algorithms".

    Its years begin in March, so that the leap day is the last one.
    """
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5 - 1
    year += 400 * era + month // 10
    return f"{year:04}-{(month + 2) % 12 + 1:02}-{day:02}"


def _number(count: int, unit: int) -> str:
    return f"{round(count / unit, 3):,}".removesuffix(".0")


_ANY_GPU: Final = Claim(gpu_thousandths=1)


class Holder:
    """A session that holds resources, and its account."""

    __slots__ = ("account", "claim", "session")

    def __init__(self, session: Session, claim: Claim, account: Account) -> None:
        self.session = session
        self.claim = claim
        self.account = account


class Account:
    """One project, or a user without a project: its limits, and sums of its sessions' resources.

    Attributes:
        project: None without a record.
        members: sums by member; only if there is a member quota.
        holders: its sessions that hold resources, by id.
        is_used_up: whether its budget bars sessions with GPUs; also while its use is unknown.
        weight: of its fair share, more than 0.
        lately: its recent use, as a decaying average, in GPUs.
    """

    __slots__ = (
        "bounds",
        "held",
        "holders",
        "is_used_up",
        "lately",
        "member_bounds",
        "members",
        "name",
        "project",
        "used",
        "weight",
    )

    def __init__(self, name: str, lately: float = 0.0) -> None:
        self.name = name
        self.lately = lately
        self.weight = 1.0
        self.project: Project | None = None
        self.used: Used | None = None
        self.is_used_up = False
        self.bounds: Bounds = ()
        self.member_bounds: Bounds = ()
        self.held = [0, 0, 0, 0]
        self.members: dict[str, list[int]] = {}
        self.holders: dict[str, Holder] = {}

    def set(self, project: Project | None) -> None:
        """Set its record; None: there is none."""
        if _calendar(project) != _calendar(self.project):
            self.used = None
        self.project = project
        self.weight = project.weight if project else 1.0
        self.bounds = bounds_of(project.quota) if project else ()
        self.member_bounds = bounds_of(project.member_quota) if project else ()
        self.members = {}
        if self.member_bounds:
            for one in self.holders.values():
                self.add_member(one.session.owner, one.claim, 1)

        self._look_at_budget()

    def set_used(self, used: Used) -> None:
        """Set its use of its budget."""
        self.used = used
        self._look_at_budget()

    @property
    def share(self) -> float:
        """Its fair share; the rule is inlined here, since every placement needs it."""
        return (self.held[0] / WHOLE_DEVICE + self.lately) / self.weight

    def bars(self, name: str, owner: str, claim: Claim) -> bool:
        """Return whether it bars a session of the project `name` now; every placement calls this."""
        project = self.project
        if project is None:
            return name not in ("", owner)
        if owner not in project.members or (self.is_used_up and claim.gpu_thousandths):
            return True
        if not (self.bounds or self.member_bounds):
            return False
        return bool(
            over(self.bounds, self.held, claim)[0]
            or over(self.member_bounds, self.held_of(owner), claim)[0]
        )

    def _look_at_budget(self) -> None:
        self.is_used_up = self.project is not None and bool(
            exhausted(self.project, _ANY_GPU, self.used)
        )

    def drop(self, holder: Holder) -> None:
        """Remove a session that holds nothing any more."""
        del self.holders[holder.session.id]
        _sum(self.held, holder.claim, -1)
        if self.member_bounds:
            self.add_member(holder.session.owner, holder.claim, -1)

    def add_member(self, owner: str, claim: Claim, sign: int) -> None:
        """Add a claim to a member's sum, or subtract it."""
        _sum(self.members.setdefault(owner, [0, 0, 0, 0]), claim, sign)

    def held_of(self, member: str) -> Sequence[int]:
        """Return the resources of a member's sessions."""
        return self.members.get(member, Claim())


def _sum(held: list[int], claim: Claim, sign: int) -> None:
    # No loop: this runs for each end, and a loop takes twice as long.
    gpu, cpu, memory, sessions = claim
    held[0] += sign * gpu
    held[1] += sign * cpu
    held[2] += sign * memory
    held[3] += sign * sessions


class Entitlements:
    """Limits and use of all projects, and of competitions' teams, updated by changes.

    A project without a record is its user's own, without limits.

    Attributes:
        revision: grows when a barred session may be able to start.
        teams: quotas of teams.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.teams = TeamQuotas()
        self._accounts: dict[str, Account] = {}
        self._holders: dict[str, Holder] = {}
        self._owners: Counter[str] = Counter()
        self._lately: Mapping[str, float] = {}

    def apply(
        self,
        change: ProjectChanged
        | ProjectRemoved
        | UsedChanged
        | PastChanged
        | TeamQuotaChanged
        | TeamQuotaRemoved,
    ) -> None:
        """Apply a change."""
        match change:
            case PastChanged(lately=lately):
                self._lately = lately
                for name, account in self._accounts.items():
                    account.lately = lately.get(name, 0.0)
            case ProjectChanged(project=project):
                self.set_project(project)
            case ProjectRemoved(name=name):
                self.remove_project(name)
            case UsedChanged(used=used):
                self.set_used(used)
            case TeamQuotaChanged() | TeamQuotaRemoved():
                self.teams.apply(change)
                self.revision += 1

    def lacks(
        self, change: ProjectChanged | ProjectRemoved | TeamQuotaChanged | TeamQuotaRemoved
    ) -> bool:
        """Return whether the record in a change differs from the known one."""
        if isinstance(change, TeamQuotaChanged | TeamQuotaRemoved):
            return self.teams.lacks(change)
        if isinstance(change, ProjectRemoved):
            return self.project(change.name) is not None
        return self.project(change.project.name) != change.project

    def project(self, name: str) -> Project | None:
        """Return a project's record, if any."""
        account = self._accounts.get(name)
        return account.project if account else None

    def projects(self) -> list[str]:
        """List the names of projects with a record."""
        return [name for name, account in self._accounts.items() if account.project]

    def set_project(self, project: Project) -> None:
        """Add or update a project; also when the next period of its budget begins."""
        self._registered(project.name).set(project)
        self.revision += 1

    def remove_project(self, name: str) -> None:
        """Remove a project's record."""
        account = self._accounts.get(name)
        if account is not None:
            account.set(None)
            if not account.holders:
                del self._accounts[name]
        self.revision += 1

    def set_used(self, used: Used) -> None:
        """Set a project's use of its budget."""
        self._registered(used.project).set_used(used)

    def hold(self, session: Session, claim: Claim) -> None:
        """Set the resources of a session."""
        name = session.project or session.owner
        known = self._holders.get(session.id)
        if known is not None:
            if (
                known.claim == claim
                and known.account.name == name
                and known.session.owner == session.owner
                and known.session.competition_teams == session.competition_teams
            ):
                known.session = session
                if session.competition_teams:
                    self.teams.hold(session, claim.gpu_thousandths)
                return
            self.release(session.id)
        self.start(session, claim, self.account(name))

    def start(self, session: Session, claim: Claim, account: Account) -> None:
        """Set the resources of a session that held nothing, and charge it to this account."""
        holders, session_id = account.holders, session.id
        if not holders:
            self._accounts[account.name] = account
        holders[session_id] = self._holders[session_id] = Holder(session, claim, account)
        self._owners[session.owner] += 1
        # `_sum` inlined: this runs for each placement.
        held = account.held
        gpu, cpu, memory, sessions = claim
        held[0] += gpu
        held[1] += cpu
        held[2] += memory
        held[3] += sessions
        if account.member_bounds:
            account.add_member(session.owner, claim, 1)
        if session.competition_teams:
            self.teams.hold(session, gpu)

    def release(self, session_id: str) -> None:
        """Remove a session that holds nothing any more."""
        holder = self._holders.pop(session_id, None)
        if holder is None:
            return
        account = holder.account
        account.drop(holder)
        self._owners[holder.session.owner] -= 1
        if holder.session.competition_teams:
            self.teams.release(session_id)
            self.revision += 1
        if account.project is not None:
            self.revision += 1
        elif not account.holders:
            del self._accounts[account.name]

    def account(self, name: str) -> Account:
        """Return an account; one without a record is created by its first session, until then it is temporary."""
        return self._accounts.get(name) or Account(name, self._lately.get(name, 0.0))

    def _registered(self, name: str) -> Account:
        account = self._accounts[name] = self.account(name)
        return account

    def share(self, name: str) -> float:
        """Return the fair share of an account."""
        return self.account(name).share

    def share_of(self, name: str) -> FairShare:
        """Return the same with its components."""
        account = self.account(name)
        held = account.held[0] / WHOLE_DEVICE
        return share_of(name, held=held, lately=account.lately, weight=account.weight)

    def holding(self, name: str) -> float:
        """Return the current GPUs of an account per weight."""
        account = self.account(name)
        return account.held[0] / WHOLE_DEVICE / account.weight

    def weight(self, name: str) -> float:
        """Return the weight of an account's fair share, more than 0."""
        return self.account(name).weight

    def has_nothing(self, owner: str) -> bool:
        """Return whether a user holds nothing at all."""
        return not self._owners[owner]

    def holds(self, session_id: str) -> bool:
        """Return whether a session holds resources."""
        return session_id in self._holders

    def bars(self, name: str, owner: str, claim: Claim, teams: Sequence[str] = ()) -> bool:
        """Return whether a project, or the quota of a team, bars a session now."""
        return self.account(name or owner).bars(name, owner, claim) or (
            bool(teams) and self.teams.bars(teams, claim.gpu_thousandths)
        )

    def refusal(self, session: Session, claim: Claim) -> str:
        """Return why a session's project or team bars it, for viewers of the session; "" if none does."""
        return self._project_refusal(session, claim) or self._team_refusal(session, claim)

    def _team_refusal(self, session: Session, claim: Claim) -> str:
        teams, gpus = session.competition_teams, claim.gpu_thousandths
        if (small := self.teams.never(teams, gpus)) is not None:
            return never_in_team(small, gpus)
        short = self.teams.short(teams, gpus)
        return _team_full(short, session, gpus) if short is not None else ""

    def _project_refusal(self, session: Session, claim: Claim) -> str:
        name, owner = session.project or session.owner, session.owner
        account = self._accounts.get(name)
        if account is None or account.project is None:
            return "" if name == owner else f"there is no project {name} any more"
        if owner not in account.project.members:
            return f"{owner} is no member of project {name} any more"
        return (
            never(account.project, claim)
            or _full(account, session, claim)
            or exhausted(account.project, claim, account.used)
        )

    def sessions(self, name: str) -> list[Session]:
        """List an account's sessions that hold resources."""
        account = self._accounts.get(name)
        return [one.session for one in account.holders.values()] if account else []

    def holder(self, session_id: str) -> Session | None:
        """Return the session of an id, if it holds resources."""
        known = self._holders.get(session_id)
        return known.session if known else None

    def short(self, session: Session, claim: Claim) -> tuple[str, list[tuple[Session, int]]]:
        """Return the measure in which a quota is short for a session, and the holders with amounts; ("", []) if none."""
        if self.can_never_start(session, claim):
            return "", []
        if self._project_refusal(session, claim):
            return self._short_in_project(session, claim)
        short = self.teams.short(session.competition_teams, claim.gpu_thousandths)
        return ("gpu_thousandths", list(short.holders)) if short is not None else ("", [])

    def _short_in_project(
        self, session: Session, claim: Claim
    ) -> tuple[str, list[tuple[Session, int]]]:
        account = self._accounts.get(session.project or session.owner)
        if account is None or account.project is None:
            return "", []
        if session.owner not in account.project.members:
            return "", []
        measure, _, _, among = _short(account, session, claim)
        if not measure:
            return "", []
        place = Claim._fields.index(measure)
        return measure, [
            (one.session, one.claim[place]) for one in _holders(account, among) if one.claim[place]
        ]

    def opens_at(self, session: Session, claim: Claim, ends: Callable[[Session], float]) -> float:
        """Return when quotas and budget let a session start at the latest, by the ends of their holders; 0: unknown.

        Args:
            session: a queued session.
            claim: what it would hold.
            ends: returns the latest end of a session, Unix seconds; 0 if unbounded.
        """
        opens: list[float] = []
        if self._project_refusal(session, claim):
            opens.append(self._project_opens_at(session, claim, ends))
        by_team = self.teams.opens_at(session.competition_teams, claim.gpu_thousandths, ends)
        if by_team is not None:
            opens.append(by_team)
        return max(opens) if opens and all(opens) else 0.0

    def _project_opens_at(
        self, session: Session, claim: Claim, ends: Callable[[Session], float]
    ) -> float:
        name, owner = session.project or session.owner, session.owner
        account = self._accounts.get(name)
        if account is None or account.project is None or owner not in account.project.members:
            return 0.0
        renews_at = self.renews_at(session, claim)
        is_used_up = bool(exhausted(account.project, claim, account.used))
        if never(account.project, claim) or (is_used_up and not renews_at):
            return 0.0
        if not _short(account, session, claim)[0]:
            return renews_at
        held, of_member = list(account.held), list(account.held_of(owner))
        leaving = (
            (ends(one.session), one.session.id, one.session.owner, one.claim)
            for one in account.holders.values()
        )
        for at, _, of, its in sorted(one for one in leaving if one[0]):
            _sum(held, its, -1)
            if of == owner and account.member_bounds:
                _sum(of_member, its, -1)
            is_full = over(account.bounds, held, claim)[0]
            if not is_full and not over(account.member_bounds, of_member, claim)[0]:
                return max(at, renews_at)
        return 0.0

    def renews_at(self, session: Session, claim: Claim) -> float:
        """Return when the next period of a used-up budget that bars a session begins; 0: none does."""
        account = self._accounts.get(session.project or session.owner)
        if account is None or account.project is None or account.used is None:
            return 0.0
        return account.used.until if exhausted(account.project, claim, account.used) else 0.0

    def can_never_start(self, session: Session, claim: Claim) -> bool:
        """Return whether a session could not start even if nothing else ran."""
        project = self.project(session.project or session.owner)
        if project is not None and never(project, claim):
            return True
        return self.teams.never(session.competition_teams, claim.gpu_thousandths) is not None


def _calendar(project: Project | None) -> tuple[float, ...] | None:
    """Return the values that define the periods of a project's budget."""
    if project is None or project.budget is None:
        return None
    return (project.budget.period_days, project.budget.anchor, project.created_at)


def _short(account: Account, session: Session, claim: Claim) -> tuple[str, int, Sequence[int], str]:
    """Return the first short measure of a quota, its limit, the held sum, and the member ("": all members)."""
    measure, bound = over(account.bounds, account.held, claim)
    if measure:
        return measure, bound, account.held, ""
    held = account.held_of(session.owner)
    measure, bound = over(account.member_bounds, held, claim)
    return measure, bound, held, session.owner


def _holders(account: Account, among: str) -> list[Holder]:
    return [one for one in account.holders.values() if among in ("", one.session.owner)]


def _full(account: Account, session: Session, claim: Claim) -> str:
    """Say which quota is short, and who holds the most of it."""
    name = session.project or session.owner
    measure, bound, held, among = _short(account, session, claim)
    if not measure:
        return ""
    if among:
        words = f"{among} holds {{}} of {{}} in project {name}"
    else:
        words = f"project {name} holds {{}} of its {{}}"
    place, unit = Claim._fields.index(measure), _MEASURES[measure][2]
    text = words.format(_number(held[place], unit), amount(measure, bound))
    if held[place] < bound:
        text += f", and this asks for {amount(measure, claim[place])}"
    if measure == "sessions":
        return text
    holders = ((one.session, one.claim[place]) for one in _holders(account, among))
    return text + _most_words(session, holders, unit)


def _team_full(short: Shortage, session: Session, gpus: int) -> str:
    """Say which team holds its quota, and who holds the most of it."""
    most = amount("gpu_thousandths", short.quota.gpu_thousandths)
    held = _number(short.held, WHOLE_DEVICE)
    text = f"team {short.team} holds {held} of {most} of competition {short.quota.competition}"
    if short.held < short.quota.gpu_thousandths:
        text += f", and this asks for {amount('gpu_thousandths', gpus)}"
    return text + _most_words(session, short.holders, WHOLE_DEVICE)


def _most_words(session: Session, holders: Iterable[tuple[Session, int]], unit: int) -> str:
    """Say who holds the most of a quota, by name to those who may see both; "": nobody holds any."""
    most, its = max(holders, key=lambda one: (one[1], one[0].id), default=(session, 0))
    if not its:
        return ""
    who = most.name if viewers_may_see(session, most) else most.owner
    return f"; {who} holds {_number(its, unit)} of them"
