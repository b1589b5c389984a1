"""AccountService: unpack, call, convert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from controlplane.access.current import caller, note_target, require_user
from controlplane.access.failed_attempts import FailureLimiter, address_of
from controlplane.codec import encoder
from controlplane.core.paging import page_size
from controlplane.domain.errors import Denied, InvalidRequest, NotSignedIn
from controlplane.domain.identity import NodeCaller, Role, User, UserCaller
from controlplane.domain.names import check_user
from controlplane.domain.policy import ACT_FOR, ADMINISTER, ALLOW, PLATFORM, Personal, may
from controlplane.limits.reserved_names import check_not_reserved
from controlplane.wire.chunking import parts_of
from controlplane.wire.errors import Context, answering
from controlplane.wire.stored_bytes import item_message, usage_message
from controlplane.wire.times import seconds_of, timestamp
from nsml.v1 import accounts_pb2, accounts_pb2_grpc

if TYPE_CHECKING:
    from controlplane.access.accounts import Accounts
    from controlplane.access.authority import SignedNode
    from controlplane.access.joining import Joining
    from controlplane.limits.user_storage import KeptUsages, KeptUse
    from controlplane.projects.projects import Projects

_ROLES = {
    accounts_pb2.ROLE_UNSPECIFIED: Role.MEMBER,
    accounts_pb2.ROLE_MEMBER: Role.MEMBER,
    accounts_pb2.ROLE_ADMIN: Role.ADMIN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Facts on this platform for responses.

    `user_address`: for calls of other machines, HOST:PORT with TLS; `agent_address`: for joined
    agents, with mutual TLS; empty if there is no such listener.
    """

    cluster_id: str
    user_address: str = ""
    agent_address: str = ""

    @property
    def join_address(self) -> str:
        """Address for joining machines; empty if their agents would not be served."""
        return self.user_address if self.agent_address else ""


