"""Connections to the members of an etcd cluster, and the rules of retries.

A read may be repeated; a write may be repeated only when it surely was not applied.
All errors of servers and gRPC are classified by `_verdict`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, cast
from urllib.parse import urlsplit

import grpc
import grpc.aio
import structlog

from controlplane.store.etcd_denials import denial, reason
from controlplane.store.etcdpb import rpc_pb2 as pb
from controlplane.store.interface import (
    CommitUnknown,
    Compacted,
    InvalidTransaction,
    NoSpace,
    StoreError,
    StoreRefused,
    StoreReplaced,
    StoreUnavailable,
)
from nsml.common.hosts import is_loopback
from nsml.spec.etcd_versions import why_unsound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from google.protobuf.message import Message

    from nsml.common.clock import Clock

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Response = TypeVar("Response", bound="Message")
Verdict = Literal["retry", "login", "unknown"]

END: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined]
"""The result of reading a stream after its last message."""

RECEIVE_MAX_BYTES: Final = 64 << 20

NO_LEADER: Final = "it has no leader: too few of the cluster's members run"
"""The obstacle of a member that answers, but cannot decide alone."""

_OBSTACLE_S: Final = 0.5

_CHANNEL_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),  # or all channels of the process share one connection
    ("grpc.max_receive_message_length", RECEIVE_MAX_BYTES),
    ("grpc.max_send_message_length", 4 << 20),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 500),
    # The last resort: calls have deadlines, and a watch asks for progress messages. etcd closes connections
    # that ping more often than every five seconds. The third option's default is a minute of silence.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Certificates of an encrypted connection, as PEM; certificate and key for mutual TLS."""

    ca: bytes
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user of etcd's own access control; a password that may change is read at each login.

    Reading it raises StoreUnavailable if it cannot be read now.
    """

    user: str
    password: str | Callable[[], str] = field(repr=False)

    def current(self) -> str:
        """The password as it is now."""
        return self.password if isinstance(self.password, str) else self.password()


class LeaseNotFound(StoreError):
    """The server does not know the lease; the caller knows which one it was."""


class StoreBehind(StoreUnavailable):
    """A read was answered from an older revision than one seen before.

    Servers 3.4 may do so for a moment after their process was paused; a store that keeps doing
    so has been replaced.
    """


class ReplyTooLarge(StoreError):
    """The answer exceeds the receive limit: request less at a time."""


class Attempt(Protocol[T_co]):
    """One try of a call on one member, with a timeout in seconds."""

    def __call__(self, member: Member, timeout_s: float, /) -> Awaitable[T_co]:
        """Return the answer or raise grpc.aio.AioRpcError."""
        ...


def plain_or_tls(endpoint: str) -> tuple[str, bool]:
    """Return gRPC's target for an endpoint URL and whether it is encrypted.

    Raises:
        ValueError: an unsupported URL, or plain text to another machine.
    """
    url = urlsplit(endpoint)
    if url.scheme == "unix" and url.path:
        return f"unix:{url.path}", False
    if "@" in url.netloc:  # not shown: it may have a password
        raise ValueError("an etcd endpoint has no user in its URL: etcd_user, etcd_password_file")
    if url.scheme not in ("http", "https") or not url.hostname or not url.port:
        raise ValueError(
            f"{endpoint!r} is not an etcd endpoint: write https://HOST:PORT, "
            "http://127.0.0.1:PORT or unix:///PATH"
        )
    if url.scheme == "http" and not is_loopback(url.hostname):
        raise ValueError(f"{endpoint!r} is another machine and not encrypted: use https")
    return url.netloc, url.scheme == "https"


class Member:
    """One endpoint: a channel and the calls on it."""

    def __init__(self, endpoint: str, tls: Tls | None) -> None:
        target, is_encrypted = plain_or_tls(endpoint)
        self.endpoint = endpoint
        self.is_verified = False
        options: Any = _CHANNEL_OPTIONS
        if is_encrypted:
            if tls is None:
                raise ValueError(f"{endpoint!r} needs a certificate authority to be checked with")
            credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
            self.channel = grpc.aio.secure_channel(target, credentials, options=options)
        else:
            self.channel = grpc.aio.insecure_channel(target, options=options)
        self.range = self._unary("KV/Range", pb.RangeRequest, pb.RangeResponse)
        self.transact = self._unary("KV/Txn", pb.TxnRequest, pb.TxnResponse)
        self.compact = self._unary("KV/Compact", pb.CompactionRequest, pb.CompactionResponse)
        self.grant = self._unary("Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
        self.revoke = self._unary(
            "Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse
        )
        self.status = self._unary("Maintenance/Status", pb.StatusRequest, pb.StatusResponse)
        self.alarm = self._unary("Maintenance/Alarm", pb.AlarmRequest, pb.AlarmResponse)
        self.defragment = self._unary(
            "Maintenance/Defragment", pb.DefragmentRequest, pb.DefragmentResponse
        )
        self.authenticate = self._unary(
            "Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse
        )
        self.keep_alive = self._stream(
            "Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse
        )
        self.watch = self._stream("Watch/Watch", pb.WatchRequest, pb.WatchResponse)

    def _unary(
        self, name: str, request: type[Message], response: type[Response]
    ) -> Callable[..., Awaitable[Response]]:
        call: Any = self.channel.unary_unary(
            f"/etcdserverpb.{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return cast("Callable[..., Awaitable[Response]]", call)

    def _stream(self, name: str, request: type[Any], response: type[Any]) -> Any:
        return self.channel.stream_stream(
            f"/etcdserverpb.{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )

    async def obstacle(self, timeout_s: float) -> str:
        """Return why calls are not answered, "" if they are: waiting calls do not report it."""
        try:
            answer = await self.status(pb.StatusRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            return error.details() or error.code().name
        return "" if answer.leader else NO_LEADER

    async def ready(self, timeout_s: float, *, is_alone: bool = True) -> None:
        """Return once connected to a server of a sound version.

        A single member is waited for; one of several fails at once when it is unavailable.

        Later calls fail at once, instead of waiting for a missing connection, so that calls that
        were never sent are distinguishable from calls that may have been applied.
        """
        state = self.channel.get_state(try_to_connect=True)
        if self.is_verified and state is grpc.ChannelConnectivity.READY:
            return
        answer = await self.status(pb.StatusRequest(), timeout=timeout_s, wait_for_ready=is_alone)
        refuse_unsound(answer.version)
        self.is_verified = True


def refuse_unsound(version: str) -> None:
    """Raise StoreRefused for a server version that is known to lose writes, or is too old."""
    why = why_unsound(version)
    if why:
        raise StoreRefused(why)


class Cluster:
    """The members of a cluster, tried in turn, with deadlines, retries and login.

    Args:
        deadline_s: timeout of a call with all its tries.
        try_s: timeout of the first try of a read; later tries wait longer.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        clock: Clock,
        tls: Tls | None,
        login: Login | None,
        deadline_s: float,
        try_s: float,
    ) -> None:
        if not endpoints:
            raise ValueError("an etcd cluster has at least one endpoint")
        self._clock = clock
        self._login = login
        self._token: str | None = None
        self._deadline_s = deadline_s
        self._try_s = try_s
        self._turn = 0
        self._log = structlog.get_logger()
        self.members = tuple(Member(endpoint, tls) for endpoint in endpoints)

    async def close(self) -> None:
        """Close every connection; calls in progress are cancelled."""
        for member in self.members:
            await member.channel.close(None)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of each call: the login token, if the server requires one."""
        return () if self._token is None else (("token", self._token),)

    @property
    def current(self) -> Member:
        """The member that calls go to until it fails."""
        return self.members[self._turn % len(self.members)]

    def rotate(self, failed: Member) -> None:
        """Switch to the next member, unless that was done already."""
        failed.is_verified = False
        if self.current is failed:
            self._turn += 1

    async def call(
        self, attempt: Attempt[T], *, is_write: bool = False, deadline_s: float | None = None
    ) -> T:
        """Run one call within the deadline, on any member that answers.

        Raises:
            CommitUnknown: a write was sent and its answer was lost.
            StoreUnavailable: no member answered; a write was not applied.
            StoreReplaced: until the deadline, reads were answered from old revisions.
        """
        ends_at = self._clock.monotonic() + (deadline_s or self._deadline_s)
        try_s = self._try_s
        reason = "no time was given"
        logins = 0
        is_behind = False
        while (left_s := ends_at - self._clock.monotonic()) > 0:
            member = self.current
            is_sent = False
            metadata = self.metadata
            try:
                if self._login is not None and self._token is None:
                    await self._log_in(member, self._login, min(try_s, left_s))
                await member.ready(min(try_s, left_s), is_alone=len(self.members) == 1)
                is_sent = is_write
                metadata = self.metadata
                return await attempt(member, left_s if is_write else min(try_s, left_s))
            except grpc.aio.AioRpcError as error:
                verdict = _verdict(error, is_sent=is_sent)
                is_cut = left_s < try_s and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                if not (is_behind and is_cut):  # a try cut short by our deadline shows nothing new
                    is_behind = False
                    reason = f"{member.endpoint}: {error.code().name}: {error.details()}"
            except StoreUnavailable as error:
                verdict, reason = "retry", f"{member.endpoint}: {error}"
                is_behind = isinstance(error, StoreBehind)
            if verdict == "unknown":
                self.rotate(member)
                raise CommitUnknown(f"the answer to a write was lost ({reason})")
            if verdict == "login":
                logins += 1
                if not self._forget(metadata) or logins > 2:
                    raise StoreRefused(f"etcd refuses our credentials ({reason})")
                continue
            self.rotate(member)
            try_s *= 1.5
            await self._clock.sleep(min(0.02, max(0.0, ends_at - self._clock.monotonic())))
        if is_behind:
            raise StoreReplaced(reason)
        raise StoreUnavailable(f"etcd does not answer ({reason})")

    async def explained(self, error: StoreUnavailable) -> StoreError:
        """Query each member for the reason; StoreRefused if each one denies us."""
        asked = (member.obstacle(_OBSTACLE_S) for member in self.members)
        obstacles = await asyncio.gather(*asked)
        found = [
            f"{member.endpoint}: {reason(obstacle)}"
            for member, obstacle in zip(self.members, obstacles, strict=True)
            if obstacle
        ]
        if not found:
            return error
        why = "; ".join(found)
        if all(map(denial, obstacles)):
            return StoreRefused(f"etcd cannot be used ({why}); try: {denial(obstacles[0])}")
        return StoreUnavailable(f"etcd does not answer ({why})")

    async def settle_denial(
        self,
        member: Member,
        span: tuple[bytes, bytes],
        metadata: tuple[tuple[str, str], ...],
        timeout_s: float,
    ) -> None:
        """Find out why a member denied a watch: missing rights, or an unknown token.

        It reports the same for both, however often it restarts. A read of the same keys by the same
        token, which that member answers alone, distinguishes them.

        Raises:
            StoreRefused: we may not read these keys.
        """
        first, end = span
        request = pb.RangeRequest(
            key=first, range_end=end, limit=1, count_only=True, serializable=True
        )
        try:
            await member.range(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if _verdict(error, is_sent=False) == "login" and not self._forget(metadata):
                raise StoreRefused(f"etcd refuses the watch: {error.details()}") from error

    def _forget(self, metadata: tuple[tuple[str, str], ...]) -> bool:
        """Log in again at the next call; False if there is no user to log in as.

        The token of the denied call may have been replaced since: then there was a login just
        now, and its token is kept.
        """
        if metadata == self.metadata:
            self._token = None
        return self._login is not None

    async def _log_in(self, member: Member, login: Login, timeout_s: float) -> None:
        request = pb.AuthenticateRequest(name=login.user, password=login.current())
        try:
            answer = await member.authenticate(request, timeout=timeout_s, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            if error.code() in (
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.FAILED_PRECONDITION,
            ):
                raise StoreRefused(f"etcd refuses user {login.user}: {error.details()}") from error
            raise
        self._token = answer.token


_REFUSALS: Final[tuple[tuple[str, Callable[[str], StoreError]], ...]] = (
    ("requested lease not found", LeaseNotFound),
    ("required revision has been compacted", lambda _: Compacted(0)),
    ("required revision is a future revision", StoreReplaced),
    ("database space exceeded", NoSpace),
    ("request is too large", InvalidTransaction),
    ("too many operations in txn", InvalidTransaction),
    ("duplicate key given in txn", InvalidTransaction),
    ("message larger than max", ReplyTooLarge),
)
"""Answers of the server that are final, by a part of their text, which is etcd's public API."""

