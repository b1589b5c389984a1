"""Sessions that wait get what their users may read when they start, not what they could when they were submitted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import NotFound
from controlplane.domain.identity import User, UserCaller
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.policy import ALLOW, CHANGE, may

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from controlplane.core.compare_and_swap import SessionWriter
    from controlplane.domain.values import DatasetVersion, Session
    from controlplane.history.sql.history import History
    from controlplane.history.values import DatasetListing

WAITING: Final = frozenset({SessionState.QUEUED, SessionState.HELD})


class QueuedSessions:
    """Gives sessions that wait other manifests of the versions that they have.

    Args:
        live: the live sessions.
        user: a user by name; raises NotFound.
    """

    def __init__(
        self,
        *,
        history: History,
        live: Callable[[], Iterable[Session]],
        writer: SessionWriter,
        user: Callable[[str], Awaitable[User]],
    ) -> None:
        self._history = history
        self._live = live
        self._writer = writer
        self._user = user

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
        listings = await self._listings(owner, name)
        for session in found:
            await self._renew(session, {(owner, name): listings})

    async def renew(self, session: Session) -> None:
        """After a session was submitted: that may have changed since its datasets were looked up. Raises Unavailable."""
        names = {(one.owner, one.name) for one in session.spec.datasets}
        await self._renew(session, {name: await self._listings(*name) for name in names})

    async def _listings(self, owner: str, name: str) -> Mapping[int, DatasetListing]:
        found = await self._history.catalogue.dataset_versions(owner, name, with_removed=True)
        return {one.version.number: one for one in found}

    async def _renew(
        self, session: Session, datasets: Mapping[tuple[str, str], Mapping[int, DatasetListing]]
    ) -> None:
        try:
            user = await self._user(session.owner)
        except NotFound:
            user = User(name=session.owner)

        def now(one: DatasetVersion) -> DatasetVersion:
            listing = datasets.get((one.owner, one.name), {}).get(one.version)
            return one if listing is None else replace(one, digest=session_digest(user, listing))

        def decide(current: Session) -> Session:
            if current.state not in WAITING:
                return current
            spec = replace(current.spec, datasets=tuple(map(now, current.spec.datasets)))
            return current if spec == current.spec else replace(current, spec=spec)

        await self._writer.change(session.id, decide, is_counted=False)


def session_digest(user: User, listing: DatasetListing) -> str:
    """The manifest of a version that sessions of a user get: without the parts that they may not have."""
    is_theirs = may(UserCaller(user=user), CHANGE, listing.dataset) is ALLOW
    return listing.owner_digest if is_theirs else listing.version.digest
