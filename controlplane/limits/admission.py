"""Admission to the platform's shared stores: limits of users, projects and sessions, and the stores' floors.

All these decisions are made here, from memory: each control plane counts allowances and watches for itself,
and sessions and their records from the shared state.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import LimitReached, LowOnRoom, Unavailable
from controlplane.domain.limits import DAY_S, NO_LIMITS, UserLimits
from controlplane.limits.allowances import Allowance
from controlplane.limits.free_space import HISTORY, OBJECTS, STORE, WORDS, low_on_room
from controlplane.state.live_usage import LiveUsage, Usage
from nsml.common.units import size_text
from nsml.content.counted_bytes import blob_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from controlplane.limits.free_space import FreeSpace
    from controlplane.limits.user_storage import Kept
    from nsml.common.clock import Clock

NOTE_BYTES: Final = 150
"""Size of one sent blob's note in the history: a row of `sent_blobs` with its key."""

_RETRY_S: Final = 30.0
"""Retry interval of agents when a store has no room."""


@dataclass(slots=True)
class Batch:
    """Sessions being written together, and so not yet counted: by user and by project."""

    users: dict[str, Usage] = field(default_factory=dict)
    projects: dict[str, Usage] = field(default_factory=dict)

    def add(self, user: str, project: str, size: int) -> None:
        """Add a session."""
        for by_name, name in ((self.users, user), (self.projects, project)):
            usage = by_name.setdefault(name, Usage())
            usage.sessions += 1
            usage.stored_bytes += size


