"""The packages of a session, as its record has them: fetched before an environment is made, and reported once it is there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from nodeagent.environments.virtualenvs import lock_of
from nodeagent.link.outbox import replica_of
from nodeagent.replica.preparation_steps import PreparationFailed
from nsml.client.errors import ClientError, NotFound, Unavailable
from nsml.content.digests import digest_of
from nsml.v1 import environments_pb2 as pb
from nsml.v1 import sessions_pb2 as sessions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nodeagent.replica.preparation_steps import Draft
    from nsml.client.rpc import Rpc
    from nsml.common.clock import Offload

_TRIES: Final = 5
"""Reports of a lock, while no control plane answers: the session does not wait longer for its record."""

log = structlog.get_logger()


class LockHook:
    """The lock that the packages are to be installed from.

    Args:
        rpc: gives the connection of the moment.
        pause: awaited before something is tried again.
    """

    def __init__(self, rpc: Callable[[], Rpc], pause: Callable[[], Awaitable[None]]) -> None:
        self._rpc = rpc
        self._pause = pause

    def applies(self, spec: sessions.SessionSpec) -> bool:
        """Sessions from the record of one whose lock is kept."""
        return bool(spec.environment_lock)

    async def prepare(self, draft: Draft) -> None:
        """Have it, if it is the one that was asked for."""
        session = replica_of(draft.assignment.replica).session_id
        try:
            content = await self._fetched(session)
        except ClientError as error:
            text = f"the lock of its environment could not be fetched: {error}"
            raise PreparationFailed(sessions.CAUSE_ENVIRONMENT_FAILED, text) from error
        if digest_of(content.encode()) != draft.assignment.spec.environment_lock:
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


class RecordLockHook:
    """Has the packages that were installed recorded with the session."""

    def __init__(
        self, rpc: Callable[[], Rpc], pause: Callable[[], Awaitable[None]], run: Offload
    ) -> None:
        self._rpc = rpc
        self._pause = pause
        self._run = run

    def applies(self, spec: sessions.SessionSpec) -> bool:
        """All that may have an environment."""
        return bool(spec.bundle_digest) or bool(spec.argv)

    async def prepare(self, draft: Draft) -> None:
        """Report the lock; for a gang the first replica does. The session starts also where that fails."""
        replica = replica_of(draft.assignment.replica)
        if draft.python is None or replica.rank:
            return
        content = await self._run(partial(lock_of, draft.python.folder))
        if not content:
            return
        request = pb.RecordEnvironmentLockRequest(
            session_id=replica.session_id, attempt=replica.attempt, content=content
        )
        for _ in range(_TRIES):
            try:
                await self._rpc().unary(
                    "EnvironmentService/RecordEnvironmentLock",
                    request,
                    pb.RecordEnvironmentLockResponse,
                )
            except Unavailable:
                await self._pause()
            except NotFound:
                return  # it was removed meanwhile
            except ClientError as error:
                log.warning("lock.not_recorded", replica=str(replica), reason=str(error))
                return
            else:
                return
        log.warning("lock.not_recorded", replica=str(replica), reason="no control plane answers")
