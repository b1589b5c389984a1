"""Environment locks: the packages that sessions ran with, as reported by their nodes.

A node's report is trusted for sessions that ran there, and for sessions made from these by users
that may see them. Hashes pin the downloads; a lock never contains the packages' sources.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from controlplane.domain.errors import InvalidRequest, NotFound, TooLarge
from controlplane.history.values import EnvironmentLock
from nsml.content.digests import digest_of
from nsml.packages.locks import MOST_LOCK_BYTES, LockRefused, read_lock

if TYPE_CHECKING:
    from controlplane.domain.identity import NodeCaller
    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.state.replica_rights import Rights
    from nsml.common.clock import Offload


def why_none(session: Session) -> str:
    """Return why a session has no lock, as far as its record shows."""
    spec, has_ended = session.spec, session.state.is_ended
    reasons = (
        (session.imported is not None, "the backup that it comes from has none"),
        (spec.environment_lock, "that of the session that it comes from is not kept any more"),
        (not session.attempt and has_ended, "it ended before it was placed"),
        (not session.attempt, "it waits, and is not prepared yet"),
        (not session.started_at and has_ended, "it ended before it was prepared"),
        (not session.started_at, "it is not prepared yet"),
        (spec.dockerfile, f"its packages are those of the image from {spec.dockerfile}"),
        (not spec.bundle_digest, "it ran without code, which would list packages"),
        (spec.image, f"its code lists no packages beside those of image {spec.image}"),
    )
    otherwise = "its code lists no packages, its log says why it has none, or its agent was of an earlier version"
    return next((why for holds, why in reasons if holds), otherwise)


class EnvironmentLocks:
    """Records and finds locks.

    Args:
        run: parses locks.
    """

    def __init__(self, *, history: History, rights: Rights, run: Offload) -> None:
        self._history = history
        self._rights = rights
        self._run = run

    async def of(self, session: Session) -> EnvironmentLock:
        """Return the lock of a session, or the inherited one. Raises NotFound."""
        locks = self._history.environment_locks
        found = await locks.of(session.id)
        if found is None and await self.inherit(session):
            found = await locks.of(session.id)
        if found is None:
            raise NotFound(f"no lock of {session.name} is kept", why=why_none(session))
        return found

    async def inherit(self, session: Session) -> bool:
        """Record the lock in a session's spec as its own; False if there is none, or it was removed."""
        digest = session.spec.environment_lock
        return bool(digest) and await self._history.environment_locks.share_lock(session.id, digest)

    async def check_same(self, source: Session | None, digest: str) -> None:
        """Raise NotFound unless a new session made from `source` may use this lock."""
        if not digest:
            return
        known = await self._history.environment_locks.facts_of(source.id) if source else None
        of_source = {known.digest if known else "", source.spec.environment_lock if source else ""}
        if digest not in of_source:
            whose = f"session {source.name} has" if source is not None else "a new session has"
            raise NotFound(
                f"{whose} no lock {digest[:12]}", attempt="--refresh takes the newest packages"
            )

    async def agree(
        self, agent: NodeCaller, session_id: str, attempt: int, content: str
    ) -> EnvironmentLock:
        """Return the session's lock: the first one proposed by a replica; without content if it equals `content`.

        Raises as `record`.
        """
        session, lock = await self._checked(agent, session_id, attempt, content)
        standing = await self._history.environment_locks.propose_lock(session.id, lock)
        return replace(lock, content="") if standing.digest == lock.digest else standing

    async def record(self, agent: NodeCaller, session_id: str, attempt: int, content: str) -> None:
        """Record the lock of an attempt on the agent's node.

        Raises:
            NotFound: the attempt has no replica there.
            TooLarge: over MOST_LOCK_BYTES.
            InvalidRequest: it is no lock, or the session is pinned to another.
        """
        session, lock = await self._checked(agent, session_id, attempt, content)
        await self._history.environment_locks.note_lock(session.id, lock)

    async def _checked(
        self, agent: NodeCaller, session_id: str, attempt: int, content: str
    ) -> tuple[Session, EnvironmentLock]:
        if len(content) > MOST_LOCK_BYTES:
            raise TooLarge(f"a lock has at most {MOST_LOCK_BYTES} bytes")
        session = await self._rights.check(agent.node, session_id, attempt)
        lock = await self._run(partial(_read, content))
        if session.spec.environment_lock not in {"", lock.digest}:
            raise InvalidRequest(
                "the lock does not match the session's record",
                why=f"the packages of {session.name} are pinned to another session's lock",
            )
        return session, lock

    async def restore(self, session_id: str, content: str) -> None:
        """Record the lock of a session from a backup. Raises as `record`, except NotFound."""
        if len(content) > MOST_LOCK_BYTES:
            raise TooLarge(f"a lock has at most {MOST_LOCK_BYTES} bytes")
        lock = await self._run(partial(_read, content))
        await self._history.environment_locks.note_lock(session_id, lock)


def _read(content: str) -> EnvironmentLock:
    try:
        packages = read_lock(content)
    except LockRefused as error:
        raise InvalidRequest("it is no lock", why=str(error)) from None
    return EnvironmentLock(digest_of(content.encode()), len(packages), content)