_LOGINS: Final = ("invalid auth token", "user name is empty", "revision in header is old")
"""The token has expired, or the server has restarted and lost it."""

_NEVER_APPLIED: Final = (
    "failed to connect",
    "Connection refused",
    "no leader",
    "too many requests",
    "leader changed",
)
"""Failures before a write is proposed, or of reads only."""


def _verdict(error: grpc.aio.AioRpcError, *, is_sent: bool) -> Verdict:
    """Return what to do after a failed call, or raise its meaning.

    Args:
        error: what gRPC raised.
        is_sent: a write may have reached the server.
    """
    details = error.details() or ""
    for text, refusal in _REFUSALS:
        if text in details:
            raise refusal(f"etcd: {details}") from error
    if any(text in details for text in _LOGINS):
        return "login"
    match error.code():
        case grpc.StatusCode.UNAUTHENTICATED:
            return "login"
        case (
            grpc.StatusCode.PERMISSION_DENIED
            | grpc.StatusCode.UNIMPLEMENTED
            | grpc.StatusCode.INVALID_ARGUMENT
            | grpc.StatusCode.FAILED_PRECONDITION
        ):
            raise StoreRefused(f"etcd: {details}") from error
    if is_sent and not any(text in details for text in _NEVER_APPLIED):
        return "unknown"
    return "retry"