class Admission:
    """Decides what is admitted.

    Args:
        limits: set by the operator.
        usage: usage of the coordination store by users and projects.
        space: the room of the stores; None: unknown.
        kept: usage of the object store by each user; None: unlimited.
        project_kept: the same for each project.
        has_others: whether others than a user have or may have accounts: only then is a user limited to a share of
            a store's room. Accounts count, not their usage: those without data may store some later.
    """

    def __init__(
        self,
        limits: UserLimits,
        *,
        usage: LiveUsage,
        clock: Clock,
        space: FreeSpace | None = None,
        kept: Kept | None = None,
        project_kept: Kept | None = None,
        has_others: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.limits = limits
        self._has_others = has_others
        self.refused: Counter[str] = Counter()
        """Number of refusals and cuts, by the name of the limit."""
        self._usage = usage
        self._space = space
        self._kept = kept
        self._project_kept = project_kept
        now = clock.monotonic
        write_period_s = limits.write_bytes / (limits.write_bytes_per_s or 1)
        self._writes = Allowance(limits.write_bytes, write_period_s or DAY_S, now)
        self._uploads, self._reported, self._logs, self._metrics, self._checkpoints = (
            Allowance(most, DAY_S, now)
            for most in (
                limits.upload_bytes,
                limits.reported_bytes,
                limits.session_log_bytes,
                limits.session_metric_bytes,
                limits.session_checkpoints,
            )
        )
        self._streams: Counter[str] = Counter()

    def _reported_words(self, user: str) -> str:
        words = [size_text(self.limits.reported_bytes)] if self.limits.reported_bytes else []
        return ", and ".join([*words, *self._share_words(user, HISTORY)])

    def _share_words(self, user: str, part: str) -> list[str]:
        """Describe a user's share of a store's room; [] without one."""
        if self._shared_room(user, part) is None:
            return []
        share = self.limits.store_share
        return [f"{share:.0%} of the room that {WORDS[part]} has left (user_store_share)"]

    def room(self) -> dict[str, int]:
        """Return the bytes left for users on each store's disk, if known."""
        found = {}
        for part in (STORE, HISTORY, OBJECTS):
            size = None if self._space is None else self._space.room_bytes(part)
            if size is not None:
                found[part] = size
        return found

    # The coordination store

    def check_session(self, user: str, project: str, size: int, batch: Batch | None = None) -> None:
        """Raise unless a user may have one more session.

        Args:
            user: its submitter.
            project: the project it counts for.
            size: of its record, bytes.
            batch: sessions written together with it.

        Raises:
            LimitReached: the user or the project is at a limit.
            LowOnRoom: the store is at its floor.
        """
        limits = self.limits
        if limits.session_bytes and size > limits.session_bytes:
            raise self._reached(
                "session_bytes",
                f"this session takes {size_text(size)} in the platform's store",
                f"a session may take {size_text(limits.session_bytes)}: arguments, variables and memo",
                "put long values into a file of the code or of a dataset",
            )
        self.check_store()
        batch = batch or Batch()
        for whose, name, usage, more, most, most_bytes in (
            (
                "you have",
                "sessions",
                self._usage.user(user),
                batch.users.get(user),
                limits.sessions,
                limits.stored_bytes,
            ),
            (
                f"project {project} has",
                "project_sessions",
                self._usage.project(project),
                batch.projects.get(project),
                limits.project_sessions,
                limits.project_stored_bytes,
            ),
        ):
            count = usage.sessions + (more.sessions if more else 0)
            stored = usage.stored_bytes + (more.stored_bytes if more else 0)
            if most and count >= most:
                raise self._reached(
                    name,
                    f"{whose} {count:,} sessions queued or running",
                    f"{most:,} are allowed at one time",
                    "submit more when some have ended; nsml stop ends those that are not needed",
                )
            if most_bytes and stored + size > most_bytes:
                raise self._reached(
                    name.replace("sessions", "stored_bytes"),
                    f"{whose} sessions of {size_text(stored)} in the platform's store",
                    f"{size_text(most_bytes)} are allowed at one time",
                    "submit more when some have ended, or with fewer arguments and variables",
                )

    def check_store(self) -> None:
        """Raise LowOnRoom if the coordination store is at its floor."""
        self._check_room(STORE)

    def write(self, user: str, size: int) -> None:
        """Count a user's change, in the coordination store and in the history.

        Raises:
            LimitReached: the user writes too fast, or too much in a day.
        """
        if not self._writes.has_room(user, size):
            raise self._reached(
                "write_bytes",
                "you change more than the platform's store takes of one user",
                f"{size_text(self.limits.write_bytes)} at once,"
                f" then {size_text(self.limits.write_bytes_per_s)} a second",
                "again in a minute, and then more slowly",
            )
        # Sessions that ended, versions of datasets and the audit trail stay in the history.
        self._check_history_share(user, size)
        self._writes.use(user, size)
        self._reported.use(user, size)

    def _check_history_share(self, user: str, size: int) -> None:
        if not self._has_share(self._reported, user, size, HISTORY):
            raise self._reached(
                "reported_bytes",
                "you have used what the platform's history takes of one user in a day",
                f"reports and changes together are at most {self._reported_words(user)}",
                "again later: the allowance refills with time. Or ask an administrator for more",
            )

    # The object store

    @contextlib.asynccontextmanager
    async def uploading(
        self, user: str, sizes: Iterable[int], *, project: str = "", is_agent: bool = False
    ) -> AsyncIterator[None]:
        """Admit new blobs of a user ("": of nobody) to the object store; they are stored in the context.

        `project`: they also count for it; "": for none yet.

        Raises:
            LimitReached: the user's daily uploads, or the storage of the user or the project, are at their limit.
            LowOnRoom: the object store is at its floor; Unavailable for agents, which send again.
        """
        size = blob_bytes(sizes)
        self.check_kept(user, size, project, is_agent=is_agent)
        if user and not self._has_share(self._uploads, user, size, OBJECTS):
            used = size_text(int(self._uploads.used(user)))
            raise self._reached(
                "upload_bytes",
                f"you uploaded {used} in the last day, and cannot upload {size_text(size)} more now",
                self._upload_words(user),
                "again later: the allowance refills with time. Or ask an administrator for more",
            )
        # Before the first await: concurrent uploads must not exceed the limit together.
        self._take_kept(user, project, size)
        try:
            async with self._taking_room(size, is_agent=is_agent):
                if user:
                    self._uploads.use(user, size)
                yield
        except BaseException:
            self._take_kept(user, project, -size)
            raise

    @contextlib.asynccontextmanager
    async def _taking_room(self, size: int, *, is_agent: bool) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as taken:
            if self._space is not None:
                try:
                    await taken.enter_async_context(self._space.taking(OBJECTS, size))
                except LowOnRoom as error:
                    self.refused["objects_room"] += 1
                    if not is_agent:
                        raise
                    raise Unavailable(
                        "the object store has no room", why=str(error), retry_after_s=_RETRY_S
                    ) from error
            yield

    def _holders(self, user: str, project: str) -> Iterator[tuple[Kept, str]]:
        """Yield where content counts."""
        if self._kept is not None and user:
            yield self._kept, user
        if self._project_kept is not None and project:
            yield self._project_kept, project

    def check_kept(
        self, user: str, size: int, project: str = "", *, is_agent: bool = False
    ) -> None:
        """Raise LimitReached if `size` more may not be kept for a user, or a project ("": for nobody).

        `is_agent`: sent by an agent, which retries: until then sessions show that it waits.
        """
        for kept, name in self._holders(user, project):
            try:
                with self._counting(kept):
                    kept.check(name, size)
            except LimitReached:
                if is_agent:
                    kept.waits(name, size)
                raise

    @contextlib.contextmanager
    def _counting(self, kept: Kept) -> Iterator[None]:
        """Count refusals in the context."""
        try:
            yield
        except LimitReached:
            self.refused[kept.limit] += 1
            raise

    def kept_room(self, user: str, project: str = "") -> int | None:
        """Return the bytes that may still be kept for a user and a project ("": nobody); None: no limit."""
        rooms = (kept.use(name).room for kept, name in self._holders(user, project))
        return min((room for room in rooms if room is not None), default=None)

    def check_full(self, user: str, project: str = "") -> None:
        """Raise LimitReached if a user's, or a project's, storage is almost full ("": nobody)."""
        for kept, name in self._holders(user, project):
            with self._counting(kept):
                kept.check_full(name)

    def _take_kept(self, user: str, project: str, size: int) -> None:
        for kept, name in self._holders(user, project):
            kept.take(name, size)

    def noted_kept(self, user: str, size: int, *, project: str = "", is_noted: bool) -> None:
        """Settle an upload: it is in the history's figure now (`is_noted`), or never will be."""
        for kept, name in self._holders(user, project):
            kept.take(name, -size)
            if is_noted:
                kept.noted(name, size)

    async def borrow(self, user: str, size: int) -> None:
        """Count content referenced but not sent by a user; raises LimitReached as `check_kept`."""
        if self._kept is not None:
            self.check_kept(user, size)
            await self._kept.borrow(user, size)

    async def count_for_project(self, project: str, size: int) -> None:
        """Count content referenced by a project; raises LimitReached as `check_kept`."""
        if self._project_kept is not None:
            self.check_kept("", size, project)
            await self._project_kept.borrow(project, size)

    def _upload_words(self, user: str) -> str:
        most = self.limits.upload_bytes
        words = [f"{size_text(most)} a day"] if most else []
        words += self._share_words(user, OBJECTS)
        return f"one user may send {', and '.join(words)}"

    # The history

    def check_history(self) -> None:
        """Raise LowOnRoom if the history is at its floor."""
        self._check_room(HISTORY)

    def note_blobs(self, user: str, count: int, *, is_agent: bool = False) -> None:
        """Count notes of sent blobs for a user ("": for nobody).

        Raises:
            LimitReached: the user is at the daily limit of the history.
            LowOnRoom: the history is at its floor; Unavailable for agents, which send again.
        """
        size = count * NOTE_BYTES
        try:
            self.check_history()
        except LowOnRoom as error:
            if not is_agent:
                raise
            raise Unavailable(
                "the history has no room", why=str(error), retry_after_s=_RETRY_S
            ) from error
        if user:
            self._check_history_share(user, size)
            self._reported.use(user, size)
        if self._space is not None:
            self._space.spend(HISTORY, size)

    def give_back_notes(self, user: str, count: int) -> None:
        """Give back notes counted by `note_blobs`: they already existed."""
        size = count * NOTE_BYTES
        if user:
            self._reported.set(user, max(self._reported.used(user) - size, 0.0))
        if self._space is not None:
            self._space.spend(HISTORY, -size)

    def is_low(self, part: str) -> bool:
        """Whether a store is at its floor."""
        return self._space is not None and self._space.is_low(part)

    def report(self, user: str, session_id: str, size: int, *, is_log: bool) -> str:
        """Count a session's report; return the name of the exceeded limit, or "" if it is kept."""
        limit = ""
        own = self._logs if is_log else self._metrics
        # Called for each chunk of all sessions: usage is computed once.
        own_used = own.used(session_id) + size
        all_used = self._reported.used(user) + size
        if not own.allows(own_used):
            limit = "session_log_bytes" if is_log else "session_metric_bytes"
        elif not self._is_within_share(self._reported, user, all_used, size, HISTORY):
            limit = "reported_bytes"
        if limit:
            self.refused[limit] += 1
            return limit
        own.set(session_id, own_used)
        self._reported.set(user, all_used)
        if self._space is not None:
            self._space.spend(HISTORY, size)
        return ""

    def checkpoint(self, session_id: str) -> bool:
        """Count a session's reported checkpoint; return whether it is within the limit."""
        if not self._checkpoints.has_room(session_id, 1):
            self.refused["session_checkpoints"] += 1
            return False
        self._checkpoints.use(session_id, 1)
        return True

    # Streams

    def open_stream(self, user: str) -> None:
        """Count a user's open stream, until `close_stream`.

        Raises:
            LimitReached: the user has too many.
        """
        most = self.limits.streams
        if most and self._streams[user] >= most:
            raise self._reached(
                "streams",
                f"you have {most} calls open: watches, followed logs, transfers",
                f"{most} are allowed at one time",
                "close a dashboard, or a command that follows something",
            )
        self._streams[user] += 1

    def close_stream(self, user: str) -> None:
        """Uncount a closed stream."""
        self._streams[user] -= 1
        if not self._streams[user]:
            del self._streams[user]

    def _has_share(self, allowance: Allowance, user: str, size: int, part: str) -> bool:
        """Whether a user may use `size` more: of the allowance, and of the store's room."""
        used = allowance.used(user) + size
        return self._is_within_share(allowance, user, used, size, part)

    def _is_within_share(
        self, allowance: Allowance, user: str, used: float, size: int, part: str
    ) -> bool:
        """Whether a user may have used `used`, of which `size` is not written yet."""
        if not allowance.allows(used):
            return False
        room = self._shared_room(user, part)
        return room is None or used <= self.limits.store_share * (room + used - size)

    def _shared_room(self, user: str, part: str) -> int | None:
        """Return the room that a user's share applies to; None: no share applies."""
        if self._space is None or not self.limits.store_share or not self._has_others(user):
            return None
        return self._space.room_bytes(part)

    def _check_room(self, part: str) -> None:
        if self.is_low(part):
            self.refused[f"{part}_room"] += 1
            raise low_on_room(part)

    def _reached(self, limit: str, message: str, why: str, attempt: str) -> LimitReached:
        self.refused[limit] += 1
        return LimitReached(message, why=why, attempt=attempt)


def unlimited(clock: Clock) -> Admission:
    """Return an admission without limits."""
    return Admission(NO_LIMITS, usage=LiveUsage(), clock=clock)
