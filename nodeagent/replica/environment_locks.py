"""The packages of a session: fetched before an environment is made, and agreed upon afterwards.

The first replica to resolve them decides for all others, and for later attempts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from nodeagent.link.outbox import replica_of
from nodeagent.replica.preparation_steps import PreparationFailed
from nsml.client.errors import ClientError, NotFound, Unavailable, Unsupported
from nsml.content.digests import digest_of
from nsml.packages.locks import differences
from nsml.v1 import environments_pb2 as pb
from nsml.v1 import sessions_pb2 as sessions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from google.protobuf.message import Message

    from nodeagent.folders import ReplicaId
    from nodeagent.replica.preparation_steps import Draft, Hook
    from nsml.client.rpc import Rpc
    from nsml.common.clock import Offload

T = TypeVar("T", bound="Message")

_TRIES: Final = 5
"""Attempts to propose a lock without a control plane; then the session starts unrecorded."""

log = structlog.get_logger()


class LockHook:
    """Fetches the lock to install packages from.

    Args:
        rpc: returns the current connection.
        pause: awaited before a retry.
    """

    def __init__(self, rpc: Callable[[], Rpc], pause: Callable[[], Awaitable[None]]) -> None:
        self._rpc = rpc
        self._pause = pause

    def applies(self, spec: sessions.SessionSpec) -> bool:
        """Applies to sessions that may have an environment."""
        return _may_have_packages(spec)

    async def prepare(self, draft: Draft) -> None:
        """Fetch it: from the session that this one is made from, an earlier attempt, or another replica."""
        replica, pinned = (
            replica_of(draft.assignment.replica),
            draft.assignment.spec.environment_lock,
        )
        if not pinned and replica.attempt == 1 and draft.assignment.spec.replica_count < 2:
            return
        try:
            content = await self._fetched(replica.session_id)
        except (NotFound, Unsupported) as error:
            if pinned:
                raise _not_fetched(error) from error
            return
        except ClientError as error:
            raise _not_fetched(error) from error
        if pinned and digest_of(content.encode()) != pinned:
            text = "the lock does not match the session's record"
            raise PreparationFailed(sessions.CAUSE_ENVIRONMENT_FAILED, text)
        draft.lock = content

    async def _fetched(self, session: str) -> str:
        request = pb.GetEnvironmentLockRequest(session=session)
        method = "EnvironmentService/GetEnvironmentLock"
        while True:
            try:
                answer = await self._rpc().unary(method, request, pb.GetEnvironmentLockResponse)
            except Unavailable:
                await self._pause()
            else:
                return answer.lock.content


class AgreeHook:
    """Records the installed packages with the session, or installs the recorded ones.

    Args:
        rpc: returns the current connection.
        pause: awaited before a retry.
        installing: the steps that install packages.
        run: runs writes to the session's log.
    """

    def __init__(
        self,
        rpc: Callable[[], Rpc],
        pause: Callable[[], Awaitable[None]],
        installing: Sequence[Hook],
        run: Offload,
    ) -> None:
        self._rpc = rpc
        self._pause = pause
        self._installing = installing
        self._run = run

    def applies(self, spec: sessions.SessionSpec) -> bool:
        """Applies to sessions that may have an environment."""
        return _may_have_packages(spec)

    async def prepare(self, draft: Draft) -> None:
        """Propose the lock, and install the recorded one if it differs. If that fails, the session starts anyway."""
        if not draft.installed:
            return
        standing = await self._standing(draft)
        if not standing or _is_of(standing, draft):
            return
        if draft.lock != standing and not draft.is_lock_refused:
            draft.lock = standing
            for hook in self._installing:
                await hook.prepare(draft)
        if _is_of(standing, draft):
            return
        words = differences(draft.installed, standing)
        await self._run(lambda: draft.log.note(f"note: other packages than on record: {words}"))
        replica = replica_of(draft.assignment.replica)
        if not replica.rank:
            record = pb.RecordEnvironmentLockRequest(
                session_id=replica.session_id, attempt=replica.attempt, content=draft.installed
            )
            await self._tell(
                replica, "RecordEnvironmentLock", record, pb.RecordEnvironmentLockResponse
            )

    async def _standing(self, draft: Draft) -> str:
        """Return the lock of the session; "" if unavailable."""
        replica = replica_of(draft.assignment.replica)
        proposal = pb.ProposeEnvironmentLockRequest(
            session_id=replica.session_id, attempt=replica.attempt, content=draft.installed
        )
        answer = await self._tell(
            replica, "ProposeEnvironmentLock", proposal, pb.ProposeEnvironmentLockResponse
        )
        if answer is None:
            return ""
        return answer.lock.content or draft.installed

    async def _tell(
        self, replica: ReplicaId, method: str, request: Message, answer: type[T]
    ) -> T | None:
        """Return the answer of a control plane, or None."""
        for _ in range(_TRIES):
            try:
                return await self._rpc().unary(f"EnvironmentService/{method}", request, answer)
            except Unavailable:
                await self._pause()
            except NotFound:
                return None  # the session was removed meanwhile
            except ClientError as error:
                log.warning("lock.not_recorded", replica=str(replica), reason=str(error))
                return None
        log.warning("lock.not_recorded", replica=str(replica), reason="no control plane answers")
        return None


def _is_of(standing: str, draft: Draft) -> bool:
    """Whether a replica has the packages of a lock; if it keeps only those that its code needs, a subset is enough."""
    if draft.keeps_whole_lock:
        return draft.installed == standing
    return set(draft.installed.splitlines()) <= set(standing.splitlines())


def _may_have_packages(spec: sessions.SessionSpec) -> bool:
    return bool(spec.bundle_digest) or bool(spec.argv)


def _not_fetched(error: ClientError) -> PreparationFailed:
    text = f"the lock of its environment could not be fetched: {error}"
    return PreparationFailed(sessions.CAUSE_ENVIRONMENT_FAILED, text)
