"""Usage and limits of the object store, per user and per project.

The leader counts the usage (`content/object_gc.py`) and stores the count; later uploads are added in the transaction
that records the sender of each blob. So every control plane, even a new leader, reads it from the history, and
adds its own current uploads. Others' uploads are visible after at most LOOK_S.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from controlplane.domain.errors import LimitReached, NsmlError
from controlplane.domain.limits import NO_LIMITS
from controlplane.history.values import KeptBytes, KeptKind
from nsml.common.units import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from controlplane.domain.identity import User
    from controlplane.domain.limits import UserLimits
    from controlplane.domain.values import Project
    from controlplane.history.sql.history import History
    from controlplane.history.sql.user_storage import KeptFigures
    from controlplane.history.values import Item
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Clock

LOOK_S: Final = 5.0
"""Interval of reading the counts, which other control planes change as well."""

NEAR: Final = 0.9
"""Above this part of the limit a new count is requested: the bytes sent are only an upper bound."""
CORRECTED: Final = 0.02
"""... if at least this part of the limit was sent since the last one."""

UNKNOWN_BYTES: Final = 10 << 40
"""The limit if others have accounts, none is set, and the store's size is unknown: a bucket."""

FULL_BYTES: Final = 16 << 20
"""With less than this left, or than an eighth, a user is at the limit: blobs are sent in batches."""

WAITS_S: Final = 360.0
"""Longest wait of an agent before it retries a refused upload."""

WORDS: Final[Mapping[str, str]] = {
    KeptKind.DATASETS.name: "datasets",
    KeptKind.CHECKPOINTS.name: "checkpoints",
    KeptKind.CODE.name: "code",
    KeptKind.MEDIA.name: "media",
    KeptKind.LOGS.name: "logs",
    KeptKind.UNUSED.name: "sent and not used yet",
    KeptKind.ARTIFACTS.name: "artifacts",
}


