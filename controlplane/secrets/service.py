"""SecretService: unpack, call, convert. No answer has a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.access.current import note_target, require_owner, require_user
from controlplane.codec import encoder
from controlplane.secrets.user_secrets import LoginFacts, SecretFacts
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
        """Make or replace a secret of the caller's."""
        owner = require_user().user.name
        facts = await self._secrets.put(owner, request.name, request.value)
        return pb.SetSecretResponse(secret=_message(facts))

    @answering
    async def ListSecrets(  # noqa: N802
        self, request: pb.ListSecretsRequest, _: Context
    ) -> pb.ListSecretsResponse:
        """List names, sizes and times."""
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

    @answering
    async def SetRegistryLogin(  # noqa: N802
        self, request: pb.SetRegistryLoginRequest, _: Context
    ) -> pb.SetRegistryLoginResponse:
        """Set the caller's login at a registry."""
        owner = require_user().user.name
        facts = await self._secrets.put_login(
            owner, request.registry, request.registry_user, request.password
        )
        return pb.SetRegistryLoginResponse(login=_access(facts))

    @answering
    async def ListRegistryLogins(  # noqa: N802
        self, request: pb.ListRegistryLoginsRequest, _: Context
    ) -> pb.ListRegistryLoginsResponse:
        """List registries, user names and times."""
        listed = await self._secrets.logins(_owner(request.user))
        return pb.ListRegistryLoginsResponse(logins=[_access(facts) for facts in listed])

    @answering
    async def RemoveRegistryLogin(  # noqa: N802
        self, request: pb.RemoveRegistryLoginRequest, _: Context
    ) -> pb.RemoveRegistryLoginResponse:
        """Remove one."""
        if request.user:
            note_target(f"{request.user}/{request.registry}")
        await self._secrets.remove_login(_owner(request.user), request.registry)
        return pb.RemoveRegistryLoginResponse()


def _owner(user: str) -> str:
    return require_owner(user, "secrets", others="remove those of others")


_message: Final = encoder(SecretFacts, pb.Secret).to_message
_access: Final = encoder(LoginFacts, pb.RegistryAccess).to_message
