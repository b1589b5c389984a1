"""Which network a replica gets: one of its own, that of its gang, or the node's for a session that asks for it.

The control plane places by what the node offers; what the agent starts is decided here, by the settings that
it has now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodeagent.network.gang_network import HOST, NONE, GangNetwork
from nodeagent.runtimes.interface import NodeRefused
from nsml.v1 import resources_pb2 as resources

if TYPE_CHECKING:
    from nsml.v1 import sessions_pb2 as sessions

_REFUSALS = {
    resources.NETWORK_HOST: "this node does not allow the host network: see host_network of its agent",
    resources.NETWORK_OWN: "this node gives sessions no network of their own: nsml node show says why",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOffer:
    """The networks that a session that is no gang may ask for on this node.

    `has_own`: sessions get networks of their own. `host` is what a session gets that asks for the node's
    network; None: that is refused.
    """

    has_own: bool = False
    host: GangNetwork | None = None

    @property
    def networks(self) -> list[resources.Network]:
        """For the control plane."""
        own = [resources.NETWORK_OWN] if self.has_own else []
        return own if self.host is None else [*own, resources.NETWORK_HOST]


def network_of(
    spec: sessions.SessionSpec, gangs: GangNetwork, offer: NetworkOffer
) -> GangNetwork | None:
    """The network that a replica shares; None: its own, or what the node gives all sessions.

    Raises:
        NodeRefused: the node does not give it the network that it asks for.
    """
    wanted = spec.network
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
    """Whether its replicas are told a port of the node at which they may be reached."""
    return spec.replica_count > 1 or spec.network == resources.NETWORK_HOST
