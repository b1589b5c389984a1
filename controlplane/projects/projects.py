"""Projects: creating, changing, removing; and rights to submit in them.

Any control plane does this, leader or not: every change is one transaction that compares its
inputs; after a lost race it is decided again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from controlplane.access.unknown_users import unknown_user
from controlplane.core.compare_and_swap import TRIES, commit_at
from controlplane.domain.errors import (
    AlreadyExists,
    Denied,
    InvalidRequest,
    NotFound,
    OverQuota,
    StateConflict,
    StillLive,
    TooLarge,
    Unavailable,
)
from controlplane.domain.identity import UserCaller
from controlplane.domain.names import check_project, check_user
from controlplane.domain.policy import ADMINISTER, ALLOW, CHANGE, HIDE, PLATFORM, SEE, may
from controlplane.domain.values import WHOLE_DEVICE, Budget, Priority, Project, Quota
from controlplane.limits.reserved_names import check_not_reserved
from controlplane.scheduler import request_of
from controlplane.scheduler.entitlement import claim_of, never
from controlplane.scheduler.fit import DEFAULT_CPU_THOUSANDTHS, DEFAULT_MEMORY_BYTES
from controlplane.store.interface import (
    Delete,
    Put,
    absent,
    unchanged,
)
from controlplane.stored import etcd_codec
from nsml.common.shell import shell_word
from nsml.common.units import moment
from nsml.spec.checkpoint_retention import EXAMPLE, canonical, canonical_request

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from controlplane.core.infeasible import Alternatives
    from controlplane.domain.identity import User
    from controlplane.domain.values import SessionSpec
    from controlplane.scheduler import Request
    from controlplane.state.live_state import LiveState
    from controlplane.store.interface import Compare, KeyValueStore
    from nsml.common.clock import Clock

MOST_PROJECTS: Final = 1_000
MOST_MEMBERS: Final = 1_000
MOST_AT_ONCE: Final = 50
"""Maximum members in one change: each is compared in its transaction."""
MOST_GPU_SECONDS: Final = 1e6 * 365 * 86_400
MOST_PERIOD_DAYS: Final = 3_660
DEFAULT_PERIOD_DAYS: Final = 30
MOST_WEIGHT: Final = 1_000.0
MOST_COUNT: Final = 1 << 62
LATEST_S: Final = 1e11

_log = structlog.get_logger()


class Users(Protocol):
    """The existing users."""

    async def there(self, name: str) -> Compare:
        """Return the condition that this user still exists; NotFound if there is none."""
        ...

    async def nobody(self, name: str) -> Compare:
        """Return the condition that there is no such user; AlreadyExists if there is one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """A requested budget; None: unchanged, or the default."""

    gpu_seconds: float | None = None
    period_days: int | None = None
    anchor: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectSettings:
    """Requested settings; None, and omitted measures of quotas: unchanged."""

    owner: str | None = None
    quota: dict[str, int] = field(default_factory=dict)
    member_quota: dict[str, int] = field(default_factory=dict)
    budget: BudgetSettings | None = None
    without_budget: bool = False
    weight: float | None = None
    most_priority: Priority | None = None
    keep_checkpoints: str | None = None
    kept_bytes: int | None = None
    keep_files: str | None = None


