"""Sessions that wait get what their users may read when they start, not what they could when they were submitted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.errors import NotFound, NsmlError
from controlplane.domain.identity import User, UserCaller
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.policy import ALLOW, CHANGE, may
from controlplane.store.interface import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from controlplane.core.compare_and_swap import SessionWriter
    from controlplane.domain.values import DatasetVersion, Session
    from controlplane.history.sql.history import History
    from controlplane.history.values import DatasetListing
    from nsml.common.clock import Clock

WAITING: Final = frozenset({SessionState.QUEUED, SessionState.HELD})
RENEWED_WITHIN_S: Final = 2.0
"""How long sessions that are about to start, and all that are placed with them, wait for the history at most."""
AGAIN_S: Final = 5.0
"""After a failure, sessions that need the history wait so long before it is asked again."""

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
        self._not_before = 0.0

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
        await self._renew(found, {(owner, name)})

    async def renew(self, session: Session) -> None:
        """After a session was submitted: that may have changed since its datasets were looked up. Raises Unavailable."""
        await self._renew([session], {(one.owner, one.name) for one in session.spec.datasets})

    async def renew_before_start(self, sessions: Iterable[Session]) -> set[str]:
        """Renew sessions that the leader is about to start; the ids of those that cannot start now, as that failed.

        One that ran when rights were changed, and is queued again, has what it had. Those whose datasets are of owners
        who never changed any need nothing, and start without the history.
        """
        found = [
            session
            for session in sessions
            if any(self._withdrawn(one.owner) for one in session.spec.datasets)
        ]
        if not found:
            return set()
        if self._clock.monotonic() >= self._not_before:
            names = {(one.owner, one.name) for session in found for one in session.spec.datasets}
            try:
                async with asyncio.timeout(RENEWED_WITHIN_S):
                    await self._renew(found, names)
            except (NsmlError, StoreError, TimeoutError) as error:
                self._not_before = self._clock.monotonic() + AGAIN_S
                _log.warning("sessions.not_renewed", count=len(found), reason=str(error))
            else:
                return set()
        return {session.id for session in found}

    async def _listings(self, owner: str, name: str) -> Mapping[int, DatasetListing]:
        found = await self._history.catalogue.dataset_versions(owner, name, with_removed=True)
        return {one.version.number: one for one in found}

    async def _renew(
        self, sessions: Collection[Session], names: Collection[tuple[str, str]]
    ) -> None:
        """Give sessions what their users may read of these datasets now."""
        datasets = {name: await self._listings(*name) for name in sorted(names)}
        owners = sorted({one.owner for one in sessions})
        users = {owner: await self._user_of(owner) for owner in owners}
        for session in sessions:
            decide = partial(_renewed, user=users[session.owner], datasets=datasets)
            await self._writer.change(session.id, decide, is_counted=False)

    async def _user_of(self, name: str) -> User:
        try:
            return await self._user(name)
        except NotFound:
            return User(name=name)


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
