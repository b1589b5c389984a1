"""Wiring of nodes and their agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.accounts.feature import joining
from controlplane.checkpoints.feature import retention
from controlplane.content.feature import node_repairs
from controlplane.core.feature import Feature
from controlplane.environments.feature import node_environments
from controlplane.leadership.feature import relay
from controlplane.nodes.agent_service import AgentServicer
from controlplane.nodes.dispatch_loop import Ordering
from controlplane.nodes.liveness_loop import Liveness
from controlplane.nodes.node_images import NodeImages
from controlplane.nodes.node_maintenance_loop import Upkeep
from controlplane.nodes.node_states import NodeStates
from controlplane.nodes.nodes import NodeKeeper
from controlplane.nodes.peering import Peering
from controlplane.nodes.registration import Registrar
from controlplane.nodes.service import NodeServicer
from controlplane.records.ingest import Ingestor
from controlplane.records.report_limits import Rationing
from controlplane.secrets.feature import user_secrets
from controlplane.sessions.feature import program_changes
from controlplane.tunnels.shared import tunnels
from controlplane.usage.feature import usages
from nsml.v1 import agents_pb2_grpc, nodes_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def node_keeper(core: Core) -> NodeKeeper:
    """Administrators' actions on nodes."""
    return NodeKeeper(
        state=core.state,
        committer=core.committer,
        contacts=core.contacts,
        clock=core.clock,
        notice_s=core.config.notice_s,
    )


def node_states(core: Core) -> NodeStates:
    """The states of nodes."""
    return NodeStates(
        state=core.state,
        contacts=core.contacts,
        leads=core.leads,
        silent_after_s=core.config.silent_after_s,
        clock=core.clock,
    )


def node_images(core: Core) -> NodeImages:
    """Users' orders about images of nodes."""
    return NodeImages(
        contacts=core.contacts,
        state=core.state,
        random_bytes=core.random_bytes,
        logins=core.shared(user_secrets).logins_for,
    )


def wire(core: Core) -> Feature:
    """Offer AgentService and NodeService; the leader sends orders, and detects silent nodes."""
    ordering = Ordering(state=core.state, contacts=core.contacts)
    upkeep = Upkeep(state=core.state, keeper=core.shared(node_keeper), clock=core.clock)
    liveness = Liveness(
        state=core.state,
        committer=core.committer,
        contacts=core.contacts,
        clock=core.clock,
        silent_after_s=core.config.silent_after_s,
    )
    return Feature(
        services=(
            (agents_pb2_grpc.add_AgentServiceServicer_to_server, _agents(core)),
            (nodes_pb2_grpc.add_NodeServiceServicer_to_server, _nodes(core)),
        ),
        leader_loops=(ordering.run, upkeep.run, liveness.run),
    )


def _agents(core: Core) -> AgentServicer:
    return AgentServicer(
        core,
        registrar=Registrar(
            state=core.state,
            committer=core.committer,
            contacts=core.contacts,
            keeper=core.shared(node_keeper),
            rights=core.rights,
            clock=core.clock,
            cluster_id=core.cluster_id,
            restores=core.backends.restores,
        ),
        ingestor=Ingestor(
            history=core.history,
            rights=core.rights,
            rationing=Rationing(core.admission),
            saved=core.shared(retention).changed,
        ),
        tunnels=core.shared(tunnels),
        images=core.shared(node_images),
        environments=core.shared(node_environments),
        repairs=core.shared(node_repairs),
        secrets=core.shared(user_secrets),
        changes=core.shared(program_changes),
        peering=Peering(state=core.state, contacts=core.contacts, clock=core.platform_wall),
        relay=core.shared(relay),
    )


def _nodes(core: Core) -> NodeServicer:
    return NodeServicer(
        core,
        keeper=core.shared(node_keeper),
        usages=core.shared(usages),
        states=core.shared(node_states),
        joining=core.shared(joining),
        images=core.shared(node_images),
        tunnels=core.shared(tunnels),
        relay=core.shared(relay),
    )