class Projects:
    """The projects with a record."""

    def __init__(
        self, *, store: KeyValueStore, state: LiveState, users: Users, clock: Clock
    ) -> None:
        self._store = store
        self._state = state
        self._users = users
        self._clock = clock

    async def create(
        self, name: str, settings: ProjectSettings, members: Collection[str]
    ) -> Project:
        """Make a project.

        Raises:
            InvalidRequest: the name or a setting.
            NotFound: a member is no user.
            AlreadyExists: there is one, or a user of that name who is not its owner.
            TooLarge: too many projects, or members.
        """
        check_project(name)
        if settings.owner != name:  # the user of that name may have it already
            check_not_reserved(name, "project")
        _check_members(members)
        self._check_count()
        now = self._clock.time()
        bare = Project(name=name, members=frozenset(members), created_at=now)
        made = changed(bare, settings, now)
        for _ in range(TRIES):
            if self._state.project(name) is not None:
                raise AlreadyExists(f"project {name} exists", attempt=f"nsml project show {name}")
            compares = [await self._users.there(one) for one in sorted(made.members)]
            if made.owner != name:
                compares.append(await self._users.nobody(name))
            if await self._write(made, [absent(etcd_codec.project_key(name)), *compares]):
                _log.info("project.created", project=name, owner=made.owner)
                return made
        raise _busy(name)

    async def update(self, name: str, settings: ProjectSettings) -> Project:
        """Change settings; a user's own project without a record gets one.

        Raises:
            NotFound: there is no such project, or the owner is no user.
            InvalidRequest: a setting.
            TooLarge: it has no record, and there are too many records.
        """
        now = self._clock.time()
        new = [settings.owner] if settings.owner else []
        return await self._change(name, lambda known: changed(known, settings, now), new)

    async def change_members(
        self, name: str, *, add: Collection[str], remove: Collection[str], asked_by: UserCaller
    ) -> tuple[Project, frozenset[str]]:
        """Add and remove members; return also the names without a change.

        Raises:
            NotFound: there is no such project that the caller sees, or a new member is no user.
            Denied: the caller is neither its owner nor an administrator.
            StateConflict: the owner is to be removed.
            TooLarge: too many at once, or in total.
        """
        _check_members({*add, *remove})
        before: frozenset[str] = frozenset()

        def decide(known: Project) -> Project:
            nonlocal before
            answer = may(asked_by, CHANGE, known)
            if answer is HIDE:  # the caller was removed meanwhile
                raise self._unseen(name, asked_by)
            if answer is not ALLOW:
                raise Denied(
                    f"you are not the owner of project {name}",
                    why=f"{known.owner or 'nobody'} is",
                    attempt="ask them, or an administrator",
                )
            if known.owner in remove:
                raise StateConflict(
                    f"{known.owner} owns project {name}",
                    why="its owner is one of its members",
                    attempt=f"nsml project set {name} --owner USER    first"
                    if may(asked_by, ADMINISTER, PLATFORM) is ALLOW
                    else "an administrator names another owner first",
                )
            before = known.members
            members = (before | set(add)) - set(remove)
            if len(members) > MOST_MEMBERS:
                raise TooLarge(f"a project has at most {MOST_MEMBERS} members")
            return replace(known, members=members)

        if may(asked_by, ADMINISTER, PLATFORM) is not ALLOW:
            self.visible(name, asked_by)
        made = await self._change(name, decide, add, asked_by)
        return made, frozenset({*add, *remove} - (before ^ made.members))

    async def delete(self, name: str) -> None:
        """Remove a project.

        Raises:
            NotFound: there is none.
            StillLive: it has queued or running sessions.
            StoreError: the store does not answer.
        """
        # Submissions compare only the project's record: earlier ones must be visible here.
        await self._state.catch_up((await self._store.list(etcd_codec.CLUSTER)).revision)
        for _ in range(TRIES):
            known, revision = self._stored(name)
            live = [
                one.value
                for one in self._state.sessions.values()
                if one.value.project == name and not one.value.state.is_ended
            ]
            if live and known.name != known.owner:
                raise StillLive(
                    f"project {name} has sessions that wait or run: {len(live)}",
                    attempt=f"nsml project show {name}\nnsml stop SESSION",
                )
            key = etcd_codec.project_key(name)
            if await self._commit([unchanged(key, revision)], Delete(key=key), key):
                _log.info("project.deleted", project=name)
                return
        raise _busy(name)

    async def forget_user(self, name: str) -> None:
        """Remove a deleted user from all projects, and the user's own project.

        Raises:
            StoreError: the store does not answer.
        """
        # From the store: the watch may not have reported a new member yet.
        for item in (await self._store.list(etcd_codec.PROJECTS)).items:
            self._state.put(item.key, item.value, item.mod_revision)
        for project in list(self._state.projects):
            await self._forget(project, name)

    async def _forget(self, project: str, user: str) -> None:
        key = etcd_codec.project_key(project)
        for _ in range(TRIES):
            stored = self._state.projects.get(project)
            if stored is None or user not in stored.value.members:
                return
            known = stored.value
            owner = "" if known.owner == user else known.owner
            left = replace(known, members=known.members - {user}, owner=owner)
            is_theirs = project == user and not left.members
            write = (
                Delete(key=key)
                if is_theirs
                else Put(key=key, value=etcd_codec.encode_project(left))
            )
            if await self._commit([unchanged(key, stored.revision)], write, key):
                _log.info("project.changed", project=project)
                return
        raise _busy(project)

    def visible(self, name: str, who: UserCaller) -> Project:
        """Return a project that the caller may see, their own also without a record; NotFound for any other."""
        known = self._state.project(name)
        if known is None and name == who.user.name:
            return Project(name=name, owner=name, members=frozenset({name}))
        if known is None or may(who, SEE, known) is not ALLOW:
            raise self._unseen(name, who)
        return known

    def _unseen(self, name: str, who: UserCaller) -> NotFound:
        return _no_project(name, _usable(self._state, who.user), "nsml project ls")

    async def check_known(self, name: str, who: UserCaller) -> None:
        """Raise NotFound for a project that the caller may not see, as for a missing one.

        Administrators see all users, and therefore their own projects without a record.
        """
        try:
            self.visible(name, who)
        except NotFound as unknown:
            if may(who, ADMINISTER, PLATFORM) is not ALLOW:
                raise
            try:
                await self._users.there(name)
            except NotFound:
                raise unknown from None

    def every(self, who: UserCaller, *, after: str = "") -> list[Project]:
        """Return the projects that the caller may see, by name; those behind `after`."""
        names = sorted(name for name in self._state.projects if name > after)
        known = (self._state.projects[name].value for name in names)
        return [one for one in known if may(who, SEE, one) is ALLOW]

    def _stored(self, name: str) -> tuple[Project, int]:
        stored = self._state.projects.get(name)
        if stored is None:
            raise _not_stored(name)
        return stored.value, stored.revision

    async def _stored_or_own(
        self, name: str, asked_by: UserCaller | None
    ) -> tuple[Project, Sequence[Compare]]:
        """Return a project, and a check that it is unchanged; for administrators also a user's own without a record.

        Its name may be reserved for the platform: the user has it already.
        """
        key = etcd_codec.project_key(name)
        stored = self._state.projects.get(name)
        if stored is not None:
            return stored.value, [unchanged(key, stored.revision)]
        try:
            there = await self._users.there(check_project(name))
        except NotFound:
            raise _not_stored(name) from None
        if asked_by is not None and may(asked_by, ADMINISTER, PLATFORM) is not ALLOW:
            raise StateConflict(
                f"project {name} is your own, and has no members but you",
                why="only administrators make it one with members",
                attempt=f"ask an administrator for: nsml project create {name} --owner {name}",
            )
        self._check_count()
        now = self._clock.time()
        own = Project(name=name, owner=name, members=frozenset({name}), created_at=now)
        return own, [absent(key), there]

    def _check_count(self) -> None:
        if len(self._state.projects) >= MOST_PROJECTS:
            raise TooLarge(f"there are {MOST_PROJECTS} projects", attempt="nsml project rm NAME")

    async def _change(
        self,
        name: str,
        decide: Callable[[Project], Project],
        new: Collection[str] = (),
        asked_by: UserCaller | None = None,
    ) -> Project:
        """Write `decide`'s change of a project; `new` are its new members.

        `asked_by`: None for an administrator.
        """
        for _ in range(TRIES):
            known, holds = await self._stored_or_own(name, asked_by)
            made = decide(known)
            if made == known:
                return made
            strangers = sorted({*new} - known.members)
            there = [await there_for(asked_by, self._users, one) for one in strangers]
            if await self._write(made, [*holds, *there]):
                _log.info("project.changed", project=name)
                return made
        raise _busy(name)

    async def _write(self, project: Project, compares: Sequence[Compare]) -> bool:
        key = etcd_codec.project_key(project.name)
        put = Put(key=key, value=etcd_codec.encode_project(project))
        return await self._commit(compares, put, key)

    async def _commit(self, compares: Sequence[Compare], write: Put | Delete, key: str) -> bool:
        return await commit_at(self._store, self._state, key, compares, write)


