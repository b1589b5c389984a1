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
    from controlplane.state.members import Members


@dataclass(frozen=True, slots=True, kw_only=True)
class JumpHosts:
    """The platform's jump hosts: our own address, "" for none; their public key, and the authority's for host keys."""

    own: str
    members: Members
    host_key: str
    authority_for: Callable[[User], str]

    def addresses(self) -> list[str]:
        """Return those of all running control planes, our own first."""
        others = sorted(one.jump_address for one in self.members.everyone())
        return [one for one in dict.fromkeys((self.own, *others)) if one]


class SshKeyServicer(ssh_keys_pb2_grpc.SshKeyServiceServicer):
    """Users' public keys."""

    def __init__(self, keys: UserKeys, jump_hosts: JumpHosts) -> None:
        self._keys = keys
        self._jump_hosts = jump_hosts

    @answering
    async def AddSshKey(  # noqa: N802 - named by the contract, as all below
        self, request: pb.AddSshKeyRequest, _: Context
    ) -> pb.AddSshKeyResponse:
        """Add a key of the caller's."""
        owner = require_user().user.name
        return pb.AddSshKeyResponse(
            key=_message(await self._keys.add(owner, request.public_key, request.name))
        )

    @answering
    async def ListSshKeys(  # noqa: N802
        self, request: pb.ListSshKeysRequest, _: Context
    ) -> pb.ListSshKeysResponse:
        """List a user's keys."""
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
        """Return the user of a jump host's call."""
        return pb.GetSshKeyUserResponse(user=require_jump_host().user.name)

    @answering
    async def GetJumpHost(  # noqa: N802
        self, _request: pb.GetJumpHostRequest, _: Context
    ) -> pb.GetJumpHostResponse:
        """Return our jump host, and those of others."""
        hosts = self._jump_hosts
        addresses = hosts.addresses()
        if not addresses:
            raise StateConflict(
                "this platform has no jump host",
                why="no control plane that runs was started with one",
                attempt="an administrator runs nsml up --ssh HOST:PORT",
            )
        return pb.GetJumpHostResponse(
            address=addresses[0],
            host_key=hosts.host_key,
            authority=hosts.authority_for(require_user().user),
            other_addresses=addresses[1:],
        )


def _owner(user: str) -> str:
    return require_owner(user, "keys", others="see those of others")


_message: Final = encoder(KeyFacts, pb.SshKey).to_message
