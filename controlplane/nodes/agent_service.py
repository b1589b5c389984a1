"""AgentService: the agents' two streams, and their tunnels."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import structlog

from controlplane.access.current import require_agent
from controlplane.artifacts.output_datasets import left_by
from controlplane.domain.errors import InvalidRequest, NotLeader, NsmlError, StateConflict
from controlplane.domain.identity import NodeCaller
from controlplane.domain.lifecycle import ReplicaPhase
from controlplane.domain.values import Isolation
from controlplane.leadership.leader_forwarding import asks_for_relay
from controlplane.nodes.convert_agents import (
    OrdersMessages,
    acknowledged_message,
    environment_message,
    image_message,
    peers_message,
    repair_message,
    stream_message,
    to_abilities,
    to_changed_offer,
    to_chunk,
    to_fetched,
    to_peer_offer,
    to_progress,
    to_registration,
    to_report,
    to_said,
    to_sample,
    to_stock,
    tunnel_message,
)
from controlplane.state.desired_replicas import orders_for
from controlplane.state.progress import apply_progress
from controlplane.state.replica_reports import apply_report
from controlplane.store.interface import StoreError
from controlplane.tunnels.calls import agent_end
from controlplane.tunnels.frames import first_frame
from controlplane.wire.errors import Context, streaming
from controlplane.wire.times import duration, seconds_of
from nsml.common.concurrency import TaskGroup
from nsml.v1 import agents_pb2, agents_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator

    from controlplane.content.node_repairs import NodeRepairs
    from controlplane.core.core import Core
    from controlplane.environments.node_environments import NodeEnvironments
    from controlplane.history.values import StreamKey
    from controlplane.leadership.leader_forwarding import Relay
    from controlplane.nodes.convert_agents import Secrets
    from controlplane.nodes.node_images import NodeImages
    from controlplane.nodes.peering import Peering
    from controlplane.nodes.registration import Registrar
    from controlplane.records.ingest import Ingestor
    from controlplane.secrets.user_secrets import UserSecrets
    from controlplane.sessions.program_changes import ProgramChanges
    from controlplane.state.agent_connections import AgentConnection
    from controlplane.state.desired_replicas import Orders
    from controlplane.state.progress import ProgressReport
    from controlplane.state.replica_reports import Report
    from controlplane.tunnels.tunnels import Tunnels

_AGAIN_S: Final = 0.5
"""Between two tries to read the secrets of orders."""

_log = structlog.get_logger()

_SOFT = frozenset({ReplicaPhase.PREPARING, ReplicaPhase.RUNNING, ReplicaPhase.PAUSED})
"""Phases that free nothing: their writes may wait a moment for a batch."""


class AgentServicer(agents_pb2_grpc.AgentServiceServicer):
    """Orders down; states, records and telemetry up.

    Args:
        relay: forwards to the leader, for agents that cannot reach it.
    """

    def __init__(
        self,
        core: Core,
        *,
        registrar: Registrar,
        ingestor: Ingestor,
        tunnels: Tunnels,
        images: NodeImages,
        environments: NodeEnvironments,
        repairs: NodeRepairs,
        secrets: UserSecrets,
        changes: ProgramChanges,
        peering: Peering,
        relay: Relay,
    ) -> None:
        self._core = core
        self._registrar = registrar
        self._ingestor = ingestor
        self._tunnels = tunnels
        self._images = images
        self._environments = environments
        self._repairs = repairs
        self._secrets = secrets
        self._changes = changes
        self._peering = peering
        self._relay = relay

    @streaming
    async def Control(  # noqa: N802 - named by the contract
        self, requests: AsyncIterator[agents_pb2.ControlRequest], context: Context
    ) -> AsyncGenerator[agents_pb2.ControlResponse, None]:
        """Register, then send orders and acknowledgements while receiving reports."""
        who = require_agent()
        await self._relay.settled()
        term = self._core.term()
        if not term and asks_for_relay(context):
            kinds = (agents_pb2.ControlRequest, agents_pb2.ControlResponse)
            async with aclosing(
                self._relay.stream("AgentService/Control", kinds, requests, context, node=who)
            ) as relayed:
                async for response in relayed:
                    yield response
            return
        said = aiter(requests)
        if not term:
            # gRPC's client loses the status of a call that ends while it is sending: let it finish.
            await anext(said, None)
            raise NotLeader(self._core.leading.leader_address())
        link = await self._register(who, said, term)
        reading = asyncio.create_task(self._read(link, said), name="control.read")
        reading.add_done_callback(lambda done: _ended(link, done))
        try:
            yield self._registered(link)
            async for response in self._responses(link):
                yield response
        finally:
            reading.cancel()
            self._core.contacts.disconnect(link)
            _log.info("agent.disconnected", node=who.node)

    async def _register(
        self, who: NodeCaller, requests: AsyncIterator[agents_pb2.ControlRequest], term: int
    ) -> AgentConnection:
        first = await anext(requests, None)
        if first is None or first.WhichOneof("kind") != "register":
            raise InvalidRequest("the first message must be Register")
        said = to_registration(first.register, self._core.clock.time())
        link = await self._registrar.register(who, said, term)
        link.abilities = to_abilities(first.register.abilities)
        link.agent_version = said.node.agent_version
        link.boot_id = said.node.boot_id
        link.peer_offer = to_peer_offer(first.register)
        for report in said.replicas:
            await self._note_outputs(report)
            link.acknowledge(report)
        _log.info("agent.registered", node=who.node, replicas=len(said.replicas))
        return link

    def _registered(self, link: AgentConnection) -> agents_pb2.ControlResponse:
        registered = agents_pb2.Registered(
            cluster_id=self._core.cluster_id,
            heartbeat_interval=duration(self._core.config.heartbeat_s),
            silent_after=duration(self._core.config.silent_after_s),
            term=self._core.term(),
            starts_anew=link.starts_anew,
            finds_peers=True,
            locates_blobs=self._core.backends.bucket is not None,
        )
        link.control_planes = link.told_control_planes = self._addresses()
        if link.control_planes:
            registered.control_planes.addresses.extend(link.control_planes)
        return agents_pb2.ControlResponse(registered=registered)

    def _addresses(self) -> tuple[str, ...]:
        """Return the addresses of control planes for agents."""
        own = self._core.config.agent_address
        others = (one.agent_address for one in self._core.members.everyone())
        return tuple(dict.fromkeys(filter(None, (own, *others))))

    async def _responses(self, link: AgentConnection) -> AsyncIterator[agents_pb2.ControlResponse]:
        messages = OrdersMessages(link.abilities)
        while True:
            if isinstance(link.failure, NotLeader):
                raise await self._sent_on()
            if link.failure is not None:
                raise link.failure
            for message in _news(link):
                yield message
            term = self._core.term()
            if not term:
                raise await self._sent_on()
            if link.wants_orders:
                link.wants_orders = False
                orders = orders_for(self._core.state, link.node)
                # Even without a newer revision: changes of two records may arrive out of order.
                if orders is not None:
                    secrets = await self._opened(link, orders)
                    if secrets is None:
                        continue
                    link.ordered = orders.replicas
                    sent = self._core.contacts.sent
                    sent[link.node] = max(orders.revision, sent.get(link.node, 0))
                    for message in messages.of(orders, term, secrets, now=self._core.clock.time()):
                        yield message
            await link.wait()

    async def _sent_on(self) -> NotLeader:
        """Return an error naming the leader: without a name, agents would try one member after the other."""
        await self._relay.settled()
        return NotLeader(self._core.leading.leader_address())

    async def _opened(self, link: AgentConnection, orders: Orders) -> Secrets | None:
        """Return the programs' secrets; None, and order again, if the store does not respond."""
        try:
            node = self._core.state.nodes.get(link.node)
            has_images = node is not None and node.value.isolation is Isolation.CONTAINER
            with_logins = has_images and link.keeps_logins_in_memory
            return await self._secrets.for_orders(orders, given=link.given, with_logins=with_logins)
        except StoreError as error:
            _log.warning("orders.secrets_unavailable", node=link.node, error=str(error))
            await self._core.clock.sleep(_AGAIN_S)
            link.order()
            return None

    async def _read(
        self, link: AgentConnection, requests: AsyncIterator[agents_pb2.ControlRequest]
    ) -> None:
        """Process the agent's messages, many reports concurrently."""
        async with TaskGroup() as group:
            async for request in requests:
                self._core.contacts.heard(link.node)
                link.find_control_planes(self._addresses())
                match request.WhichOneof("kind"):
                    case "heartbeat" if request.heartbeat.HasField("sent_at"):
                        at = seconds_of(request.heartbeat.sent_at)
                        self._core.contacts.clock_said(link, at, self._core.platform_wall.time())
                    case "report":
                        report = to_report(request.report, link.node, self._core.clock.time())
                        group.create_task(self._report(link, report), name="control.report")
                    case "devices_changed":
                        changed = to_changed_offer(request.devices_changed)
                        changing = self._registrar.change_offer(link, changed)
                        group.create_task(changing, name="control.devices")
                    case "progress":
                        said = to_progress(request.progress, link.node)
                        group.create_task(self._progress(said), name="control.progress")
                    case "orders_accepted":
                        # Including orders sent since: those had their secrets, too.
                        link.given = link.ordered
                        group.create_task(self._registrar.obeyed(link), name="control.obeyed")
                    case _:
                        self._take(link, request)

    def _take(self, link: AgentConnection, request: agents_pb2.ControlRequest) -> None:
        """Process messages that need no write."""
        match request.WhichOneof("kind"):
            case "image_report":
                answer = request.image_report
                self._images.answered(link.node, answer.order_id, answer.status)
            case "environment_report":
                self._environments.answered(link.node, request.environment_report)
            case "repair_report":
                self._repairs.answered(link.node, request.repair_report)
            case "change":
                self._heard(link, request.change)
            case "stock":
                self._core.contacts.stocks(link, to_stock(request.stock))
                link.fetched = to_fetched(request.stock)
            case "find_peers":
                asked = request.find_peers
                found = self._peering.find(link.node, asked.root, is_stream=asked.is_stream)
                link.answer_peers(found)

    def _heard(self, link: AgentConnection, report: agents_pb2.ChangeReport) -> None:
        """Record programs' reports on a change, for replicas on the node; the leader's loop decides on them."""
        replica = report.replica
        session = self._core.state.session(replica.session_id)
        if session is None or session.attempt != replica.attempt:
            return
        if (link.node, replica.rank) not in {(one.node, one.rank) for one in session.replicas}:
            return
        said = to_said(report)
        self._core.state.words.say(session.id, session.attempt, replica.rank, said)
        self._changes.look_again()

    async def _progress(self, report: ProgressReport) -> None:
        await self._core.committer.decide(
            lambda draft: apply_progress(draft, report, self._core.clock.time()), soft=True
        )

    async def _report(self, link: AgentConnection, report: Report) -> None:
        await self._core.committer.decide(
            lambda draft: apply_report(
                draft, report, self._core.contacts.unheard, self._core.clock.time()
            ),
            soft=report.phase in _SOFT,
        )
        await self._note_outputs(report)
        link.acknowledge(report)
        await self._registrar.ended(link, report)

    async def _note_outputs(self, report: Report) -> None:
        """Record the expected outputs of an ended replica, so that missing ones are lost with a reason."""
        session = self._core.state.session(report.session_id)
        if session is None or not (outputs := left_by(session, report)):
            return
        try:
            await self._core.history.artifacts.tell(outputs)
        except (NsmlError, TimeoutError) as error:  # its agent reports them later
            _log.warning("outputs.not_noted", session=session.name, error=str(error))

    @streaming
    async def Ingest(  # noqa: N802 - named by the contract
        self, requests: AsyncIterator[agents_pb2.IngestRequest], _: Context
    ) -> AsyncGenerator[agents_pb2.IngestResponse, None]:
        """Store chunks; each response has the positions on disk."""
        who = require_agent()
        async for request in requests:
            self._core.contacts.heard(who.node)
            chunks = [to_chunk(one) for one in request.chunks]
            sample = to_sample(request.sample, who.node)
            wanted = await self._ingestor.ingest(
                who, chunks, sample if request.HasField("sample") else None
            )
            if wanted:
                yield _cursors(wanted)

    @streaming
    async def Tunnel(  # noqa: N802 - named by the contract
        self, requests: AsyncIterator[agents_pb2.TunnelRequest], context: Context
    ) -> AsyncGenerator[agents_pb2.TunnelResponse, None]:
        """Serve the program's end of a tunnel."""
        who, frames = require_agent(), aiter(requests)
        first = await first_frame(frames)
        if not self._tunnels.is_awaited(first.tunnel_id) and self._relay.is_needed:
            # Requested by the leader, over a Control stream that may pass through us.
            kinds = (agents_pb2.TunnelRequest, agents_pb2.TunnelResponse)
            said = _with_first(first, frames)
            async with aclosing(
                self._relay.stream("AgentService/Tunnel", kinds, said, context, node=who)
            ) as relayed:
                async for response in relayed:
                    yield response
            return
        tunnel = self._tunnels.claim(
            who, first.tunnel_id, first.error, first.direct_socket, first.relay_certificate
        )
        if first.error:
            return
        try:
            async with aclosing(agent_end(tunnel, frames, self._tunnels.pacing)) as passed:
                async for one in passed:
                    yield agents_pb2.TunnelResponse(data=one.data, end=one.end, gone=one.gone)
        finally:
            tunnel.agent_left()


