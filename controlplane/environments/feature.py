"""Python environments of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.core.feature import Feature
from controlplane.environments.locks import EnvironmentLocks
from controlplane.environments.service import EnvironmentServicer
from nsml.v1 import environments_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def environment_locks(core: Core) -> EnvironmentLocks:
    """The packages that sessions ran with."""
    return EnvironmentLocks(history=core.history, rights=core.rights, run=core.offload)


def wire(core: Core) -> Feature:
    """Offer EnvironmentService."""
    servicer = EnvironmentServicer(core.shared(environment_locks), core.references, core.reading)
    return Feature(
        services=((environments_pb2_grpc.add_EnvironmentServiceServicer_to_server, servicer),)
    )
