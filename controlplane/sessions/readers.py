"""Followers of committed logs, metrics and sessions, until the session has ended."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from controlplane.domain.changes import SessionChanged, SessionRemoved
from controlplane.domain.errors import InvalidRequest, NotFound, Unavailable
from controlplane.domain.policy import ALLOW, SEE, may
from controlplane.limits.concurrency_limits import Turns
from controlplane.sessions.session_listing import Matcher
from controlplane.state.subscriptions import VIEWED
from controlplane.store.interface import StoreError
from controlplane.stored import etcd_codec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from contextlib import AbstractContextManager

    from controlplane.domain.changes import Change
    from controlplane.domain.identity import UserCaller
    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.history.subscriptions import Change as Commit
    from controlplane.history.values import LogPage, MetricPage
    from controlplane.records.logs import Logs
    from controlplane.records.session_summaries import LastReports, Reader
    from controlplane.sessions.session_listing import Filter
    from controlplane.state.live_state import LiveState
    from controlplane.state.subscriptions import Subscription
    from nsml.common.clock import Clock

PAGE_BYTES: Final = 256 << 10
"""Bytes of a log read at once: the size of a chunk, so that each is unpacked once."""
MOST_POINTS: Final = 5_000
CATCH_UP_S: Final = 5.0
"""How long a watcher waits for us to reach its revision."""

CHANGES_TOGETHER_S: Final = 0.005
"""Changes of sessions within this time are sent as one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """The range of a log to read. `attempt` 0: the current or last."""

    attempt: int = 0
    then_later: bool = True
    """Whether later attempts follow."""
    rank: int = 0
    offset: int = 0
    tail_lines: int | None = None
    since: float | None = None
    """Skip output received before this time (Unix seconds); not with an offset."""
    until: float | None = None
    """End before output received at this time; not for followers."""

    def check(self, *, follow: bool) -> None:
        """Raise InvalidRequest for contradictory fields."""
        if self.tail_lines is not None and self.offset:
            raise InvalidRequest("an offset or a number of last lines, not both")
        if self.since is not None and self.offset:
            raise InvalidRequest("an offset or a moment to begin at, not both")
        if self.until is not None and follow:
            raise InvalidRequest("a log is followed until its session ends, not until a moment")