async def _with_first(
    first: agents_pb2.TunnelRequest, rest: AsyncIterator[agents_pb2.TunnelRequest]
) -> AsyncIterator[agents_pb2.TunnelRequest]:
    yield first
    async for one in rest:
        yield one


def _news(link: AgentConnection) -> Iterator[agents_pb2.ControlResponse]:
    """Yield all pending messages except orders."""
    if link.acknowledged:
        reports, link.acknowledged = link.acknowledged, []
        yield acknowledged_message(reports)
    while link.tunnels:
        yield tunnel_message(link.tunnels.pop(0))
    while link.image_orders:
        yield image_message(link.image_orders.pop(0))
    while link.found_peers:
        yield peers_message(link.found_peers.pop(0))
    while link.environment_orders:
        yield environment_message(link.environment_orders.pop(0))
    while link.repair_orders:
        yield repair_message(link.repair_orders.pop(0))
    if link.control_planes != link.told_control_planes:
        link.told_control_planes = link.control_planes
        yield _control_planes(link.control_planes)


def _control_planes(addresses: Iterable[str]) -> agents_pb2.ControlResponse:
    return agents_pb2.ControlResponse(control_planes=agents_pb2.ControlPlanes(addresses=addresses))


def _cursors(wanted: dict[StreamKey, int]) -> agents_pb2.IngestResponse:
    return agents_pb2.IngestResponse(
        acknowledged=[
            agents_pb2.Cursor(stream=stream_message(key), next=position)
            for key, position in wanted.items()
        ]
    )


def _ended(link: AgentConnection, reading: asyncio.Task[Any]) -> None:
    """Close the stream: the agent's half has ended."""
    if reading.cancelled():
        return
    error = reading.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is None:
        link.close(StateConflict("the agent has closed its half"))
    elif isinstance(error, NsmlError):
        link.close(error)
    else:
        _log.error("control.failed", node=link.node, reason=repr(error))
        link.close(StateConflict("the stream failed"))
