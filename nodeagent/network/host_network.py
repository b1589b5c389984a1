"""Chooses a replica's network: one of its own, that of its gang, the node's at the session's request, or none.

The control plane places by the node's offer; the agent decides here what it starts, by its current
settings.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.confinement import is_confined
from nodeagent.network.gang_network import HOST, NONE, GangNetwork
from nodeagent.runtimes.interface import NodeRefused
from nsml.v1 import resources_pb2 as resources
from nsml.v1 import sessions_pb2 as sessions

_REFUSALS = {
    resources.NETWORK_HOST: "this node does not allow the host network: see host_network of its agent",
    resources.NETWORK_OWN: "this node gives sessions no network of their own: nsml node show says why",
    resources.NETWORK_NONE: "this node cannot keep sessions from its network: nsml node show says why",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOffer:
    """The networks that a session without a gang may request on this node.

    `has_own`: sessions get networks of their own. `host`: the node's network, for sessions that request
    it; None: it is refused. `has_none`: sessions can have a loopback alone.
    """

    has_own: bool = False
    host: GangNetwork | None = None
    has_none: bool = False

    @property
    def networks(self) -> list[resources.Network]:
        """The networks offered to the control plane."""
        own = [resources.NETWORK_OWN] if self.has_own else []
        host = [] if self.host is None else [resources.NETWORK_HOST]
        return [*own, *host, *([resources.NETWORK_NONE] if self.has_none else [])]


def has_no_network(spec: sessions.SessionSpec) -> bool:
    """Whether its replica reaches nothing but its own loopback."""
    return is_confined(spec) or spec.network == resources.NETWORK_NONE


def network_of(
    spec: sessions.SessionSpec, gangs: GangNetwork, offer: NetworkOffer
) -> GangNetwork | None:
    """Return the network that a replica shares; None: its own, the node's default, or none (`has_no_network`).

    Raises:
        NodeRefused: the node does not offer the requested network.
    """
    wanted = resources.NETWORK_NONE if is_confined(spec) else spec.network
    if spec.replica_count > 1:
        if gangs.mode == NONE:
            raise NodeRefused("this node gives gangs no network: see gang_network of its agent")
        given = resources.NETWORK_HOST if gangs.mode == HOST else resources.NETWORK_OWN
        if wanted not in {resources.NETWORK_UNSPECIFIED, given}:
            raise NodeRefused(f"gangs have another network here: gang_network is {gangs.mode}")
        return gangs
    if wanted == resources.NETWORK_UNSPECIFIED:
        return None
    if wanted not in offer.networks:
        raise NodeRefused(_REFUSALS.get(wanted, f"this agent knows no network {wanted}"))
    return offer.host if wanted == resources.NETWORK_HOST else None


def shares_ports(spec: sessions.SessionSpec) -> bool:
    """Whether its replicas get a port of the node to be reached at."""
    return spec.replica_count > 1 or spec.network == resources.NETWORK_HOST
