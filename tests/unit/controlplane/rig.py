"""A whole control plane on real gRPC over the embedded store in memory, and agents that do as told."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from controlplane.access.authority import make_authority
from controlplane.access.vault import make_vault
from controlplane.core.dependencies import Backends, MemberConfig
from controlplane.domain.identity import Role
from controlplane.history.sqlite import open_history
from controlplane.plane import ControlPlane
from controlplane.store.embedded import EmbeddedStore
from nsml.common.clock import SystemClock, inline
from nsml.v1 import (
    accounts_pb2_grpc,
    agents_pb2,
    agents_pb2_grpc,
    artifacts_pb2_grpc,
    audit_pb2_grpc,
    backups_pb2_grpc,
    boards_pb2_grpc,
    checkpoints_pb2_grpc,
    competitions_pb2_grpc,
    content_pb2_grpc,
    datasets_pb2_grpc,
    environments_pb2_grpc,
    media_pb2_grpc,
    nodes_pb2_grpc,
    projects_pb2_grpc,
    resources_pb2,
    secrets_pb2_grpc,
    session_backups_pb2_grpc,
    sessions_pb2,
    sessions_pb2_grpc,
    ssh_keys_pb2_grpc,
    telemetry_pb2_grpc,
    webhooks_pb2_grpc,
)
from tests.support.memory_objects import MemoryObjects
from tests.support.platforms import ensure_cluster

Metadata = tuple[tuple[str, str], ...]
_numbers = itertools.count()


class Stubs:
    """Every service, called as one identity."""

    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        self.metadata: Metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self.sessions = _As(sessions_pb2_grpc.SessionServiceStub(channel), self.metadata)
        self.nodes = _As(nodes_pb2_grpc.NodeServiceStub(channel), self.metadata)
        self.content = _As(content_pb2_grpc.ContentServiceStub(channel), self.metadata)
        self.datasets = _As(datasets_pb2_grpc.DatasetServiceStub(channel), self.metadata)
        self.checkpoints = _As(checkpoints_pb2_grpc.CheckpointServiceStub(channel), self.metadata)
        self.environments = _As(
            environments_pb2_grpc.EnvironmentServiceStub(channel), self.metadata
        )
        self.backups = _As(backups_pb2_grpc.BackupServiceStub(channel), self.metadata)
        self.session_backups = _As(
            session_backups_pb2_grpc.SessionBackupServiceStub(channel), self.metadata
        )
        self.artifacts = _As(artifacts_pb2_grpc.ArtifactServiceStub(channel), self.metadata)
        self.media = _As(media_pb2_grpc.MediaServiceStub(channel), self.metadata)
        self.telemetry = _As(telemetry_pb2_grpc.TelemetryServiceStub(channel), self.metadata)
        self.secrets = _As(secrets_pb2_grpc.SecretServiceStub(channel), self.metadata)
        self.ssh_keys = _As(ssh_keys_pb2_grpc.SshKeyServiceStub(channel), self.metadata)
        self.webhooks = _As(webhooks_pb2_grpc.WebhookServiceStub(channel), self.metadata)
        self.projects = _As(projects_pb2_grpc.ProjectServiceStub(channel), self.metadata)
        self.boards = _As(boards_pb2_grpc.BoardServiceStub(channel), self.metadata)
        self.submissions = _As(boards_pb2_grpc.SubmissionServiceStub(channel), self.metadata)
        self.competitions = _As(
            competitions_pb2_grpc.CompetitionServiceStub(channel), self.metadata
        )
        self.accounts = _As(accounts_pb2_grpc.AccountServiceStub(channel), self.metadata)
        self.audit = _As(audit_pb2_grpc.AuditServiceStub(channel), self.metadata)
        self.agents = _As(agents_pb2_grpc.AgentServiceStub(channel), self.metadata)

    async def submit(self, *argv: str, **spec: Any) -> sessions_pb2.Session:
        """A plain command line with one GPU, unless said otherwise."""
        request_id = spec.pop("request_id", f"r{next(_numbers)}")
        outer = {key: spec.pop(key) for key in ("memo", "visibility", "project") if key in spec}
        spec.setdefault("resources", resources_pb2.Resources(gpu_thousandths=1000))
        response = await self.sessions.CreateSession(
            sessions_pb2.CreateSessionRequest(
                request_id=request_id,
                spec=sessions_pb2.SessionSpec(argv=argv or ("true",), **spec),
                **outer,
            )
        )
        return response.session

    async def get(self, session: str) -> sessions_pb2.Session:
        response = await self.sessions.GetSession(sessions_pb2.GetSessionRequest(session=session))
        return response.session

    async def state(self, session: str) -> str:
        found = await self.get(session)
        return sessions_pb2.SessionState.Name(found.state).removeprefix("SESSION_STATE_")

    async def reaches(self, session: str, *states: str) -> sessions_pb2.Session:
        await until(lambda: self._in(session, states), f"{session} is one of {states}")
        return await self.get(session)

    async def _in(self, session: str, states: tuple[str, ...]) -> bool:
        return await self.state(session) in states


class _As:
    def __init__(self, stub: Any, metadata: Metadata) -> None:
        self._stub = stub
        self._metadata = metadata

    def __getattr__(self, method: str) -> Callable[..., Any]:
        call = getattr(self._stub, method)
        return lambda request: call(request, metadata=self._metadata, timeout=60)


async def until(condition: Callable[[], Awaitable[Any]], what: str, timeout_s: float = 60) -> Any:
    """The first true value of a condition."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := await condition():
            return value
        await asyncio.sleep(0.005)
    raise AssertionError(f"not within {timeout_s} s: {what}")


