"""Renews queued sessions: they start with their users' access of that time, not that of submission."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog

from controlplane.datasets.queued_datasets import AGAIN_S, WAITING, dataset_names, listings_of
from controlplane.domain.errors import NotFound, NsmlError
from controlplane.domain.identity import User, UserCaller
from controlplane.domain.policy import ALLOW, CHANGE, may
from controlplane.store.interface import StoreError
from nsml.common.concurrency import each_at_once

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from controlplane.core.compare_and_swap import SessionWriter
    from controlplane.datasets.queued_datasets import Listings, Name, QueuedDatasets
    from controlplane.domain.values import DatasetVersion, Session
    from controlplane.history.sql.history import History
    from controlplane.history.values import DatasetListing

    Datasets: TypeAlias = Mapping[Name, Listings]

RENEWED_WITHIN_S: Final = 2.0
"""Timeout of the store writes for sessions about to start."""
RENEWED_AT_ONCE: Final = 8

_log = structlog.get_logger()


class QueuedSessions:
    """Replaces the manifests of queued sessions' dataset versions after changes of access.

    Args:
        datasets: cached datasets of queued sessions, if this control plane leads.
        live: returns the live sessions.
        user: returns a user by name; raises NotFound.
        withdrawn: counts the changes of access to an owner's datasets.
    """

    def __init__(
        self,
        *,
        history: History,
        datasets: QueuedDatasets,
        live: Callable[[], Iterable[Session]],
        writer: SessionWriter,
        user: Callable[[str], Awaitable[User]],
        withdrawn: Callable[[str], int],
    ) -> None:
        self._history = history
        self._datasets = datasets
        self._live = live
        self._writer = writer
        self._user = user
        self._withdrawn = withdrawn

    async def renew_all(self, owner: str, name: str) -> None:
        """Renew after a change of access to a dataset's parts. Raises Unavailable."""
        found = [
            session
            for session in self._live()
            if session.state in WAITING
            and not session.spec.is_confined
            and any((one.owner, one.name) == (owner, name) for one in session.spec.datasets)
        ]
        if not found:
            return
        await self._renew(found, [(owner, name)])

    async def renew(self, session: Session) -> None:
        """Renew a submitted session: access may have changed since its datasets were resolved. Raises Unavailable."""
        await self._renew([session], dataset_names(session))

    def must_renew(self, session: Session) -> bool:
        """Whether a session must be renewed before it starts.

        A session that ran during a change of access and was requeued has its old manifests. Sessions with datasets
        of owners without any change start without the history. Steps of submissions have files that no user gets:
        they were decided on with the submission.
        """
        return not session.spec.is_confined and any(
            self._withdrawn(one.owner) for one in session.spec.datasets
        )

    async def renew_before_start(self, sessions: Iterable[Session]) -> Mapping[str, float]:
        """Renew sessions about to start, on the leader; return the delay in seconds, by ID, of those that cannot start.

        Never waits for the history: sessions with uncached datasets cannot start.
        """
        waits: dict[str, float] = {}
        known: list[tuple[Session, Datasets]] = []
        for session in sessions:
            found = self._datasets.of(session)
            if found is None:
                waits[session.id] = self._datasets.want(session)
            else:
                known.append((session, found))
        waits |= await self._renew_known(known)
        return waits

    async def _renew_known(self, found: Sequence[tuple[Session, Datasets]]) -> Mapping[str, float]:
        """Renew sessions from cached datasets; return the delay in seconds, by ID, of those that failed."""
        waits, users = {session.id: AGAIN_S for session, _ in found}, dict[str, User]()
        reason = ""

        async def give(one: tuple[Session, Datasets]) -> None:
            nonlocal reason
            session, datasets = one
            try:
                await self._give(session, datasets, users)
            except (NsmlError, StoreError) as error:
                reason = str(error)
            else:
                del waits[session.id]

        with suppress(TimeoutError):
            async with asyncio.timeout(RENEWED_WITHIN_S):
                await each_at_once(found, give, most=RENEWED_AT_ONCE)
        if waits:
            reason = reason or "the store does not answer in time"
            _log.warning("sessions.not_renewed", sessions=len(waits), reason=reason)
        return waits

    async def _renew(self, sessions: Sequence[Session], names: Iterable[Name]) -> None:
        """Renew sessions from the current versions of these datasets."""
        datasets, users = (
            {name: await listings_of(self._history, name) for name in names},
            dict[str, User](),
        )
        await each_at_once(
            sessions,
            lambda session: self._give(session, datasets, users),
            most=RENEWED_AT_ONCE,
        )

    async def _give(self, session: Session, datasets: Datasets, users: dict[str, User]) -> None:
        """Renew a session from these datasets; `users` caches looked-up users."""
        owner = session.owner
        user = users[owner] = users.get(owner) or await self._user_of(owner)
        decide = partial(_renewed, user=user, datasets=datasets)
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
    datasets: Datasets,
) -> Session:
    def now(one: DatasetVersion) -> DatasetVersion:
        listing = datasets.get((one.owner, one.name), {}).get(one.version)
        return one if listing is None else replace(one, digest=session_digest(user, listing))

    if session.state not in WAITING:
        return session
    spec = replace(session.spec, datasets=tuple(map(now, session.spec.datasets)))
    return session if spec == session.spec else replace(session, spec=spec)


def session_digest(user: User, listing: DatasetListing) -> str:
    """Return the manifest of a version for sessions of a user, with only the parts allowed to them."""
    is_theirs = may(UserCaller(user=user), CHANGE, listing.dataset) is ALLOW
    return listing.owner_digest if is_theirs else listing.version.digest