class Notice:
    """Wakes a follower when a session's streams or state changed."""

    def __init__(self, commits: Commit, changes: Subscription) -> None:
        self._commits = commits
        self._changes = changes

    async def wait(self) -> None:
        """Return when something was committed or the session changed."""
        waits = {
            asyncio.ensure_future(self._commits.wait()),
            asyncio.ensure_future(self._changes.take()),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()


class Readers:
    """Reads data on disk, never data in flight."""

    def __init__(
        self,
        *,
        state: LiveState,
        history: History,
        logs: Logs,
        reading: Turns | None = None,
        reading_logs: Turns | None = None,
    ) -> None:
        self._state = state
        self._history = history
        self._logs = logs
        self._reading = reading or Turns("to read")
        self._reading_logs = reading_logs or Turns("to read logs")

    @contextlib.contextmanager
    def _noticed(self, session_id: str) -> Iterator[Notice]:
        key = etcd_codec.session_key(session_id)
        with (
            self._history.streams.changed(session_id) as commits,
            self._state.subscribed(key) as changes,
        ):
            yield Notice(commits, changes)

    async def log(
        self, who: str, session_id: str, start: LogPosition, *, follow: bool
    ) -> AsyncGenerator[LogPage, None]:
        """Yield non-empty pages in order, each once; ends as defined by ReadLogs.

        `who` waits for a turn to read each of them.

        Raises:
            NotFound: it was removed meanwhile.
        """
        start.check(follow=follow)
        attempt, offset, tail = start.attempt or None, start.offset, start.tail_lines
        since, stop = start.since, None
        with self._noticed(session_id) as notice:
            while True:
                # Checked before reading: a session's output is stored before it counts as ended.
                has_ended = await self._has_ended(session_id)
                async with self._reading_logs.turn(who):
                    if since is not None:
                        place = await self._logs.at(
                            session_id, since, attempt=attempt, rank=start.rank
                        )
                        if place.attempt:
                            attempt, offset, since = place.attempt, place.offset, None
                    if stop is None and start.until is not None:
                        place = await self._logs.at(
                            session_id, start.until, attempt=attempt, rank=start.rank
                        )
                        attempt, stop = place.attempt or None, place.offset
                    page = await self._logs.read(
                        session_id,
                        attempt=attempt,
                        rank=start.rank,
                        offset=offset,
                        tail_lines=tail,
                        stop=stop,
                        limit_bytes=PAGE_BYTES,
                    )
                if page.attempt:
                    attempt, offset, tail = page.attempt, page.next, None
                if page.data or page.missing_bytes:
                    yield page
                if page.next < page.end:
                    continue
                later = await self._later(session_id, attempt, start)
                if later is not None:
                    attempt, offset, stop = later, 0, None
                elif has_ended or not follow:
                    await self._check_is_there(session_id)
                    return
                else:
                    await notice.wait()

    async def _later(self, session_id: str, attempt: int | None, start: LogPosition) -> int | None:
        """Return the attempt to read after this one, or None."""
        if attempt is None or not start.then_later:
            return None
        return await self._history.streams.next_log(session_id, attempt, rank=start.rank)

    async def metrics(
        self, who: str, session_id: str, *, names: tuple[str, ...], after: int, follow: bool
    ) -> AsyncGenerator[MetricPage, None]:
        """Yield pages with points, losses or expired data in order, each once; ends as defined by ReadMetrics.

        `who` waits for a turn to read each of them.

        Raises:
            NotFound: it was removed meanwhile.
        """
        with self._noticed(session_id) as notice:
            while True:
                has_ended = await self._has_ended(session_id)
                async with self._reading.turn(who):
                    page = await self._history.streams.read_metrics(
                        session_id, names=names, after=after, limit_points=MOST_POINTS
                    )
                after = page.next
                if page.points or page.lost or page.let_go_at:
                    yield page
                if not page.is_end:
                    continue
                if has_ended or not follow:
                    await self._check_is_there(session_id)
                    return
                await notice.wait()

    async def _has_ended(self, session_id: str) -> bool:
        session = self._state.session(session_id)
        return session is None or session.state.is_ended

    async def _check_is_there(self, session_id: str) -> None:
        """Raise NotFound if it was removed: having nothing to read is then not the end of its data."""
        if not await self._has_ended(session_id) or await self._is_recorded(session_id):
            return
        # Ended and not recorded yet; or recorded and removed, and our state is outdated.
        with contextlib.suppress(StoreError):
            is_live = await self._state.renewed(session_id) is not None
            if not is_live and not await self._is_recorded(session_id):
                raise NotFound(f"session {session_id} was removed", attempt="nsml ps -a")

    async def _is_recorded(self, session_id: str) -> bool:
        return await self._history.catalogue.session(session_id) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a watch; see WatchSessionsResponse."""

    revision: int
    changed: tuple[Session, ...] = ()
    removed: tuple[str, ...] = ()
    is_reset: bool = False
    has_changes: bool = True
    """False if only reports are new. The first step is always sent, for its revision."""
    reported: tuple[str, ...] = ()


class SessionWatch:
    """Live sessions visible to one caller, and all their changes.

    Args:
        reports: also send their last reports; None: do not.
    """

    def __init__(
        self,
        *,
        state: LiveState,
        clock: Clock,
        caller: UserCaller,
        wanted: Filter,
        reports: LastReports | None = None,
    ) -> None:
        self._reports = reports
        self._state = state
        self._clock = clock
        self._caller = caller
        self._matcher = Matcher(caller, wanted)
        self._known: dict[str, Session] = {}
        """Live sessions as last sent to the caller."""
        self._removed = 0
        """The number of removed sessions at the last message."""
        self._first_revision = 0

    async def steps(self, from_revision: int) -> AsyncGenerator[Step, None]:
        """Yield the requested sessions, then changes forever.

        A caller with newer states from another control plane never gets older ones from us.

        Raises:
            Unavailable: we are too far behind the caller's revision.
        """
        if not await self._catch_up(from_revision):
            from_revision = 0
        with (
            self._state.subscribed("", VIEWED, wants=self._concerns) as changes,
            self._read(changes) as reader,
        ):
            first = self._first(from_revision)
            if reader is not None:
                # Session messages sent later have newer reports than these.
                await reader.begin(self._begun(), is_told=first.is_reset)
            yield first
            while True:
                news = self._step(await changes.take())
                reported = () if reader is None else reader.take(self._known.__contains__)
                if news is None and reported:
                    news = Step(revision=self._state.revision, has_changes=False)
                if news is not None:
                    yield replace(news, reported=reported)
                    await self._clock.sleep(CHANGES_TOGETHER_S)

    def _read(self, changes: Subscription) -> AbstractContextManager[Reader | None]:
        if self._reports is None:
            return contextlib.nullcontext()
        return self._reports.read(changes.poke)

    def _begun(self) -> list[str]:
        live = self._state.sessions
        return [one for one in self._known if live[one].value.attempt]

    async def _catch_up(self, revision: int) -> bool:
        try:
            async with asyncio.timeout(CATCH_UP_S):
                return await self._state.catch_up(revision)
        except TimeoutError:
            raise Unavailable("this control plane is behind", attempt="another one") from None

    def _first(self, from_revision: int) -> Step:
        state = self._state
        self._removed = state.removed
        oldest = self._first_revision = state.first_revision
        if len(state.removals) == state.removals.maxlen:
            oldest = state.removals[0].revision
        is_reset = from_revision < max(oldest, 1)
        since = 0 if is_reset else from_revision
        live = [stored for stored in state.sessions.values() if self._fits(stored.value)]
        self._known = {stored.value.id: stored.value for stored in live}
        changed = [stored.value for stored in live if stored.revision > since]
        removed = []
        if not is_reset:
            gone = [one.session for one in state.removals if one.revision > since]
            changed += [session for session in gone if self._fits(session)]
            # The caller may know sessions that no longer match the filter: they are removed, too.
            left = [
                stored.value
                for stored in state.sessions.values()
                if stored.revision > since and stored.value.id not in self._known
            ]
            removed = [one.id for one in (*gone, *left) if may(self._caller, SEE, one) is ALLOW]
        return Step(
            revision=state.revision,
            changed=tuple(changed),
            removed=tuple(removed),
            is_reset=is_reset,
        )

    def _fits(self, session: Session) -> bool:
        return self._matcher.fits(session, ended_too=True)

    def _concerns(self, change: Change) -> bool:
        """Whether the caller needs this change; bounds the queue of callers that do not read."""
        match change:
            case SessionChanged(session=session):
                return session.id in self._known or self._fits(session)
            case SessionRemoved(session_id=session_id):
                return session_id in self._known
        return False

    def _step(self, changes: list[Change]) -> Step | None:
        state = self._state
        gone = state.removed_after(self._removed)
        if gone is None or state.first_revision != self._first_revision:
            return self._first(0)
        self._removed = state.removed
        changed, removed = self._left(gone)
        for change in changes:
            match change:
                case SessionChanged(session=session) if self._fits(session):
                    self._known[session.id] = session
                    changed.append(session)
                case SessionChanged(session=session) if self._known.pop(session.id, None):
                    removed.append(session.id)
        if not changed and not removed:
            return None
        return Step(revision=state.revision, changed=tuple(changed), removed=tuple(removed))

    def _left(self, gone: list[Session]) -> tuple[list[Session], list[str]]:
        """Return removed sessions to send once more, and the ids of all removals to send.

        A slow reader's queue keeps only the newest change, the removal: the session's end must still be sent,
        even for sessions that came and went in between.
        """
        changed, removed = [], []
        for session in gone:
            known, fits = self._known.pop(session.id, None), self._fits(session)
            if fits and known is not session:
                changed.append(session)
            if fits or known is not None:
                removed.append(session.id)
        return changed, removed
