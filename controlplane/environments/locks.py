"""Locks of environments: the packages that sessions ran with, as their nodes report them.

What a node reports is believed of the sessions that ran there, and of those that are made from them by users who see
them. Hashes hold what is downloaded to it; where packages come from is never part of it.
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
    """Why nothing is on record of the packages of a session, as far as its record tells."""
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
        run: reads long ones.
    """

    def __init__(self, *, history: History, rights: Rights, run: Offload) -> None:
        self._history = history
        self._rights = rights
        self._run = run

    async def of(self, session: Session) -> EnvironmentLock:
        """What a session runs with, or is to run with. Raises NotFound."""
        locks = self._history.environment_locks
        found = await locks.of(session.id)
        if found is None and await self.inherit(session):
            found = await locks.of(session.id)
        if found is None:
            raise NotFound(f"no lock of {session.name} is kept", why=why_none(session))
        return found

    async def inherit(self, session: Session) -> bool:
        """Have the lock that a session is to run with noted as its own; False where there is none, or it is gone."""
        digest = session.spec.environment_lock
        return bool(digest) and await self._history.environment_locks.share_lock(session.id, digest)

    async def check_same(self, source: Session | None, digest: str) -> None:
        """Raise NotFound unless a session to be made from `source` may have this lock."""
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
        """The lock of a session, which is the first that one of its replicas proposes; without content if it is this one.

        Raises as `record`.
        """
        session, lock = await self._checked(agent, session_id, attempt, content)
        standing = await self._history.environment_locks.propose_lock(session.id, lock)
        return replace(lock, content="") if standing.digest == lock.digest else standing

    async def record(self, agent: NodeCaller, session_id: str, attempt: int, content: str) -> None:
        """Note what an attempt on the agent's node is about to run with.

        Raises:
            NotFound: it has no replica there.
            TooLarge: more than a lock may have.
            InvalidRequest: it is no lock.
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
        """Note the packages that a session of a backup ran with. Raises as `record`, but NotFound."""
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