class FindsUsers(Protocol):
    """Accounts."""

    async def get_user(self, name: str) -> User:
        """One user; NotFound if there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptUse:
    """Usage and limit of a user or a project (`name`), in bytes; `most` 0: no limit."""

    name: str
    kept: KeptBytes
    used: int
    most: int
    is_own_limit: bool

    @property
    def room(self) -> int | None:
        """Bytes left; None: no limit."""
        return max(self.most - self.used, 0) if self.most else None

    @property
    def is_full(self) -> bool:
        """Whether it is almost at the limit."""
        return bool(self.most) and self.used + min(FULL_BYTES, self.most // 8) > self.most


class Kept:
    """Decides whether a user may store more.

    Attributes:
        limit: the name of the setting, in counts of refusals.

    Args:
        capacity: returns the bytes for users on the object store's disk; None: unknown.
        has_others: whether anybody else than a user has an account.
        own_limit: returns an administrator's limit for one user: bytes, 0 for no limit; None: not set.
    """

    limit: ClassVar[str] = "kept_bytes"

    def __init__(
        self,
        limits: UserLimits,
        history: History,
        clock: Clock,
        *,
        capacity: Callable[[], int | None] = lambda: None,
        has_others: Callable[[str], bool] = lambda _: True,
        own_limit: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        self._limits = limits
        self._history = history
        self._clock = clock
        self._capacity = capacity
        self._has_others = has_others
        self._own_limit = own_limit
        self._known: Mapping[str, KeptBytes] = {}
        self._noted: Counter[str] = Counter()
        """Bytes noted here since `_known` was read."""
        self._taking: Counter[str] = Counter()
        """Bytes stored, or being stored, but not noted yet."""
        self._asking: set[str] = set()
        self._waiting: dict[str, tuple[float, int]] = {}
        """Time and size of the last refusal to an agent."""
        self._looking = asyncio.Lock()

    @property
    def _figures(self) -> KeptFigures:
        return self._history.kept

    async def run(self) -> None:
        """Read the counts regularly, until cancelled."""
        while True:
            with contextlib.suppress(NsmlError):  # keep the last known counts
                await self.look()
            await self._clock.sleep(LOOK_S)

    async def look(self) -> None:
        """Read the counts, and request new ones for users near their limits."""
        async with self._looking:
            noted = Counter(self._noted)
            self._known = await self._figures.all()
            # Uploads noted while we read may be included, and count twice until the next look.
            self._noted -= noted
        asking, self._asking = self._asking, set()
        near = {user for user in self._known if self._is_worth_a_count(user)}
        for user in asking | near:
            await self._figures.add(user, asked=1)

    def _is_worth_a_count(self, user: str) -> bool:
        one = self.use(user)
        if not one.most or one.kept.asked:
            return False
        return one.used > NEAR * one.most and one.kept.sent > CORRECTED * one.most

    def everybody(self) -> list[KeptUse]:
        """Return the usage of all users with stored content, sorted by name."""
        return [self.use(user) for user in sorted({*self._known, *self._noted, *self._taking})]

    @property
    def is_count_wanted(self) -> bool:
        """Whether a new count was requested, or there was none and something was sent."""
        return any(one.asked for one in self._known.values()) or bool(
            self._known and not self.counted_at
        )

    @property
    def counted_at(self) -> float:
        """Time of the newest count, in Unix seconds; 0: there was none."""
        return max((one.counted_at for one in self._known.values()), default=0.0)

    def use(self, user: str) -> KeptUse:
        """Return the usage of one user."""
        known, own = self._known.get(user, KeptBytes()), self._own_limit(user)
        kept = known._replace(sent=known.sent + self._noted[user])
        return KeptUse(
            name=user,
            kept=kept,
            used=kept.bytes + max(self._taking[user], 0),
            most=self._most(user) if own is None else own,
            is_own_limit=own is not None,
        )

    def _most(self, user: str) -> int:
        if self._limits.kept_bytes is not None:
            return self._limits.kept_bytes
        share = self._limits.kept_share
        if not share or not self._has_others(user):
            return 0
        capacity = self._capacity()
        return UNKNOWN_BYTES if capacity is None else max(int(share * capacity), 1)

    def words(self, user: str, *, is_own: bool) -> str:
        """Say that checkpoints wait, and why, for sessions of users at the limit or with refused uploads.

        "" for all others.

        `is_own`: for the user and administrators; the usage is hidden from others.
        """
        one = self.use(user)
        if not one.is_full and not self._is_waiting(one):
            return ""
        text = "new checkpoints are not durable: they wait on their node, since "
        if not is_own:
            return f"{text}{self._at_limit}"
        kept = f"{size_text(one.used)} of {size_text(one.most)}"
        return (
            f"{text}the object store keeps {kept} for {self._named(user)} ({self._command(user)})"
        )

    _at_limit: ClassVar[str] = "its owner is at the storage limit"

    def _named(self, user: str) -> str:
        return user

    def _command(self, _user: str) -> str:
        return "nsml storage"

    def _rule(self, one: KeptUse) -> str:
        if one.is_own_limit:
            return f"an administrator has set the limit of {one.name} to {size_text(one.most)}"
        setting = "user_kept_share" if self._limits.kept_bytes is None else "user_kept_bytes"
        return f"one user may keep {size_text(one.most)} ({setting})"

    def waits(self, user: str, size: int) -> None:
        """Record a refused upload of a user's agent, which keeps the content and retries."""
        self._waiting[user] = self._clock.monotonic(), size

    def _is_waiting(self, one: KeptUse) -> bool:
        """Whether the refused upload would still be refused."""
        at, size = self._waiting.get(one.name, (-WAITS_S, 0))
        is_late = self._clock.monotonic() - at >= WAITS_S
        return bool(one.most) and not is_late and one.used + size > one.most

    def check(self, user: str, size: int) -> None:
        """Raise LimitReached if a user may not store `size` more."""
        one = self.use(user)
        if not user or not one.most or one.used + size <= one.most:
            return
        if one.kept.sent and not one.kept.asked:
            self._asking.add(user)  # the bytes sent are an upper bound
        raise self._refused(one, f"{_more_than(one.room or 0, size)} more cannot be stored")

    def check_full(self, user: str) -> None:
        """Raise LimitReached if a user is almost at the limit."""
        if (one := self.use(user)).is_full:
            raise self._refused(one, "nothing more can be stored")

    def _refused(self, one: KeptUse, what: str) -> LimitReached:
        free = f"{size_text(one.room or 0)} of {size_text(one.most)} are free"
        return LimitReached(
            f"{what} for {self._named(one.name)}: {free}",
            why=f"{self._rule(one)}; stored: {kinds_text(one.kept)}",
            attempt=f"{self._command(one.name)}    shows what is largest, and how to remove it",
        )

    def take(self, user: str, size: int) -> None:
        """Count an upload in progress for a user; negative: it was noted, or was not stored."""
        if user:
            self._taking[user] += size
            if not self._taking[user]:
                del self._taking[user]

    def noted(self, user: str, size: int) -> None:
        """Count stored bytes that are now in the history's figure."""
        if user:
            self._noted[user] += size

    async def borrow(self, user: str, size: int) -> None:
        """Count content referenced but not sent by a user.

        Raises:
            LimitReached: it exceeds the user's limit.
        """
        self.check(user, size)
        await self._figures.add(user, sent=size)
        self.noted(user, size)


