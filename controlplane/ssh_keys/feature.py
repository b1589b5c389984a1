"""Users' public keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.core.feature import Feature
from controlplane.ssh_keys.service import SshKeyServicer
from controlplane.ssh_keys.user_keys import UserKeys
from nsml.v1 import ssh_keys_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def user_keys(core: Core) -> UserKeys:
    """All of them."""
    return UserKeys(core.store, core.identities, clock=core.wall)


def wire(core: Core) -> Feature:
    """Offer SshKeyService."""
    servicer = SshKeyServicer(core.shared(user_keys))
    return Feature(services=((ssh_keys_pb2_grpc.add_SshKeyServiceServicer_to_server, servicer),))