async def there_for(who: UserCaller | None, users: Users, name: str) -> Compare:
    """Return the condition that a user still exists; NotFound, without a command that the caller may not run.

    `who`: None for an administrator.
    """
    try:
        return await users.there(name)
    except NotFound as unknown:
        raise unknown_user(unknown, name, who) from None


def changed(known: Project, settings: ProjectSettings, now: float) -> Project:
    """Return a project with other settings.

    Raises:
        InvalidRequest: an invalid setting.
        StateConflict: the owner of a user's own project.
    """
    owner = known.owner if settings.owner is None else settings.owner
    if known.owner == known.name and owner != known.owner and known.owner:
        raise StateConflict(
            f"project {known.name} is {known.name}'s own", why="a user's name is that of their own"
        )
    budget = None if settings.without_budget else _budget(known.budget, settings.budget, now)
    weight = known.weight if settings.weight is None else settings.weight
    if not 0 < weight <= MOST_WEIGHT:
        raise InvalidRequest(
            f"a weight of {weight:g}",
            why=f"it is over 0, at most {MOST_WEIGHT:g}",
            attempt=f"--weight {MOST_WEIGHT if weight > MOST_WEIGHT else 1:g}",
        )
    return replace(
        known,
        owner=owner,
        members=known.members | ({owner} if owner else set()),
        quota=_quota(known.quota, settings.quota),
        member_quota=_quota(known.member_quota, settings.member_quota),
        budget=budget,
        weight=weight,
        most_priority=settings.most_priority or known.most_priority,
        keep_checkpoints=(
            known.keep_checkpoints
            if settings.keep_checkpoints is None
            else check_keep(settings.keep_checkpoints)
        ),
        kept_bytes=known.kept_bytes
        if settings.kept_bytes is None
        else _kept_bytes(settings.kept_bytes),
        keep_files=(
            known.keep_files
            if settings.keep_files is None
            else _check_keep_files(settings.keep_files)
        ),
    )


