"""Python environments of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.core.feature import Feature
from controlplane.environments.locks import EnvironmentLocks
from controlplane.environments.node_environments import NodeEnvironments
from controlplane.environments.service import EnvironmentServicer
from controlplane.secrets.feature import user_secrets
from nsml.v1 import environments_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def environment_locks(core: Core) -> EnvironmentLocks:
    """Records and finds package locks."""
    return EnvironmentLocks(history=core.history, rights=core.rights, run=core.offload)


def node_environments(core: Core) -> NodeEnvironments:
    """Users' requests about environments on nodes."""
    return NodeEnvironments(
        contacts=core.contacts,
        state=core.state,
        random_bytes=core.random_bytes,
        names=lambda user_id: core.identities.ids().get(user_id, ""),
        logins=lambda user: core.shared(user_secrets).logins_for(user, ""),
    )


def wire(core: Core) -> Feature:
    """Offer EnvironmentService."""
    servicer = EnvironmentServicer(
        core, core.shared(environment_locks), core.shared(node_environments)
    )
    return Feature(
        services=((environments_pb2_grpc.add_EnvironmentServiceServicer_to_server, servicer),)
    )