class ProjectKept(Kept):
    """Decides whether more may be stored for a project.

    Args:
        find: returns a project with a record.
        every: returns all projects with a record.
    """

    limit: ClassVar[str] = "project_kept_bytes"
    _at_limit: ClassVar[str] = "its project is at its storage quota"

    def __init__(
        self,
        history: History,
        clock: Clock,
        *,
        find: Callable[[str], Project | None],
        every: Callable[[], Iterable[Project]],
    ) -> None:
        super().__init__(NO_LIMITS, history, clock, own_limit=self._quota)
        self._find = find
        self._every = every

    def _quota(self, name: str) -> int:
        """Return an administrator's limit: bytes, 0 for no limit."""
        project = self._find(name)
        return project.kept_bytes if project is not None else 0

    @property
    def is_count_wanted(self) -> bool:
        """Whether a new count was requested, or a project was created since the last one."""
        return any(
            one.kept.asked or one.kept.counted_at < project.created_at
            for project in self._every()
            for one in [self.use(project.name)]
        )

    def everybody(self) -> list[KeptUse]:
        """Return the usage of all projects, sorted by name."""
        return [self.use(name) for name in sorted(project.name for project in self._every())]

    @property
    def _figures(self) -> KeptFigures:
        return self._history.kept.projects

    def _named(self, project: str) -> str:
        return f"project {project}"

    def _command(self, project: str) -> str:
        return f"nsml storage --project {project}"

    def _rule(self, one: KeptUse) -> str:
        return f"the quota of project {one.name} is {size_text(one.most)} of stored data"


def _more_than(free: int, size: int) -> str:
    """Format a size larger than `free`, to the byte if both would read the same."""
    text = size_text(size)
    return f"{size:,} Bytes" if text == size_text(free) else text


def kinds_text(kept: KeptBytes) -> str:
    """Describe the usage by kind, the largest first."""
    kinds = sorted(kept.counted.items(), key=lambda one: -one[1])
    words = [f"{WORDS.get(kind, kind.lower())} {size_text(size)}" for kind, size in kinds if size]
    if kept.sent:
        words.append(f"sent since the last count {size_text(kept.sent)}")
    return ", ".join(words) or "nothing"


class KeptUsages:
    """Usage of users, for themselves and administrators."""

    def __init__(
        self, *, kept: Kept, history: History, state: LiveState, users: FindsUsers
    ) -> None:
        self._kept = kept
        self._history = history
        self._state = state
        self._users = users

    async def of(self, user: str) -> tuple[KeptUse, tuple[Item, ...]]:
        """Return a user's current usage, and their largest datasets and sessions.

        Raises:
            NotFound: no such user, and no content under the name.
        """
        await self._kept.look()
        use = self._kept.use(user)
        if not use.used:
            await self._users.get_user(user)
        live = {
            one.value.id: one.value.name
            for one in self._state.sessions.values()
            if one.value.owner == user
        }
        return use, await self._history.kept.largest(user, live)

    async def all(self, *, after: str = "") -> list[KeptUse]:
        """Return the usage of all users with stored content, by name; of those behind `after`."""
        await self._kept.look()
        return [one for one in self._kept.everybody() if not after or one.name > after]


class ProjectUsages:
    """Usage of projects, for members and administrators."""

    def __init__(self, *, kept: ProjectKept, history: History, state: LiveState) -> None:
        self._kept = kept
        self._history = history
        self._state = state

    async def of(
        self, project: Project, viewer: User
    ) -> tuple[KeptUse, tuple[tuple[str, int], ...], tuple[Item, ...]]:
        """Return the current usage, the size of each user's files, and the largest items visible to the viewer."""
        await self._kept.look()
        live = [
            one.value
            for one in self._state.sessions.values()
            if (one.value.project or one.value.owner) == project.name
        ]
        users, largest = await self._history.kept.of_project(project.name, viewer, live)
        return self._kept.use(project.name), users, largest

    async def all(self) -> list[KeptUse]:
        """Return the usage of all projects with a record, the largest first."""
        await self._kept.look()
        return sorted(self._kept.everybody(), key=lambda one: (-one.used, one.name))