def _check_keep_files(text: str) -> str:
    if text not in {"", "on", "off"}:
        raise InvalidRequest(f"{text[:20]!r} does not say whether files are kept", why="on or off")
    return text


def check_keep(text: str, *, of_session: bool = False) -> str:
    """Return a retention of checkpoints in its stored form; "" for none; raises InvalidRequest.

    `of_session`: `best:N` may leave the metric to the project.
    """
    try:
        read = canonical_request if of_session else canonical
        return read(text) if text else ""
    except ValueError as error:
        raise InvalidRequest(
            "invalid retention rules for checkpoints",
            why=str(error),
            attempt=f"--keep {shell_word(EXAMPLE)}",
        ) from None


def _kept_bytes(asked: int) -> int:
    if not 0 <= asked <= MOST_COUNT:
        raise InvalidRequest(f"a quota of {asked} stored bytes", why=f"it is 0 to {MOST_COUNT}")
    return asked


def _quota(known: Quota, asked: dict[str, int]) -> Quota:
    for one in fields(Quota):
        if not 0 <= asked.get(one.name, 0) <= MOST_COUNT:
            raise InvalidRequest(f"a quota of {asked[one.name]}", why=f"it is 0 to {MOST_COUNT}")
    return replace(known, **asked)


def _budget(known: Budget | None, settings: BudgetSettings | None, now: float) -> Budget | None:
    if settings is None:
        return known
    seconds = settings.gpu_seconds
    if seconds is None and known is not None:
        seconds = known.gpu_seconds
    if seconds is None:
        raise InvalidRequest(
            "a period without a budget",
            attempt="--gpu-hours 500 --period 30d",
        )
    days, anchor = settings.period_days, settings.anchor
    if days is None:
        days = known.period_days if known else DEFAULT_PERIOD_DAYS
    if anchor is None:
        anchor = known.anchor if known else now
    if seconds == 0:
        raise InvalidRequest(
            "a budget of zero",
            why="it could mean that nothing may run, or that there is no bound",
            attempt="nsml project set NAME --gpu-hours none    no bound\n"
            "nsml project set NAME --gpu-hours 0.01    hardly anything",
        )
    if not 0 < seconds <= MOST_GPU_SECONDS:  # NaN, too
        raise InvalidRequest(
            f"a budget of {seconds / 3600:,.12g} GPU-hours",
            why=f"it is over 0, at most {MOST_GPU_SECONDS / 3600:,.0f}",
            attempt="--gpu-hours 500\n--gpu-hours none    without a budget",
        )
    if not 1 <= days <= MOST_PERIOD_DAYS:
        raise InvalidRequest(
            f"a period of {days} days",
            why=f"it is 1 to {MOST_PERIOD_DAYS} days",
            attempt=f"--period {MOST_PERIOD_DAYS if days > MOST_PERIOD_DAYS else 1}d",
        )
    if not (math.isfinite(anchor) and 0 <= anchor <= LATEST_S):
        first, last = (moment(one)[:10] for one in (0, LATEST_S))
        raise InvalidRequest(
            f"a period that begins {'before ' + first if anchor < 0 else 'after ' + last}",
            why=f"periods are counted from {first} to {last}",
            attempt=f"--from {moment(now)[:10]}",
        )
    return Budget(gpu_seconds=seconds, period_days=days, anchor=anchor)


def _check_members(members: Collection[str]) -> None:
    if len(members) > MOST_AT_ONCE:
        raise TooLarge(f"at most {MOST_AT_ONCE} members at a time", attempt="several calls")
    for name in members:
        check_user(name)


