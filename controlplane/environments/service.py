"""EnvironmentService."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from controlplane.access.current import caller, require_agent, require_user
from controlplane.domain.errors import NotLeader
from controlplane.domain.identity import NodeCaller, identity_of
from controlplane.wire.errors import Context, answering
from nsml.v1 import environments_pb2 as pb
from nsml.v1 import environments_pb2_grpc, sessions_pb2

if TYPE_CHECKING:
    from controlplane.core.core import Core
    from controlplane.domain.identity import UserCaller
    from controlplane.environments.locks import EnvironmentLocks
    from controlplane.environments.node_environments import NodeEnvironments


_log = structlog.get_logger()


class EnvironmentServicer(environments_pb2_grpc.EnvironmentServiceServicer):
    """Environments, for users and nodes."""

    def __init__(self, core: Core, locks: EnvironmentLocks, environments: NodeEnvironments) -> None:
        self._core = core
        self._locks = locks
        self._environments = environments
        self._references = core.references
        self._reading = core.reading

    @answering
    async def GetEnvironmentLock(  # noqa: N802 - named by the contract
        self, request: pb.GetEnvironmentLockRequest, _: Context
    ) -> pb.GetEnvironmentLockResponse:
        """Return the lock of a session."""
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
    async def ListEnvironments(  # noqa: N802
        self, request: pb.ListEnvironmentsRequest, _: Context
    ) -> pb.ListEnvironmentsResponse:
        """List a node's."""
        who = self._of_leader()
        found = await self._environments.listed(who, request.node)
        return pb.ListEnvironmentsResponse(environments=found)

    @answering
    async def RemoveEnvironment(  # noqa: N802
        self, request: pb.RemoveEnvironmentRequest, _: Context
    ) -> pb.RemoveEnvironmentResponse:
        """Remove one from a node."""
        who = self._of_leader()
        await self._environments.remove(who, request.node, request.key)
        _log.info("environment.removed", by=who.user.name, node=request.node, key=request.key)
        return pb.RemoveEnvironmentResponse()

    @answering
    async def BuildEnvironment(  # noqa: N802
        self, request: pb.BuildEnvironmentRequest, _: Context
    ) -> pb.BuildEnvironmentResponse:
        """Start a build on a node."""
        who = self._of_leader()
        found = await self._environments.build(who, request.node, request.files)
        return pb.BuildEnvironmentResponse(build=found)

    @answering
    async def GetEnvironmentBuild(  # noqa: N802
        self, request: pb.GetEnvironmentBuildRequest, _: Context
    ) -> pb.GetEnvironmentBuildResponse:
        """Return a build's state."""
        who = self._of_leader()
        found = await self._environments.build_state(
            who, request.node, request.build_id, request.log_offset, cancel=request.cancel
        )
        return pb.GetEnvironmentBuildResponse(build=found)

    def _of_leader(self) -> UserCaller:
        if not self._core.leads():
            raise NotLeader("")  # only the leader talks to agents
        return require_user()

    @answering
    async def ProposeEnvironmentLock(  # noqa: N802
        self, request: pb.ProposeEnvironmentLockRequest, _: Context
    ) -> pb.ProposeEnvironmentLockResponse:
        """Agree on one lock for all replicas and attempts of a session."""
        agent = require_agent()
        found = await self._locks.agree(agent, request.session_id, request.attempt, request.content)
        lock = sessions_pb2.EnvironmentLock(
            digest=found.digest, package_count=found.package_count, content=found.content
        )
        return pb.ProposeEnvironmentLockResponse(lock=lock)

    @answering
    async def RecordEnvironmentLock(  # noqa: N802
        self, request: pb.RecordEnvironmentLockRequest, _: Context
    ) -> pb.RecordEnvironmentLockResponse:
        """Record the lock of a session about to run."""
        agent = require_agent()
        await self._locks.record(agent, request.session_id, request.attempt, request.content)
        return pb.RecordEnvironmentLockResponse()
