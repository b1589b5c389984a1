"""Users' secrets, and their encryption keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.core.feature import Feature
from controlplane.secrets.service import SecretServicer
from controlplane.secrets.user_secrets import UserSecrets
from nsml.v1 import secrets_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core
    from controlplane.core.feature import Loop


def user_secrets(core: Core) -> UserSecrets:
    """Secrets of all users, sealed."""
    return UserSecrets(core.store, core.backends.vault, clock=core.wall)


def wire(core: Core) -> Feature:
    """Offer SecretService, and re-encrypt secrets under older keys."""
    secrets, keys = core.shared(user_secrets), core.backends.keys
    loops: dict[str, Loop] = {"secrets": secrets.keep_renewed}
    if keys is not None:
        loops["keys"] = keys.run
    servicer = SecretServicer(secrets)
    return Feature(
        services=((secrets_pb2_grpc.add_SecretServiceServicer_to_server, servicer),),
        member_loops=loops,
    )
