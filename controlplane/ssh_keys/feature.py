"""Users' public keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.access.ssh_authority import SshAuthority
from controlplane.core.feature import Feature
from controlplane.ssh_keys.entrances import SshEntrances
from controlplane.ssh_keys.service import JumpHosts, SshKeyServicer
from controlplane.ssh_keys.user_keys import UserKeys
from nsml.v1 import ssh_keys_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def user_keys(core: Core) -> UserKeys:
    """Keys of all users."""
    return UserKeys(core.store, core.identities, clock=core.wall)


def ssh_authority(core: Core) -> SshAuthority:
    """The platform's authority."""
    return SshAuthority(core.backends.authority, core.wall)


def entrances(core: Core) -> SshEntrances:
    """Entrances for connections through jump hosts."""
    return SshEntrances(core.shared(user_keys), core.shared(ssh_authority), core.random_bytes)


def wire(core: Core) -> Feature:
    """Offer SshKeyService."""
    authority = core.shared(ssh_authority)
    jump_hosts = JumpHosts(
        own=core.config.jump_address,
        members=core.members,
        host_key=authority.jump_host_public_key,
        authority_for=authority.public_key,
    )
    servicer = SshKeyServicer(core.shared(user_keys), jump_hosts)
    return Feature(services=((ssh_keys_pb2_grpc.add_SshKeyServiceServicer_to_server, servicer),))
