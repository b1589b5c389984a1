"""SecretService: unpack, call, convert. Nothing here answers with a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.access.current import note_target, require_owner, require_user
from controlplane.codec import encoder
from controlplane.secrets.user_secrets import SecretFacts
from controlplane.wire.errors import Context, answering
from nsml.v1 import secrets_pb2 as pb
from nsml.v1 import secrets_pb2_grpc

if TYPE_CHECKING:
    from controlplane.secrets.user_secrets import UserSecrets


class SecretServicer(secrets_pb2_grpc.SecretServiceServicer):
    """Users' secrets."""

    def __init__(self, secrets: UserSecrets) -> None:
        self._secrets = secrets

    @answering
    async def SetSecret(  # noqa: N802 - named by the contract, as all below
        self, request: pb.SetSecretRequest, _: Context
    ) -> pb.SetSecretResponse:
        """Make or replace one of the caller's."""
        owner = require_user().user.name
        facts = await self._secrets.put(owner, request.name, request.value)
        return pb.SetSecretResponse(secret=_message(facts))

    @answering
    async def ListSecrets(  # noqa: N802
        self, request: pb.ListSecretsRequest, _: Context
    ) -> pb.ListSecretsResponse:
        """Names, sizes and times."""
        listed = await self._secrets.listed(_owner(request.user))
        return pb.ListSecretsResponse(secrets=[_message(one) for one in listed])

    @answering
    async def RemoveSecret(  # noqa: N802
        self, request: pb.RemoveSecretRequest, _: Context
    ) -> pb.RemoveSecretResponse:
        """Remove one."""
        if request.user:
            note_target(f"{request.user}/{request.name}")
        await self._secrets.remove(_owner(request.user), request.name)
        return pb.RemoveSecretResponse()


def _owner(user: str) -> str:
    return require_owner(user, "secrets", others="remove those of others")


_message: Final = encoder(SecretFacts, pb.Secret).to_message