@dataclass
class Rig:
    """One control plane that serves."""

    plane: ControlPlane
    on: Backends
    address: str
    stack: contextlib.AsyncExitStack
    server: Any = None
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    async def channel(self) -> grpc.aio.Channel:
        channel = grpc.aio.insecure_channel(self.address)
        self.stack.push_async_callback(channel.close)
        return channel

    async def user(
        self, name: str, *, role: Role = Role.MEMBER, team: str = "", restore: bool = False
    ) -> Stubs:
        await self.plane.core.accounts.create_user(name, role, team, restore=restore)
        token = await self.plane.core.accounts.create_token(name, 3600)
        return Stubs(await self.channel(), token.secret.text)

    async def also(self, known: Stubs) -> Stubs:
        """Somebody who has a token, here."""
        return Stubs(await self.channel(), known.metadata[0][1].removeprefix("Bearer "))

    async def agent(self, node: str = "a", **facts: Any) -> Agent:
        token = await self.plane.core.accounts.create_node_token(node)
        agent = Agent(Stubs(await self.channel(), token.secret.text), node, **facts)
        self.stack.push_async_callback(agent.close)
        return agent


@contextlib.asynccontextmanager
async def surroundings(**other: Any) -> AsyncIterator[Backends]:
    """Everything in memory."""
    clock = other.get("clock") or SystemClock()
    async with contextlib.AsyncExitStack() as stack:
        store = other.get("store")
        if store is None:
            store = await stack.enter_async_context(
                EmbeddedStore(":memory:", clock=clock, run=inline)
            )
        history = other.get("history")
        if history is None:
            history = await open_history(":memory:", clock=clock, run=inline)
            stack.push_async_callback(history.close)
        yield Backends(
            store=store,
            history=history,
            objects=other.get("objects") or MemoryObjects(clock),
            authority=make_authority(clock),
            vault=other.get("vault") or make_vault(secrets.token_bytes),
            clock=clock,
            random_bytes=secrets.token_bytes,
            restores=other.get("restores", ()),
            post=other.get("post"),
        )