def check_entitled(
    state: LiveState, owner: User, project: str, spec: SessionSpec, nearest: Alternatives
) -> Compare | None:
    """Raise unless this user may submit this into a project; return the condition that it stays so.

    Args:
        state: the current state.
        owner: the submitting user.
        project: "" for the user's own.
        spec: the request.
        nearest: suggests alternatives.

    Raises:
        NotFound: there is no such project, or the user is no member.
        OverQuota: it exceeds the quota, or the project's highest priority class.
    """
    name = project or owner.name
    stored = state.projects.get(name)
    if stored is None and name == owner.name:
        return None
    if stored is None or owner.name not in stored.value.members:
        usable = _usable(state, owner)
        if stored and may(UserCaller(user=owner), ADMINISTER, PLATFORM) is ALLOW:
            raise _no_project(name, usable, f"nsml project add {name} {owner.name}")
        attempt = "\n".join(f"nsml run --project {one}" for one in usable[:3])
        raise _no_project(name, usable, attempt)
    known = stored.value
    if spec.priority > known.most_priority:
        highest = known.most_priority.name.lower()
        raise OverQuota(
            f"project {name} does not allow priority {spec.priority.name.lower()}",
            why=f"{highest} is its highest",
            attempt=nearest.flag("--priority", highest),
        )
    request = request_of(owner.name, spec)
    if refusal := never(known, claim_of(request)):
        raise OverQuota(
            "this can never start in its project", why=refusal, attempt=nearest.words(request)
        )
    return unchanged(etcd_codec.project_key(name), stored.revision)


def within_quota(state: LiveState, name: str, request: Request) -> Request:
    """Return the largest part of a request that the quota of a project allows at once."""
    stored = state.projects.get(name)
    if stored is None or not never(stored.value, claim_of(request)):
        return request
    project = stored.value
    if most := _bound(project, "gpu_thousandths"):
        request = within_gpus(most, request)
    count, cpu, memory = request.replica_count, request.cpu_thousandths, request.memory_bytes
    most = _bound(project, "cpu_thousandths")
    if most and (cpu or DEFAULT_CPU_THOUSANDTHS) * count > most:
        cpu = most // count
    most = _bound(project, "memory_bytes")
    if most and (memory or DEFAULT_MEMORY_BYTES) * count > most:
        memory = most // count
    return request._replace(cpu_thousandths=cpu, memory_bytes=memory)


def within_gpus(most: int, request: Request) -> Request:
    """Return the largest part of a request with at most so many thousandths of GPUs in total."""
    gpu, count = request.gpu_thousandths, request.replica_count
    if gpu * count <= most:
        return request
    gpu, count = _sized(most, gpu, count)
    return request._replace(gpu_thousandths=gpu, replica_count=count)


def _sized(most: int, gpu: int, count: int) -> tuple[int, int]:
    """Return thousandths of each replica, and the number: the most GPUs in total; if equal, the largest replicas.

    Args:
        most: thousandths of all replicas.
        gpu: requested thousandths of one.
        count: requested replicas.
    """
    if gpu < WHOLE_DEVICE and gpu <= most:
        return gpu, min(count, most // gpu)
    if most < WHOLE_DEVICE:
        return most, 1
    sizes = (
        (min(gpu, most // replicas // WHOLE_DEVICE * WHOLE_DEVICE), replicas)
        for replicas in range(1, count + 1)
    )
    return max(sizes, key=lambda one: (one[0] * one[1], one[0]))


def _bound(project: Project, measure: str) -> int:
    """Return the smaller limit of project and member; 0: none."""
    bounds = (getattr(project.quota, measure), getattr(project.member_quota, measure))
    return min(filter(None, bounds), default=0)


def _usable(state: LiveState, user: User) -> list[str]:
    """Return the projects in which a user may submit."""
    names = {one.value.name for one in state.projects.values() if user.name in one.value.members}
    return sorted(names | {user.name})


def _not_stored(name: str) -> NotFound:
    return NotFound(
        f"there is no project {name[:80]!r} with settings or members of its own",
        attempt="nsml project ls",
    )


def _no_project(name: str, usable: Sequence[str], attempt: str) -> NotFound:
    """There is none that the user may use."""
    return NotFound(
        f"there is no project {name[:80]!r} of which you are a member",
        why=f"yours: {', '.join(usable[:10])}{', ...' if len(usable) > 10 else ''}",
        attempt=attempt,
    )


def _busy(name: str) -> Unavailable:
    return Unavailable(f"project {name} changes all the time", attempt="the same again")
