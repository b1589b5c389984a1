"""Users, their tokens, and joining nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.access.joining import Joining
from controlplane.accounts.service import AccountServicer, Platform
from controlplane.core.feature import Feature
from controlplane.limits.user_storage import KeptUsages
from controlplane.projects.feature import projects
from nsml.v1 import accounts_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def joining(core: Core) -> Joining:
    """Create the joining of nodes by tokens."""
    return Joining(
        core.store, core.backends.authority, clock=core.wall, random_bytes=core.random_bytes
    )


def wire(core: Core) -> Feature:
    """Offer AccountService."""
    servicer = AccountServicer(
        core.accounts,
        core.shared(joining),
        core.shared(projects),
        usages=KeptUsages(
            kept=core.kept, history=core.history, state=core.state, users=core.accounts
        ),
        platform=Platform(
            cluster_id=core.cluster_id,
            user_address=core.config.user_address,
            agent_address=core.config.agent_address,
        ),
        limiter=core.limiter,
    )
    return Feature(services=((accounts_pb2_grpc.add_AccountServiceServicer_to_server, servicer),))