@contextlib.asynccontextmanager
async def serving(on: Backends, **character: Any) -> AsyncIterator[Rig]:
    """A control plane on a loopback port."""
    async with contextlib.AsyncExitStack() as stack:
        # Its agents send no heartbeats: on a busy machine a test may last longer than silence is borne. And
        # what else runs there may hold up a renewal for longer than a short lease lasts.
        own = {"silent_after_s": 600.0, "lease_s": 30.0}
        name = {"member": f"m{next(_numbers)}", "version": "test"}
        who = MemberConfig(**{**name, **own, **character})
        plane = ControlPlane(on, who, await ensure_cluster(on, "embedded"))
        # Nobody else's port is shared by chance.
        alone = (("grpc.so_reuseport", 0),)
        server = grpc.aio.server(interceptors=plane.interceptors(), options=alone)
        at = str(character.get("address", ""))
        is_own = at.startswith("127.0.0.1:")
        port = server.add_insecure_port(at if is_own else "127.0.0.1:0")
        plane.add_services(server)
        running = asyncio.create_task(plane.run())
        await plane.core.state.reached(1)
        await server.start()
        try:
            async with stack:
                yield Rig(plane, on, f"127.0.0.1:{port}", stack, server=server)
        finally:
            plane.core.contacts.close_all(ConnectionError)  # type: ignore[arg-type]
            await server.stop(0)
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


@contextlib.asynccontextmanager
async def platform(**other: Any) -> AsyncIterator[Rig]:
    """A control plane that leads."""
    character = other.pop("character", {})
    async with surroundings(**other) as on, serving(on, **character) as rig:
        await until(lambda: one_leads(rig), "it leads")
        yield rig


async def one_leads(*rigs: Rig) -> bool:
    """Whether any of them decides."""
    return any(rig.plane.core.committer.is_leading for rig in rigs)


