"""Sessions that wait get what their users may read when they start, not what they could when they were submitted."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog

from controlplane.domain.errors import NotFound, NsmlError
from controlplane.domain.identity import User, UserCaller
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.policy import ALLOW, CHANGE, may
from controlplane.store.interface import StoreError
from nsml.common.concurrency import each_at_once

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from controlplane.core.compare_and_swap import SessionWriter
    from controlplane.domain.values import DatasetVersion, Session
    from controlplane.history.sql.history import History
    from controlplane.history.values import DatasetListing
    from nsml.common.clock import Clock

WAITING: Final = frozenset({SessionState.QUEUED, SessionState.HELD})
RENEWED_WITHIN_S: Final = 2.0
"""How long sessions that are about to start wait for the history at most."""
AGAIN_S: Final = 5.0
"""After a failure, sessions of the same datasets wait so long before the history is asked again."""
FORGOTTEN_AFTER_S: Final = 60.0
"""A failure that comes so long after the last one of the same datasets is logged anew."""
_LOOKED_UP_AT_ONCE: Final = 4
"""Groups of sessions for which the history is asked at one time: others read it, too, and a look-up that is given up
keeps its thread until it ends."""

Names: TypeAlias = tuple[tuple[str, str], ...]
"""Owners and names of datasets, sorted: the same run looks them up in the same order."""

_log = structlog.get_logger()


class QueuedSessions:
    """Gives sessions that wait other manifests of the versions that they have.

    Args:
        live: the live sessions.
        user: a user by name; raises NotFound.
        withdrawn: how often rights to datasets of an owner were changed.
    """

    def __init__(
        self,
        *,
        history: History,
        live: Callable[[], Iterable[Session]],
        writer: SessionWriter,
        user: Callable[[str], Awaitable[User]],
        withdrawn: Callable[[str], int],
        clock: Clock,
    ) -> None:
        self._history = history
        self._live = live
        self._writer = writer
        self._user = user
        self._withdrawn = withdrawn
        self._clock = clock
        # Until when those wait whose datasets could not be looked up, by these; of the monotonic clock.
        self._failed: dict[Names, float] = {}

    async def renew_all(self, owner: str, name: str) -> None:
        """After who reads parts of a dataset has changed. Raises Unavailable."""
        found = [
            session
            for session in self._live()
            if session.state in WAITING
            and any((one.owner, one.name) == (owner, name) for one in session.spec.datasets)
        ]
        if not found:
            return
        await self._renew(found, ((owner, name),), set())

    async def renew(self, session: Session) -> None:
        """After a session was submitted: that may have changed since its datasets were looked up. Raises Unavailable."""
        await self._renew([session], _names(session), set())

    def must_renew(self, session: Session) -> bool:
        """Whether a session cannot start as it is.

        One that ran when rights were changed, and is queued again, has what it had. Those whose datasets are of owners
        who never changed any need nothing, and start without the history.
        """
        return any(self._withdrawn(one.owner) for one in session.spec.datasets)

    async def renew_before_start(self, sessions: Iterable[Session]) -> Mapping[str, float]:
        """Renew sessions that the leader is about to start; how long those wait, in seconds by id, that cannot start.

        Those of other datasets wait for none that cannot be looked up.
        """
        now = self._clock.monotonic()
        self._failed = {
            names: until for names, until in self._failed.items() if now < until + FORGOTTEN_AFTER_S
        }
        groups: dict[Names, list[Session]] = defaultdict(list)
        for session in sessions:
            groups[_names(session)].append(session)
        due = [names for names in groups if self._failed.get(names, 0.0) <= now]
        loop, renewed = asyncio.get_running_loop(), set[str]()
        ends_at = loop.time() + RENEWED_WITHIN_S

        async def renew(names: Names) -> None:
            if loop.time() >= ends_at:
                return  # It comes next: those before it wait for longer.
            try:
                async with asyncio.timeout_at(ends_at):
                    await self._renew(groups[names], names, renewed)
            except (NsmlError, StoreError, TimeoutError) as error:
                self._has_failed(names, error)
            else:
                self._failed.pop(names, None)

        await each_at_once(due, renew, most=_LOOKED_UP_AT_ONCE)
        now = self._clock.monotonic()
        return {
            session.id: max(self._failed.get(names, 0.0) - now, 0.0)
            for names, group in groups.items()
            for session in group
            if session.id not in renewed
        }

    def _has_failed(self, names: Names, error: Exception) -> None:
        if names not in self._failed:
            datasets = ", ".join(f"{owner}/{name}" for owner, name in names)
            reason = str(error) or type(error).__name__
            _log.warning("sessions.not_renewed", datasets=datasets, reason=reason)
        self._failed[names] = self._clock.monotonic() + AGAIN_S

    async def _listings(self, owner: str, name: str) -> Mapping[int, DatasetListing]:
        found = await self._history.catalogue.dataset_versions(owner, name, with_removed=True)
        return {one.version.number: one for one in found}

    async def _renew(self, sessions: Sequence[Session], names: Names, renewed: set[str]) -> None:
        """Give sessions what their users may read of these datasets now; the ids of those that have it are added."""
        datasets = {name: await self._listings(*name) for name in names}
        owners = sorted({one.owner for one in sessions})
        users = {owner: await self._user_of(owner) for owner in owners}
        for session in sessions:
            decide = partial(_renewed, user=users[session.owner], datasets=datasets)
            await self._writer.change(session.id, decide, is_counted=False)
            renewed.add(session.id)

    async def _user_of(self, name: str) -> User:
        try:
            return await self._user(name)
        except NotFound:
            return User(name=name)


def _names(session: Session) -> Names:
    return tuple(sorted({(one.owner, one.name) for one in session.spec.datasets}))


def _renewed(
    session: Session,
    *,
    user: User,
    datasets: Mapping[tuple[str, str], Mapping[int, DatasetListing]],
) -> Session:
    def now(one: DatasetVersion) -> DatasetVersion:
        listing = datasets.get((one.owner, one.name), {}).get(one.version)
        return one if listing is None else replace(one, digest=session_digest(user, listing))

    if session.state not in WAITING:
        return session
    spec = replace(session.spec, datasets=tuple(map(now, session.spec.datasets)))
    return session if spec == session.spec else replace(session, spec=spec)


def session_digest(user: User, listing: DatasetListing) -> str:
    """The manifest of a version that sessions of a user get: without the parts that they may not have."""
    is_theirs = may(UserCaller(user=user), CHANGE, listing.dataset) is ALLOW
    return listing.owner_digest if is_theirs else listing.version.digest
