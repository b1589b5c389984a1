"""SshKeyService: unpack, call, convert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from controlplane.access.current import (
    note_target,
    require_jump_host,
    require_owner,
    require_user,
)
from controlplane.codec import encoder
from controlplane.domain.errors import StateConflict
from controlplane.ssh_keys.user_keys import KeyFacts
from controlplane.wire.errors import Context, answering
from nsml.v1 import ssh_keys_pb2 as pb
from nsml.v1 import ssh_keys_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.domain.identity import User
    from controlplane.ssh_keys.user_keys import UserKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class JumpHost:
    """Where our jump host is, "" for nowhere; its public key, and that of who certifies host keys for a user."""

    address: str
    host_key: str
    authority_for: Callable[[User], str]


class SshKeyServicer(ssh_keys_pb2_grpc.SshKeyServiceServicer):
    """Users' public keys."""

    def __init__(self, keys: UserKeys, jump_host: JumpHost) -> None:
        self._keys = keys
        self._jump_host = jump_host

    @answering
    async def AddSshKey(  # noqa: N802 - named by the contract, as all below
        self, request: pb.AddSshKeyRequest, _: Context
    ) -> pb.AddSshKeyResponse:
        """Add one of the caller's."""
        owner = require_user().user.name
        return pb.AddSshKeyResponse(
            key=_message(await self._keys.add(owner, request.public_key, request.name))
        )

    @answering
    async def ListSshKeys(  # noqa: N802
        self, request: pb.ListSshKeysRequest, _: Context
    ) -> pb.ListSshKeysResponse:
        """All of a user's."""
        listed = await self._keys.listed(_owner(request.user))
        return pb.ListSshKeysResponse(keys=map(_message, listed))

    @answering
    async def RemoveSshKey(  # noqa: N802
        self, request: pb.RemoveSshKeyRequest, _: Context
    ) -> pb.RemoveSshKeyResponse:
        """Remove one."""
        if request.user:
            note_target(f"{request.user}/{request.name}")
        await self._keys.remove(_owner(request.user), request.name)
        return pb.RemoveSshKeyResponse()

    @answering
    async def GetSshKeyUser(  # noqa: N802
        self, _request: pb.GetSshKeyUserRequest, _: Context
    ) -> pb.GetSshKeyUserResponse:
        """Whose key a jump host calls with."""
        return pb.GetSshKeyUserResponse(user=require_jump_host().user.name)

    @answering
    async def GetJumpHost(  # noqa: N802
        self, _request: pb.GetJumpHostRequest, _: Context
    ) -> pb.GetJumpHostResponse:
        """Ours."""
        host = self._jump_host
        if not host.address:
            raise StateConflict(
                "this platform has no jump host",
                why="its control plane was started without one",
                attempt="an administrator runs nsml up --ssh HOST:PORT",
            )
        return pb.GetJumpHostResponse(
            address=host.address,
            host_key=host.host_key,
            authority=host.authority_for(require_user().user),
        )


def _owner(user: str) -> str:
    return require_owner(user, "keys", others="see those of others")


_message: Final = encoder(KeyFacts, pb.SshKey).to_message
