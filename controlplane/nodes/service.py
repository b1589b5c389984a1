"""NodeService."""

from __future__ import annotations

from collections import defaultdict
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.access.current import note_target, require_user
from controlplane.core.paging import page_size
from controlplane.domain.conditions import Condition, ConditionName, gravest_first
from controlplane.domain.errors import NotFound, NotLeader
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.names import check_node
from controlplane.domain.node_availability import closed_words, owner_words
from controlplane.domain.policy import ADMINISTER, ALLOW, PLATFORM, SEE, may
from controlplane.domain.values import Allocation, Resources
from controlplane.nodes.convert import (
    condition_message,
    drain_message,
    fence_message,
    hold_message,
    load_message,
    member_message,
    refusal_message,
)
from controlplane.state.agent_connections import ImageAction
from controlplane.state.conditions import found_elsewhere
from controlplane.tunnels.calls import client_end, direct_way
from controlplane.tunnels.frames import first_frame
from controlplane.tunnels.tunnels import ClientWays
from controlplane.wire.chunking import parts_of
from controlplane.wire.errors import Context, answering, streaming
from controlplane.wire.resources import (
    device_message,
    isolation_name,
    kept_message,
    network_name,
    resources_message,
    sample_message,
)
from controlplane.wire.times import duration, seconds_of, timestamp
from nsml.v1 import nodes_pb2 as pb
from nsml.v1 import nodes_pb2_grpc
from nsml.v1.resources_pb2 import ImageState, ImageStatus

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from controlplane.access.joining import Joining
    from controlplane.core.core import Core
    from controlplane.domain.identity import UserCaller
    from controlplane.domain.values import Node, Session
    from controlplane.history.values import NodeSample
    from controlplane.leadership.leader_forwarding import Relay
    from controlplane.nodes.node_images import NodeImages
    from controlplane.nodes.node_states import NodeStates
    from controlplane.nodes.nodes import NodeKeeper
    from controlplane.state.agent_connections import AgentConnection
    from controlplane.tunnels.tunnels import Tunnels
    from controlplane.usage.usage import Usages


_log = structlog.get_logger()

MOST_NAMES: Final = 1_000
"""Session names of one node, in one response."""
MOST_CLOSED: Final = 20
MOST_SILENT: Final = 5


