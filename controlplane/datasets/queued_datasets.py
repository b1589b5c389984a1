"""Caches datasets of queued sessions, read ahead from the history: scheduling never waits for the history."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import structlog

from controlplane.domain.changes import SessionChanged, SessionRemoved
from controlplane.domain.errors import NsmlError
from controlplane.domain.lifecycle import SessionState
from nsml.common.concurrency import each_at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from controlplane.domain.changes import Change
    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.history.values import DatasetListing
    from controlplane.state.live_state import LiveState
    from controlplane.state.subscriptions import Subscription
    from nsml.common.clock import Clock

WAITING: Final = frozenset({SessionState.QUEUED, SessionState.HELD})
LOOKED_UP_WITHIN_S: Final = 2.0
AGAIN_S: Final = 5.0
"""Retry delay after a failed lookup of a dataset."""
FORGOTTEN_AFTER_S: Final = 60.0
"""A failure is logged again this long after the last retry of the same dataset was due."""
REFRESHED_AFTER_S: Final = 5.0
VALID_FOR_S: Final = 15.0
"""Cache lifetime: limits the delay of changes of access that were stored, but aborted before they were counted."""
WANTED_FOR_S: Final = 30.0
"""Only datasets of sessions about to start within this time are refreshed; others once their sessions are."""
SCANNED_EVERY_S: Final = 1.0
_LOOKED_UP_AT_ONCE: Final = 4
"""Small: others read the history, too, and a timed-out lookup keeps its thread until it ends."""

Name: TypeAlias = tuple[str, str]
"""Owner and name of a dataset."""
Listings: TypeAlias = "Mapping[int, DatasetListing]"
"""Its versions by number, including removed ones."""

_log = structlog.get_logger()


class _Known(NamedTuple):
    withdrawn: int
    at: float
    listings: Listings


class _Queued(NamedTuple):
    """A queued session, and when it was first seen (monotonic)."""

    names: tuple[Name, ...]
    attempt: int
    since: float


class QueuedDatasets:
    """Versions of datasets of queued sessions, for owners with any change of access to parts.

    A dataset is looked up when a session is queued, and refreshed while a session with it is about to start.

    Args:
        withdrawn: counts the changes of access to an owner's datasets.
    """

    def __init__(
        self,
        *,
        history: History,
        state: LiveState,
        withdrawn: Callable[[str], int],
        clock: Clock,
    ) -> None:
        self._history = history
        self._state = state
        self._withdrawn = withdrawn
        self._clock = clock
        self._known: dict[Name, _Known] = {}
        # Time of the next retry (monotonic).
        self._failed: dict[Name, float] = {}
        self._queued: dict[str, _Queued] = {}
        # Number of queued sessions by dataset, and when the newest of them was queued.
        self._uses: Counter[Name] = Counter()
        self._newest: dict[Name, float] = {}
        # When a session with the dataset was last about to start.
        self._wanted: dict[Name, float] = {}
        self._changes: Subscription | None = None
        self._is_asked = False

    def of(self, session: Session) -> Mapping[Name, Listings] | None:
        """Return versions of a queued session's datasets, read since it was queued; None if not all are cached.

        They are at most a few seconds old, without a counted change of access since. Datasets of owners without any
        change are left out: they are as at submission.
        """
        queued, found = self._queued.get(session.id), {}
        self._wanted |= dict.fromkeys(dataset_names(session), self._clock.monotonic())
        if queued is None or queued.attempt != session.attempt:
            return None
        for name in filter(self._can_change, queued.names):
            known = self._known.get(name)
            if known is None or known.at < queued.since or self._is_over(name, known, VALID_FOR_S):
                return None
            found[name] = known.listings
        return found

    def want(self, session: Session) -> float:
        """Request a lookup of a session's datasets; return the seconds until the next retry after a failure, else 0."""
        self._is_asked = True
        if self._changes is not None:
            self._changes.poke()
        failed = [self._failed.get(name, 0.0) for name in dataset_names(session)]
        return max(max(failed, default=0.0) - self._clock.monotonic(), 0.0)

    async def run(self) -> None:
        """Look up datasets as their sessions are queued, and refresh them every few seconds, until cancelled."""
        try:
            with self._state.subscribed(wants=_is_of_session) as self._changes:
                for stored in list(self._state.sessions.values()):
                    self._note(SessionChanged(session=stored.value))
                while True:
                    await self._refresh(self._changes)
                    await self._take(self._changes)
        finally:
            self._changes = None
            for kept in (self._known, self._failed, self._queued, self._uses, self._newest):
                kept.clear()
            self._wanted.clear()

    async def _take(self, changes: Subscription) -> None:
        """Process changes of sessions until a dataset may be due."""
        # Drain first: after slow rounds `_is_asked` is always set already, and the loop below never runs.
        if self._note_all(changes.drain()):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SCANNED_EVERY_S):
                while not self._is_asked:
                    if self._note_all(await changes.take()):
                        return

    def _note_all(self, changes: Iterable[Change]) -> bool:
        """Process changes of sessions; return whether one with datasets was just queued."""
        noted = [self._note(change) for change in changes]  # a list: any() would stop early
        return any(noted)

    def _note(self, change: Change) -> bool:
        """Process a change of a session; return whether it was just queued, with datasets."""
        if isinstance(change, SessionRemoved):
            self._leaves(change.session_id)
        if not isinstance(change, SessionChanged):
            return False
        session, before = change.session, self._queued.get(change.session.id)
        if session.state not in WAITING:
            self._leaves(session.id)
            return False
        if before is not None and before.attempt == session.attempt:
            return False
        self._leaves(session.id)
        names, now = dataset_names(session), self._clock.monotonic()
        if names:
            self._queued[session.id] = _Queued(names, session.attempt, now)
        for name in names:
            self._uses[name] += 1
            self._newest[name] = now
        return bool(names)

    def _leaves(self, session_id: str) -> None:
        queued = self._queued.pop(session_id, None)
        for name in queued.names if queued is not None else ():
            self._uses[name] -= 1
            if not self._uses[name]:
                del self._uses[name], self._newest[name]
                self._known.pop(name, None)

    async def _refresh(self, changes: Subscription) -> None:
        """Look up due datasets, wanted ones first; stops early if a session is queued or wants others meanwhile."""
        self._is_asked, now = False, self._clock.monotonic()
        due = [
            name
            for name, newest in self._newest.items()
            if self._can_change(name)
            and self._failed.get(name, 0.0) <= now
            and self._is_due(name, newest)
        ]
        due.sort(key=self._turn)
        is_over = False

        async def look_up(place: int) -> None:
            nonlocal is_over
            is_over = is_over or self._note_all(changes.drain()) or self._is_asked
            if not is_over or place < _LOOKED_UP_AT_ONCE:
                await self._look_up(due[place])

        await each_at_once(range(len(due)), look_up, most=_LOOKED_UP_AT_ONCE)
        self._is_asked |= is_over
        now = self._clock.monotonic()
        self._failed = {
            name: until for name, until in self._failed.items() if now < until + FORGOTTEN_AFTER_S
        }
        self._wanted = {name: at for name, at in self._wanted.items() if now < at + WANTED_FOR_S}

    def _can_change(self, name: Name) -> bool:
        """Whether its owner has ever changed the access to parts."""
        return bool(self._withdrawn(name[0]))

    def _turn(self, name: Name) -> tuple[bool, float]:
        """Sort key: wanted datasets first; among them unread ones, then the least recently read."""
        known = self._known.get(name)
        is_read = known is not None and known.at >= self._newest[name]
        return not self._is_wanted(name), known.at if known is not None and is_read else -math.inf

    def _is_wanted(self, name: Name) -> bool:
        wanted = self._wanted.get(name)
        return wanted is not None and self._clock.monotonic() - wanted < WANTED_FOR_S

    def _is_due(self, name: Name, newest: float) -> bool:
        known = self._known.get(name)
        if known is None or known.at < newest:
            return True
        return self._is_wanted(name) and self._is_over(name, known, REFRESHED_AFTER_S)

    async def _look_up(self, name: Name) -> None:
        # Before the lookup: a change during it makes the result stale.
        withdrawn, now = self._withdrawn(name[0]), self._clock.monotonic()
        try:
            async with asyncio.timeout(LOOKED_UP_WITHIN_S):
                listings = await listings_of(self._history, name)
        except (NsmlError, TimeoutError) as error:
            self._has_failed(name, error)
        else:
            self._failed.pop(name, None)
            if name in self._uses:
                self._known[name] = _Known(withdrawn, now, listings)

    def _has_failed(self, name: Name, error: Exception) -> None:
        if name not in self._failed:
            reason = str(error) or type(error).__name__
            _log.warning("sessions.not_renewed", dataset="/".join(name), reason=reason)
        self._failed[name] = self._clock.monotonic() + AGAIN_S

    def _is_over(self, name: Name, known: _Known, for_s: float) -> bool:
        return (
            known.withdrawn != self._withdrawn(name[0])
            or self._clock.monotonic() - known.at >= for_s
        )


def dataset_names(session: Session) -> tuple[Name, ...]:
    """Return the distinct datasets of a session, sorted."""
    return tuple(sorted({(one.owner, one.name) for one in session.spec.datasets}))


async def listings_of(history: History, name: Name) -> Listings:
    """Read the current versions of a dataset."""
    found = await history.catalogue.dataset_versions(*name, with_removed=True)
    return {one.version.number: one for one in found}


def _is_of_session(change: Change) -> bool:
    return isinstance(change, SessionChanged | SessionRemoved)
