"""EnvironmentService."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.access.current import caller, require_agent, require_user
from controlplane.domain.identity import NodeCaller, identity_of
from controlplane.wire.errors import Context, answering
from nsml.v1 import environments_pb2 as pb
from nsml.v1 import environments_pb2_grpc, sessions_pb2

if TYPE_CHECKING:
    from controlplane.environments.locks import EnvironmentLocks
    from controlplane.limits.concurrency_limits import Turns
    from controlplane.state.references import References


class EnvironmentServicer(environments_pb2_grpc.EnvironmentServiceServicer):
    """Environments, as users and nodes see them."""

    def __init__(self, locks: EnvironmentLocks, references: References, reading: Turns) -> None:
        self._locks = locks
        self._references = references
        self._reading = reading

    @answering
    async def GetEnvironmentLock(  # noqa: N802 - named by the contract
        self, request: pb.GetEnvironmentLockRequest, _: Context
    ) -> pb.GetEnvironmentLockResponse:
        """The packages of a session."""
        who = caller()
        if isinstance(who, NodeCaller):
            session = await self._references.find_for_node(who, request.session, "")
            reader = f"{identity_of(who)} {session.id}"
        else:
            user = require_user()
            session = await self._references.find(user, request.session)
            reader = user.user.name
        async with self._reading.turn(reader):
            found = await self._locks.of(session)
        lock = sessions_pb2.EnvironmentLock(
            digest=found.digest, package_count=found.package_count, content=found.content
        )
        return pb.GetEnvironmentLockResponse(lock=lock)

    @answering
    async def RecordEnvironmentLock(  # noqa: N802
        self, request: pb.RecordEnvironmentLockRequest, _: Context
    ) -> pb.RecordEnvironmentLockResponse:
        """Of a session that is about to run."""
        agent = require_agent()
        await self._locks.record(agent, request.session_id, request.attempt, request.content)
        return pb.RecordEnvironmentLockResponse()
