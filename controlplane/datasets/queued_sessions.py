"""Sessions that wait get what their users may read when they start, not what they could when they were submitted."""

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
"""How long sessions that are about to start wait for the store at most."""
RENEWED_AT_ONCE: Final = 8

_log = structlog.get_logger()


class QueuedSessions:
    """Gives sessions that wait other manifests of the versions that they have.

    Args:
        datasets: what is known of the datasets of queued sessions, where this control plane leads.
        live: the live sessions.
        user: a user by name; raises NotFound.
        withdrawn: how often rights to datasets of an owner were changed.
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
        """After who reads parts of a dataset has changed. Raises Unavailable."""
        found = [
            session
            for session in self._live()
            if session.state in WAITING
            and any((one.owner, one.name) == (owner, name) for one in session.spec.datasets)
        ]
        if not found:
            return
        await self._renew(found, [(owner, name)])

    async def renew(self, session: Session) -> None:
        """After a session was submitted: that may have changed since its datasets were looked up. Raises Unavailable."""
        await self._renew([session], dataset_names(session))

    def must_renew(self, session: Session) -> bool:
        """Whether a session cannot start as it is.

        One that ran when rights were changed, and is queued again, has what it had. Those whose datasets are of owners
        who never changed any need nothing, and start without the history.
        """
        return any(self._withdrawn(one.owner) for one in session.spec.datasets)

    async def renew_before_start(self, sessions: Iterable[Session]) -> Mapping[str, float]:
        """Renew sessions that the leader is about to start; how long those wait, in seconds by id, that cannot start.

        Never waits for the history: sessions of datasets that are not known yet cannot start.
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
        """Give sessions what their users may read of these datasets; how long those wait for which that failed."""
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
        """Give sessions what their users may read of these datasets now."""
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
        """Give a session what its user may read of these datasets; `users`: those that were looked up."""
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
    """The manifest of a version that sessions of a user get: without the parts that they may not have."""
    is_theirs = may(UserCaller(user=user), CHANGE, listing.dataset) is ALLOW
    return listing.owner_digest if is_theirs else listing.version.digest