class NodeServicer(nodes_pb2_grpc.NodeServiceServicer):
    """Users' calls on nodes."""

    def __init__(
        self,
        core: Core,
        *,
        keeper: NodeKeeper,
        usages: Usages,
        states: NodeStates,
        joining: Joining,
        images: NodeImages,
        tunnels: Tunnels,
        relay: Relay,
    ) -> None:
        self._core = core
        self._keeper = keeper
        self._usages = usages
        self._states = states
        self._joining = joining
        self._images = images
        self._tunnels = tunnels
        self._relay = relay

    @answering
    async def ListNodes(  # noqa: N802 - named by the contract
        self, request: pb.ListNodesRequest, _: Context
    ) -> pb.ListNodesResponse:
        """Return a page of the nodes by name."""
        who = require_user()
        after = request.cursor and check_node(request.cursor)
        size = page_size(request.page_size)
        names = sorted(name for name in self._core.state.nodes if name > after)
        samples = await self._core.history.telemetry.newest()
        made = (
            self._node(self._core.state.nodes[name].value, who, samples.get(name))
            for name in names[:size]
        )
        nodes = next(parts_of(made))
        cursor = nodes[-1].name if len(nodes) < len(names) else ""
        return pb.ListNodesResponse(nodes=nodes, next_cursor=cursor)

    @answering
    async def GetNode(  # noqa: N802
        self, request: pb.GetNodeRequest, _: Context
    ) -> pb.GetNodeResponse:
        """Return one node with its sessions and images."""
        who = require_user()
        stored = self._core.state.nodes.get(check_node(request.name))
        if stored is None:
            raise NotFound(f"there is no node {request.name}", attempt="nsml node ls")
        sessions = self._keeper.sessions_of(request.name)
        visible = _names(sessions, who)
        return pb.GetNodeResponse(
            node=await self._shown(stored.value, who),
            sessions=visible[:MOST_NAMES],
            hidden_sessions=len(sessions) - len(visible[:MOST_NAMES]),
            fence_refusal=refusal_message(self._keeper.why_not_fenced(request.name)),
            images=[
                pb.NodeImage(name=name, bytes=size)
                for name, size in sorted(self._core.state.stock(request.name).images().items())
            ],
            transfers=_transfers(self._core.contacts.link(request.name)),
        )

    @answering
    async def DrainNode(  # noqa: N802
        self, request: pb.DrainNodeRequest, _: Context
    ) -> pb.DrainNodeResponse:
        """Close a node to new sessions."""
        who = require_user()
        after = seconds_of(request.move_after) if request.HasField("move_after") else None
        node = await self._keeper.drain(
            request.name, asked_by=who.user.name, reason=request.reason, move_after_s=after
        )
        _log.info(
            "node.drained",
            by=who.user.name,
            node=node.name,
            reason=request.reason,
            move_after_s=after,
        )
        return pb.DrainNodeResponse(node=await self._shown(node, who))

    @answering
    async def ResumeNode(  # noqa: N802
        self, request: pb.ResumeNodeRequest, _: Context
    ) -> pb.ResumeNodeResponse:
        """Open a node to sessions again."""
        who = require_user()
        node = await self._keeper.resume(request.name, asked_by=who.user.name)
        _log.info("node.resumed", by=who.user.name, node=node.name)
        return pb.ResumeNodeResponse(node=await self._shown(node, who))

    @answering
    async def FenceNode(  # noqa: N802
        self, request: pb.FenceNodeRequest, _: Context
    ) -> pb.FenceNodeResponse:
        """Declare the replicas of a node lost."""
        who = require_user()
        node, had = await self._keeper.fence(
            request.name, asked_by=who.user.name, reason=request.reason, force=request.force
        )
        _log.warning(
            "node.fenced",
            by=who.user.name,
            node=node.name,
            reason=request.reason,
            forced=request.force,
            sessions=len(had),
        )
        return pb.FenceNodeResponse(
            node=await self._shown(node, who), sessions=_names(had, who)[:MOST_NAMES]
        )

    @answering
    async def RemoveNode(  # noqa: N802
        self, request: pb.RemoveNodeRequest, _: Context
    ) -> pb.RemoveNodeResponse:
        """Remove it. A revoked one loses its identity first: it would register again at once."""
        name, by = check_node(request.name), require_user().user.name
        is_registered = name in self._core.state.nodes
        if is_registered and not request.revoke:
            await self._keeper.remove(name)
        elif is_registered:
            self._keeper.check_removable(name, is_cut_off=True)
        had_joined = await self._joining.forget(name, by=by, bars_key=request.revoke)
        if is_registered and request.revoke:
            await self._keeper.remove(name, is_cut_off=True)
        if not (is_registered or had_joined):
            raise NotFound(f"there is no node {name}", attempt="nsml node ls")
        _log.info("node.removed", by=by, node=name, revoked=request.revoke)
        return pb.RemoveNodeResponse()

    @answering
    async def PullImage(  # noqa: N802
        self, request: pb.PullImageRequest, _: Context
    ) -> pb.PullImageResponse:
        """Begin to pull an image."""
        status = await self._of_image(request.node, ImageAction.PULL, request.image)
        return pb.PullImageResponse(status=status)

    @answering
    async def GetImagePull(  # noqa: N802
        self, request: pb.GetImagePullRequest, _: Context
    ) -> pb.GetImagePullResponse:
        """Return the progress of a pull."""
        status = await self._of_image(request.node, ImageAction.LOOK, request.image)
        return pb.GetImagePullResponse(status=status)

    @answering
    async def RemoveImage(  # noqa: N802
        self, request: pb.RemoveImageRequest, _: Context
    ) -> pb.RemoveImageResponse:
        """Remove an image that no session uses."""
        status = await self._of_image(request.node, ImageAction.REMOVE, request.image)
        return pb.RemoveImageResponse(status=status)

    async def _of_image(self, node: str, action: ImageAction, image: str) -> ImageStatus:
        if not self._core.leads():
            raise NotLeader("")  # only the leader is connected to agents
        who = require_user()
        status = await self._images.ask(who, node, action, image)
        if action is not ImageAction.LOOK:
            outcome = ImageState.Name(status.state)
            _log.info(
                f"image.{action.name.lower()}",
                by=who.user.name,
                node=node,
                image=image,
                outcome=outcome,
            )
        return status

    @streaming
    async def OpenNodeTunnel(  # noqa: N802
        self, requests: AsyncIterator[pb.OpenNodeTunnelRequest], context: Context
    ) -> AsyncGenerator[pb.OpenNodeTunnelResponse, None]:
        """Serve the client's end of a tunnel to a node."""
        frames = aiter(requests)
        kinds = (pb.OpenNodeTunnelRequest, pb.OpenNodeTunnelResponse)
        # only the leader can request agents to dial
        relayed = await self._relay.where_needed(
            "NodeService/OpenNodeTunnel", kinds, frames, context
        )
        async with aclosing(relayed or self._tunnel(require_user(), frames)) as responses:
            async for response in responses:
                yield response

    async def _tunnel(
        self, who: UserCaller, frames: AsyncIterator[pb.OpenNodeTunnelRequest]
    ) -> AsyncGenerator[pb.OpenNodeTunnelResponse, None]:
        target = (await first_frame(frames)).target
        note_target(f"{target.node} {target.service}")
        name = check_node(target.node)
        if name not in self._core.state.nodes:
            raise NotFound(f"there is no node {name}", attempt="nsml node ls")
        ways = ClientWays(boot_id=target.boot_id, uses_relay=target.uses_relay)
        opening = self._tunnels.opened_to_node(who, name, service=target.service, ways=ways)
        async with opening as tunnel:
            yield pb.OpenNodeTunnelResponse(direct=direct_way(tunnel))
            async with aclosing(client_end(tunnel, frames, self._tunnels.pacing)) as passed:
                async for one in passed:
                    yield pb.OpenNodeTunnelResponse(data=one.data, end=one.end, gone=one.gone)

    @answering
    async def GetCluster(  # noqa: N802
        self, _: pb.GetClusterRequest, __: Context
    ) -> pb.GetClusterResponse:
        """Return an overview of the platform."""
        who = require_user()
        nodes = [stored.value for stored in self._core.state.nodes.values()]
        by_name = sorted(nodes, key=lambda node: node.name)
        ready = [node for node in nodes if self._state_of(node) == "NODE_STATE_READY"]
        sessions = [stored.value for stored in self._core.state.sessions.values()]
        leader = self._core.leading.leader
        samples = await self._core.history.telemetry.newest()
        return pb.GetClusterResponse(
            version=self._core.config.version,
            leader=leader.member if leader else "",
            term=leader.term if leader else 0,
            coordination=self._core.config.coordination,
            capacity=resources_message(_sum(node.capacity for node in ready)),
            allocated=resources_message(_sum(self._held(node) for node in ready)),
            nodes_ready=len(ready),
            nodes_total=len(nodes),
            sessions_running=sum(1 for one in sessions if one.state.holds_devices),
            sessions_queued=sum(1 for one in sessions if one.state is SessionState.QUEUED),
            sessions_held=sum(1 for one in sessions if one.state is SessionState.HELD),
            simulated=any(device.simulated for node in nodes for device in node.devices),
            cluster_id=self._core.cluster_id,
            now=timestamp(self._core.platform_wall.time()),
            closed_nodes=list(filter(None, map(closed_words, by_name)))[:MOST_CLOSED],
            members=[member_message(one, leader) for one in self._core.members.everyone()],
            answered_by=self._core.members.own.name,
            conditions=[
                condition_message(one, shows_evidence=may(who, ADMINISTER, PLATFORM) is ALLOW)
                for one in self._conditions(by_name, samples)
            ],
            known_at=timestamp(self._core.health.known_at()),
            load=load_message(await self._usages.load()),
        )

    def _conditions(
        self, nodes: Sequence[Node], samples: Mapping[str, NodeSample]
    ) -> tuple[Condition, ...]:
        """Return known conditions: of members, full disks, and silent nodes if we lead."""
        members = self._core.members
        others = (one for one in members.everyone() if one.name != members.own.name)
        own = self._core.health.conditions.standing()
        standing = (*own, *found_elsewhere(own, others), *self._full_disks(nodes, samples))
        unheard = self._core.contacts.unheard
        silent = [node.name for node in nodes if node.name in unheard and node.fence is None]
        if not silent or not self._core.leads():
            return gravest_first(standing)
        heard = [at for name in silent if (at := self._core.contacts.last_contact_at(name))]
        more = len(silent) - MOST_SILENT
        one = Condition(
            name=ConditionName.NODES_SILENT,
            subject=", ".join(silent[:MOST_SILENT]) + (f" and {more} more" if more > 0 else ""),
            since=min(heard, default=0.0),
        )
        return gravest_first((*standing, one))

    def _full_disks(
        self, nodes: Sequence[Node], samples: Mapping[str, NodeSample]
    ) -> Iterator[Condition]:
        """Yield those of nodes, from recent samples."""
        for node in nodes:
            sample = samples.get(node.name)
            if sample and sample.disk_note:
                yield Condition(
                    name=ConditionName.DISK_FULL,
                    subject=f"node {node.name}",
                    since=sample.at,
                    evidence=sample.disk_note,
                )

    async def _shown(self, node: Node, who: UserCaller) -> pb.Node:
        samples = await self._core.history.telemetry.newest()
        return self._node(node, who, samples.get(node.name))

    def _node(self, node: Node, who: UserCaller, sample: NodeSample | None) -> pb.Node:
        ahead_s = self._core.contacts.clocks_ahead_s().get(node.name)
        return pb.Node(
            name=node.name,
            state=self._state_of(node),
            devices=self._devices(node, who, sample),
            capacity=resources_message(node.capacity),
            allocated=resources_message(self._held(node)),
            isolation=isolation_name(node.isolation),
            pod=node.pod,
            agent_version=node.agent_version,
            last_contact_at=timestamp(self._core.contacts.last_contact_at(node.name)),
            cpu_percent=sample.cpu_percent if sample else 0.0,
            memory_used_bytes=sample.memory_used_bytes if sample else 0,
            host=node.host,
            device_note=node.device_note,
            owner_note=owner_words(node),
            isolation_note=node.isolation_note,
            setting_note=node.setting_note,
            not_ready=node.not_ready,
            engine_note=node.engine_note,
            python_version=node.python_version,
            disk_note=sample.disk_note if sample else "",
            drain=drain_message(node.drain),
            fence=fence_message(node.fence),
            hold=hold_message(node.hold, names_replicas=may(who, ADMINISTER, PLATFORM) is ALLOW),
            gang_network=node.gang_network,
            networks=map(network_name, node.networks),
            limits=kept_message(node.limits),
            certificate_ends_at=timestamp(self._core.identities.certificate_ends(node.name)),
            clock_ahead=None if ahead_s is None else duration(ahead_s),
        )

    def _devices(
        self, node: Node, who: UserCaller, sample: NodeSample | None
    ) -> list[pb.DeviceUse]:
        names: dict[str, list[str]] = defaultdict(list)
        for held in self._allocation(node).replicas:
            session = self._core.state.session(held.session_id)
            if session is not None and may(who, SEE, session) is ALLOW:
                for share in held.devices:
                    names[share.uuid].append(session.name)
        thousandths = self._allocation(node).held_thousandths()
        readings = {one.uuid: one for one in sample.devices} if sample else {}
        uses = []
        for device in node.devices:
            use = pb.DeviceUse(
                device=device_message(device),
                allocated_thousandths=thousandths.get(device.uuid, 0),
                sessions=names[device.uuid],
            )
            if device.uuid in readings:
                use.sample.CopyFrom(sample_message(readings[device.uuid]))
            uses.append(use)
        return uses

    def _allocation(self, node: Node) -> Allocation:
        stored = self._core.state.allocations.get(node.name)
        return stored.value if stored else Allocation(node=node.name)

    def _held(self, node: Node) -> Resources:
        return _sum(
            Resources(
                gpu_thousandths=held.gpu_thousandths,
                cpu_thousandths=held.cpu_thousandths,
                memory_bytes=held.memory_bytes,
            )
            for held in self._allocation(node).replicas
        )

    def _state_of(self, node: Node) -> str:
        return f"NODE_STATE_{self._states.of(node)}"


def _transfers(link: AgentConnection | None) -> pb.NodeTransfers | None:
    if link is None:
        return None
    fetched = link.fetched
    return pb.NodeTransfers(
        from_platform=fetched.from_platform,
        from_peers=fetched.from_peers,
        to_peers=fetched.to_peers,
        dropped_peers=fetched.dropped_peers,
        from_bucket=fetched.from_bucket,
        bucket_note=fetched.bucket_note,
    )


def _names(sessions: Iterable[Session], who: UserCaller) -> list[str]:
    """Return the sorted names of sessions visible to the caller."""
    return sorted(one.name for one in sessions if may(who, SEE, one) is ALLOW)


def _sum(parts: Iterable[Resources]) -> Resources:
    found = list(parts)
    return Resources(
        gpu_thousandths=sum(one.gpu_thousandths for one in found),
        cpu_thousandths=sum(one.cpu_thousandths for one in found),
        memory_bytes=sum(one.memory_bytes for one in found),
    )