class Agent:
    """An agent that says what the test tells it to."""

    def __init__(
        self,
        stubs: Stubs,
        node: str,
        *,
        gpus: int = 2,
        boot_id: str = "boot1",
        replicas: tuple[agents_pb2.ReplicaReport, ...] = (),
        isolation: int = resources_pb2.ISOLATION_NAMESPACE,
        **facts: Any,
    ) -> None:
        self.stubs = stubs
        self.node = node
        facts.setdefault("abilities", agents_pb2.AgentAbility.values()[1:])
        self.register = agents_pb2.Register(
            node=node,
            boot_id=boot_id,
            isolation=isolation,
            capacity=resources_pb2.Resources(
                gpu_thousandths=gpus * 1000, cpu_thousandths=8000, memory_bytes=64 << 30
            ),
            devices=[
                resources_pb2.Device(
                    uuid=f"SIM-{node}-{index}", index=index, model="S", simulated=True
                )
                for index in range(gpus)
            ],
            host=f"{node}.example",
            replicas=replicas,
            **facts,
        )
        self.registered: agents_pb2.Registered | None = None
        self.orders: agents_pb2.Orders | None = None
        self._coming = agents_pb2.Orders()
        self.acknowledged: list[agents_pb2.ReplicaReport] = []
        self.tunnels: list[agents_pb2.OpenTunnel] = []
        self.image_orders: list[agents_pb2.ImageOrder] = []
        self.found_peers: list[agents_pb2.FoundPeers] = []
        self.about_environments: (
            Callable[[agents_pb2.EnvironmentOrder], agents_pb2.EnvironmentReport] | None
        ) = None
        """What it answers to orders about environments; None: nothing."""
        self.about_repairs: (
            Callable[[agents_pb2.RepairOrder], Awaitable[agents_pb2.RepairReport]] | None
        ) = None
        """What it answers to orders to repair, once that is done; None: nothing."""
        self.error: grpc.aio.AioRpcError | None = None
        self.runs_at_once = False
        self.further: Metadata = ()
        self._reported: set[str] = set()
        self._turn = asyncio.Lock()
        self._call: Any = None
        self._reading: asyncio.Task[None] | None = None

    async def connect(self) -> Agent:
        self._call = agents_pb2_grpc.AgentServiceStub
        stub = self.stubs.agents._stub
        self._call = stub.Control(metadata=(*self.stubs.metadata, *self.further))
        # A refusal can be there before the message is out: then reading tells it.
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self._call.write(agents_pb2.ControlRequest(register=self.register))
        self._reading = asyncio.create_task(self._read())
        await until(self._answered, f"{self.node} is answered")
        return self

    async def _answered(self) -> bool:
        return self.registered is not None or self.error is not None

    async def _read(self) -> None:
        try:
            async for response in self._call:
                match response.WhichOneof("kind"):
                    case "registered":
                        self.registered = response.registered
                    case "orders":
                        self._coming.MergeFrom(response.orders)
                        if response.orders.more:
                            continue
                        self.orders, self._coming = self._coming, agents_pb2.Orders()
                        if self.runs_at_once:
                            await self._run_all()
                    case "acknowledged":
                        self.acknowledged += response.acknowledged.reports
                    case "open_tunnel":
                        self.tunnels.append(response.open_tunnel)
                    case "image_order":
                        self.image_orders.append(response.image_order)
                    case "found_peers":
                        self.found_peers.append(response.found_peers)
                    case "environment_order" if self.about_environments is not None:
                        answer = self.about_environments(response.environment_order)
                        await self.say(agents_pb2.ControlRequest(environment_report=answer))
                    case "repair_order" if self.about_repairs is not None:
                        done = await self.about_repairs(response.repair_order)
                        await self.say(agents_pb2.ControlRequest(repair_report=done))
        except grpc.aio.AioRpcError as error:
            self.error = error

    async def _run_all(self) -> None:
        for assignment in self.orders.assignments if self.orders else ():
            key = f"{assignment.replica}"
            if key not in self._reported:
                self._reported.add(key)
                await self.report(assignment.replica, "FINALIZED", cause="COMPLETED")

    async def assignments(self, count: int) -> list[agents_pb2.Assignment]:
        """The orders once there are so many assignments."""
        await until(lambda: self._has(count), f"{self.node} has {count} assignments")
        return list(self.orders.assignments) if self.orders else []

    async def _has(self, count: int) -> bool:
        return self.orders is not None and len(self.orders.assignments) == count

    async def report(
        self, replica: agents_pb2.ReplicaId, phase: str, *, cause: str = "", code: int = 0
    ) -> None:
        report = report_of(replica, phase, cause=cause, code=code)
        await self.say(agents_pb2.ControlRequest(report=report))

    async def say(self, request: agents_pb2.ControlRequest) -> None:
        """Anything; what is said at once is said in turn."""
        async with self._turn:
            await self._call.write(request)

    async def offer(
        self, devices: Iterable[resources_pb2.Device], note: str = "", not_ready: str = ""
    ) -> None:
        """Say what the node has from now on."""
        changed = agents_pb2.DevicesChanged(devices=devices, device_note=note, not_ready=not_ready)
        await self._call.write(agents_pb2.ControlRequest(devices_changed=changed))

    async def close(self) -> None:
        if self._call is not None:
            self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])


def report_of(
    replica: agents_pb2.ReplicaId, phase: str, *, cause: str = "", code: int = 0
) -> agents_pb2.ReplicaReport:
    report = agents_pb2.ReplicaReport(replica=replica, phase=f"REPLICA_PHASE_{phase}")
    report.at.GetCurrentTime()
    if cause:
        report.exit.cause = sessions_pb2.Cause.Value(f"CAUSE_{cause}")
        report.exit.exit_code = code
        report.exit.ended_at.GetCurrentTime()
    return report


async def say_first(call: Any, message: Any) -> None:
    """The first message of a call: why it was refused, which it may be before that, is told to who reads."""
    with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
        await call.write(message)
