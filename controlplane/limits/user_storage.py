"""How much of the object store one user, or one project, may keep, and how much that is now.

The leader counts it (`content/object_gc.py`) and stores the count; what is sent since is added to it in the transaction that
notes who has sent which blob. So every control plane knows it from the history, also a new leader, and what
each is just taking in it counts itself. What one control plane lets in, another one knows LOOK_S later at most.
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
"""How often the counts are read, which other control planes change as well."""

NEAR: Final = 0.9
"""Above this part of the limit a new count is asked for: what was sent is at most what is kept."""
CORRECTED: Final = 0.02
"""... where so much of the limit was sent since the last one."""

UNKNOWN_BYTES: Final = 10 << 40
"""The limit where others have accounts, nobody has set one, and nobody knows the store's size: a bucket."""

FULL_BYTES: Final = 16 << 20
"""Whoever has less than this left, or than an eighth, is at the limit: blobs come in batches."""

WAITS_S: Final = 360.0
"""So long at most an agent waits before it sends again what was refused."""

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
    """What a user or a project (`name`) keeps and may keep, in bytes; `most` 0: without a limit."""

    name: str
    kept: KeptBytes
    used: int
    most: int
    is_own_limit: bool

    @property
    def room(self) -> int | None:
        """How many bytes more may be kept; None: without a limit."""
        return max(self.most - self.used, 0) if self.most else None

    @property
    def is_full(self) -> bool:
        """Whether hardly anything more is taken."""
        return bool(self.most) and self.used + min(FULL_BYTES, self.most // 8) > self.most


class Kept:
    """Decides whether a user may have more kept.

    Attributes:
        limit: the name of the setting, among what was refused.

    Args:
        capacity: what users may fill of the object store's disk, as large as it is; None: not known.
        has_others: whether anybody else than a user has an account.
        own_limit: what an administrator has set for one user: bytes, 0 for no limit; None: nothing.
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
        """What was noted here since `_known` was read."""
        self._taking: Counter[str] = Counter()
        """What is stored, or being stored, and not noted yet."""
        self._asking: set[str] = set()
        self._waiting: dict[str, tuple[float, int]] = {}
        """When something was last refused to an agent, and how much."""
        self._looking = asyncio.Lock()

    @property
    def _figures(self) -> KeptFigures:
        return self._history.kept

    async def run(self) -> None:
        """Read the counts now and then, until cancelled."""
        while True:
            with contextlib.suppress(NsmlError):  # what we know goes on
                await self.look()
            await self._clock.sleep(LOOK_S)

    async def look(self) -> None:
        """Read the counts, and ask for new ones where users are near their limits."""
        async with self._looking:
            noted = Counter(self._noted)
            self._known = await self._figures.all()
            # What is noted while we read may be in it, and counts once more until the next look.
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
        """Of all users of whom something is kept, by name."""
        return [self.use(user) for user in sorted({*self._known, *self._noted, *self._taking})]

    @property
    def is_count_wanted(self) -> bool:
        """Whether somebody asked for a new count, or something was sent and there was none."""
        return any(one.asked for one in self._known.values()) or bool(
            self._known and not self.counted_at
        )

    @property
    def counted_at(self) -> float:
        """Since when the newest count stands, Unix seconds; 0: there was none."""
        return max((one.counted_at for one in self._known.values()), default=0.0)

    def use(self, user: str) -> KeptUse:
        """Of one user."""
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
        """For the sessions of a user who is at the limit, or of whom something does not fit: that checkpoints wait, and why.

        "" for all others.

        `is_own`: for the user and administrators; what is kept is nobody else's business.
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
        """So much of a user has just been refused to an agent, which keeps it and sends it again."""
        self._waiting[user] = self._clock.monotonic(), size

    def _is_waiting(self, one: KeptUse) -> bool:
        """Whether what was refused would be refused still."""
        at, size = self._waiting.get(one.name, (-WAITS_S, 0))
        is_late = self._clock.monotonic() - at >= WAITS_S
        return bool(one.most) and not is_late and one.used + size > one.most

    def check(self, user: str, size: int) -> None:
        """Raise LimitReached where a user may not have so much more kept."""
        one = self.use(user)
        if not user or not one.most or one.used + size <= one.most:
            return
        if one.kept.sent and not one.kept.asked:
            self._asking.add(user)  # what was sent is an upper bound
        raise self._refused(one, f"{_more_than(one.room or 0, size)} more cannot be stored")

    def check_full(self, user: str) -> None:
        """Raise LimitReached where hardly anything more may be kept for a user."""
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
        """So much is being stored for a user; negative: it was noted, or was not stored."""
        if user:
            self._taking[user] += size
            if not self._taking[user]:
                del self._taking[user]

    def noted(self, user: str, size: int) -> None:
        """So much of what was stored is in the history's figure."""
        if user:
            self._noted[user] += size

    async def borrow(self, user: str, size: int) -> None:
        """Count what a user refers to without having sent it.

        Raises:
            LimitReached: it is more than the user may keep.
        """
        self.check(user, size)
        await self._figures.add(user, sent=size)
        self.noted(user, size)


class ProjectKept(Kept):
    """Decides whether more may be kept for a project.

    Args:
        find: a project that has a record.
        every: all of these.
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
        """What an administrator has set: bytes, 0 for no limit."""
        project = self._find(name)
        return project.kept_bytes if project is not None else 0

    @property
    def is_count_wanted(self) -> bool:
        """Whether somebody asked for a new count, or a project was made since the last one."""
        return any(
            one.kept.asked or one.kept.counted_at < project.created_at
            for project in self._every()
            for one in [self.use(project.name)]
        )

    def everybody(self) -> list[KeptUse]:
        """Of all projects, by name."""
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
    """A size that is larger than another one, to the byte where both would read the same."""
    text = size_text(size)
    return f"{size:,} Bytes" if text == size_text(free) else text


def kinds_text(kept: KeptBytes) -> str:
    """What is kept by kind, the most first."""
    kinds = sorted(kept.counted.items(), key=lambda one: -one[1])
    words = [f"{WORDS.get(kind, kind.lower())} {size_text(size)}" for kind, size in kinds if size]
    if kept.sent:
        words.append(f"sent since the last count {size_text(kept.sent)}")
    return ", ".join(words) or "nothing"


class KeptUsages:
    """What users keep, as they and administrators look at it."""

    def __init__(
        self, *, kept: Kept, history: History, state: LiveState, users: FindsUsers
    ) -> None:
        self._kept = kept
        self._history = history
        self._state = state
        self._users = users

    async def of(self, user: str) -> tuple[KeptUse, tuple[Item, ...]]:
        """What a user keeps as of now, and their largest datasets and sessions.

        Raises:
            NotFound: there is no such user, and nothing is kept under the name.
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

    async def all(self) -> list[KeptUse]:
        """Of all users of whom something is kept, the most first."""
        await self._kept.look()
        return sorted(self._kept.everybody(), key=lambda one: (-one.used, one.name))


class ProjectUsages:
    """What is kept for projects, as members and administrators look at it."""

    def __init__(self, *, kept: ProjectKept, history: History, state: LiveState) -> None:
        self._kept = kept
        self._history = history
        self._state = state

    async def of(
        self, project: Project, viewer: User
    ) -> tuple[KeptUse, tuple[tuple[str, int], ...], tuple[Item, ...]]:
        """What is kept as of now, the sizes of each user's files, and the largest things that the viewer may see."""
        await self._kept.look()
        live = [
            one.value
            for one in self._state.sessions.values()
            if (one.value.project or one.value.owner) == project.name
        ]
        users, largest = await self._history.kept.of_project(project.name, viewer, live)
        return self._kept.use(project.name), users, largest

    async def all(self) -> list[KeptUse]:
        """Of all projects that have a record, the most first."""
        await self._kept.look()
        return sorted(self._kept.everybody(), key=lambda one: (-one.used, one.name))