class AccountServicer(accounts_pb2_grpc.AccountServiceServicer):
    """Users, tokens and joining nodes. The access table has already admitted the caller."""

    def __init__(
        self,
        accounts: Accounts,
        joining: Joining,
        projects: Projects,
        *,
        usages: KeptUsages,
        platform: Platform,
        limiter: FailureLimiter,
    ) -> None:
        self._accounts = accounts
        self._joining = joining
        self._projects = projects
        self._usages = usages
        self._platform = platform
        self._limiter = limiter

    @answering
    async def GetCaller(  # noqa: N802 - named by the contract, as all below
        self, _: accounts_pb2.GetCallerRequest, __: Context
    ) -> accounts_pb2.GetCallerResponse:
        """Return the caller."""
        response = accounts_pb2.GetCallerResponse(cluster_id=self._platform.cluster_id)
        match caller():
            case UserCaller(user=user):
                response.user.CopyFrom(_user(user))
            case NodeCaller(node=node):
                response.node = node
        return response

    @answering
    async def CreateUser(  # noqa: N802
        self, request: accounts_pb2.CreateUserRequest, _: Context
    ) -> accounts_pb2.CreateUserResponse:
        """Create a user."""
        role = _ROLES.get(request.role)
        if role is None:
            raise InvalidRequest(f"unknown role {request.role}")
        if not request.restore:
            check_not_reserved(request.name, "user")
        user = await self._accounts.create_user(
            request.name, role, request.team, restore=request.restore
        )
        # An interrupted removal may have left an earlier user of that name in projects.
        await self._projects.forget_user(user.name)
        return accounts_pb2.CreateUserResponse(user=_user(user))

    @answering
    async def ListUsers(  # noqa: N802
        self, request: accounts_pb2.ListUsersRequest, _: Context
    ) -> accounts_pb2.ListUsersResponse:
        """Return a page of all users."""
        found = await self._accounts.list_users(after=request.cursor and check_user(request.cursor))
        shown = next(parts_of(map(_user, found[: page_size(request.page_size)])))
        cursor = shown[-1].name if len(shown) < len(found) else ""
        return accounts_pb2.ListUsersResponse(users=shown, next_cursor=cursor)

    @answering
    async def DeleteUser(  # noqa: N802
        self, request: accounts_pb2.DeleteUserRequest, _: Context
    ) -> accounts_pb2.DeleteUserResponse:
        """Remove a user and their tokens."""
        await self._accounts.delete_user(request.name)
        await self._projects.forget_user(request.name)
        return accounts_pb2.DeleteUserResponse()

    @answering
    async def UpdateUser(  # noqa: N802
        self, request: accounts_pb2.UpdateUserRequest, _: Context
    ) -> accounts_pb2.UpdateUserResponse:
        """Set a user's limit in the object store."""
        match request.WhichOneof("kept_limit"):
            case "kept_bytes" if request.kept_bytes < 1 << 63:
                await self._accounts.limit_kept(request.name, request.kept_bytes)
            case "default_kept" if request.default_kept:
                await self._accounts.limit_kept(request.name, None)
            case _:
                raise InvalidRequest("no limit is given", attempt="kept_bytes, or default_kept")
        return accounts_pb2.UpdateUserResponse()

    @answering
    async def GetUsage(  # noqa: N802
        self, request: accounts_pb2.GetUsageRequest, _: Context
    ) -> accounts_pb2.GetUsageResponse:
        """Return the stored bytes of the caller or, for administrators, of any user."""
        asking = require_user()
        user = request.user or asking.user.name
        if may(asking, ACT_FOR, Personal(user)) is not ALLOW:
            raise Denied("only administrators see what is kept for others")
        use, largest = await self._usages.of(user)
        message = _usage(use)
        message.largest.extend(map(item_message, largest))
        return accounts_pb2.GetUsageResponse(usage=message)

    @answering
    async def ListUsage(  # noqa: N802
        self, request: accounts_pb2.ListUsageRequest, _: Context
    ) -> accounts_pb2.ListUsageResponse:
        """Return a page of the stored bytes of each user."""
        found = await self._usages.all(after=request.cursor and check_user(request.cursor))
        shown = next(parts_of(map(_usage, found[: page_size(request.page_size)])))
        cursor = shown[-1].user if len(shown) < len(found) else ""
        return accounts_pb2.ListUsageResponse(usage=shown, next_cursor=cursor)

    @answering
    async def CreateToken(  # noqa: N802
        self, request: accounts_pb2.CreateTokenRequest, _: Context
    ) -> accounts_pb2.CreateTokenResponse:
        """Create a token for the caller or, for administrators, for any user."""
        asking = require_user()
        user = request.user or asking.user.name
        note_target(user)
        _check_own(asking, user)
        issued = await self._accounts.create_token(user, _seconds(request))
        where = self._platform.user_address
        return accounts_pb2.CreateTokenResponse(
            token=issued.secret.text,
            expires_at=timestamp(issued.expires_at),
            address=f"{where}#{self._joining.authority_digest}" if where else "",
        )

    @answering
    async def RevokeToken(  # noqa: N802
        self, request: accounts_pb2.RevokeTokenRequest, _: Context
    ) -> accounts_pb2.RevokeTokenResponse:
        """Make the token of this call invalid, or all of a user's."""
        asking = require_user()
        note_target(request.user or asking.user.name)
        if not request.user:
            revoked = await self._accounts.revoke(asking.token)
        elif may(asking, ADMINISTER, PLATFORM) is ALLOW:
            revoked = await self._accounts.revoke_all(
                (await self._accounts.get_user(request.user)).name
            )
        else:
            raise Denied("only administrators revoke all tokens of a user")
        return accounts_pb2.RevokeTokenResponse(revoked=revoked)

    @answering
    async def CreateJoinToken(  # noqa: N802
        self, request: accounts_pb2.CreateJoinTokenRequest, _: Context
    ) -> accounts_pb2.CreateJoinTokenResponse:
        """Create a token with which machines become nodes."""
        issued = await self._joining.create_token(require_user().user.name, _seconds(request))
        return accounts_pb2.CreateJoinTokenResponse(
            token=issued.text,
            expires_at=timestamp(issued.expires_at),
            address=self._platform.join_address,
        )

    @answering
    async def JoinNode(  # noqa: N802
        self, request: accounts_pb2.JoinNodeRequest, context: Context
    ) -> accounts_pb2.JoinNodeResponse:
        """Sign a node's certificate request."""
        signed = await self._join(request, address_of(context.peer()))
        return accounts_pb2.JoinNodeResponse(
            certificate=signed.certificate,
            authority=self._joining.authority_pem,
            agent_address=self._platform.agent_address,
        )

    async def _join(self, request: accounts_pb2.JoinNodeRequest, address: str) -> SignedNode:
        # A renewing node has proved its identity, whatever others guess behind the same address.
        if self._limiter.is_limited(address) and not isinstance(caller(), NodeCaller):
            raise NotSignedIn("too many wrong secrets from this address", attempt="wait a minute")
        try:
            return await self._joining.join(
                caller(),
                secret=request.secret,
                node=request.node,
                signing_request=request.signing_request,
            )
        except NotSignedIn:
            self._limiter.failed(address)
            raise


def _check_own(asking: UserCaller, user: str) -> None:
    """Raise Denied unless the caller acts for themselves or is an administrator."""
    if may(asking, ACT_FOR, Personal(user)) is not ALLOW:
        raise Denied("only administrators make tokens for others")


_user: Final = encoder(User, accounts_pb2.User, omit=("id", "kept_bytes")).to_message


def _usage(use: KeptUse) -> accounts_pb2.Usage:
    message = usage_message(use)
    message.user = use.name
    return message


def _seconds(
    request: accounts_pb2.CreateTokenRequest | accounts_pb2.CreateJoinTokenRequest,
) -> float:
    """Return the requested lifetime of a token; 0 if the request does not set it."""
    if not request.HasField("valid_for"):
        return 0.0
    seconds = seconds_of(request.valid_for)
    if seconds <= 0:
        raise InvalidRequest("valid_for must be more than nothing")
    return seconds
