"""Connections to other control planes.

Mutual TLS on the agents' listener, with a certificate that each control plane issues to itself from the
authority; without such a listener, the plain one of the same machine, without a credential.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from controlplane.access.authority import SERVER_NAME
from controlplane.access.listeners import ListenRefused, parse_address
from controlplane.domain.errors import Unavailable
from nsml.client.rpc import HASTY

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.access.authority import Authority, KeyPair
    from controlplane.store.election import Leader
    from nsml.client.channel import Channel

PROBE_WITHIN_S: Final = 0.5
"""How long a host may take to accept or refuse a connection; a timeout is a result, too."""

_OPTIONS: Final = (
    # A disconnected control plane returns soon, or another one leads.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    # A stopped process blocks no call for much longer than its lease.
    *HASTY,
)


class Peers(Protocol):
    """Connections of this control plane to the others."""

    def channel(self, address: str, *, is_tls: bool) -> Channel:
        """Return the channel to a control plane; the same one each time.

        Raises:
            Unavailable: it has no listener reachable from here.
        """
        ...

    async def attend(self, leader: Leader, met: Callable[[], None]) -> None:
        """Hold a connection to a leader's process; return when it has ended, or cannot be made.

        `met` is called when this process surely answers at the address.
        """
        ...

    async def refuses(self, address: str) -> bool:
        """Return whether the host of an address refuses connections to it; a timeout is no refusal."""
        ...

    async def close(self) -> None:
        """Close all channels."""
        ...


def process_name(process: str) -> str:
    """Return the health service that shows that a process runs."""
    return f"nsml.process.{process}"


class Alone:
    """No connections to other control planes."""

    def channel(self, address: str, *, is_tls: bool) -> Channel:
        """See `Peers`."""
        del is_tls
        raise _out_of_reach(address)

    async def attend(self, leader: Leader, met: Callable[[], None]) -> None:
        """See `Peers`."""
        del leader, met
        await asyncio.Event().wait()

    async def refuses(self, address: str) -> bool:
        """See `Peers`."""
        del address
        return False

    async def close(self) -> None:
        """See `Peers`."""


class SocketPeers:
    """Connections over sockets.

    Args:
        member: our name, in our certificate.
    """

    def __init__(self, authority: Authority, member: str) -> None:
        self._authority = authority
        self._member = member
        self._pair: KeyPair | None = None
        self._channels: dict[tuple[str, bool], grpc.aio.Channel] = {}
        self._retired: list[grpc.aio.Channel] = []

    def channel(self, address: str, *, is_tls: bool) -> Channel:
        """See `Peers`."""
        if self._pair is not None and self._authority.needs_renewal(self._pair):
            # Open calls continue over the old connections.
            self._retired += self._channels.values()
            self._channels, self._pair = {}, None
        key = (address, is_tls)
        if key not in self._channels:
            self._channels[key] = self._connected(address) if is_tls else _plain(address)
        return self._channels[key]

    async def attend(self, leader: Leader, met: Callable[[], None]) -> None:
        """See `Peers`."""
        try:
            channel = self.channel(leader.address, is_tls=leader.is_tls)
        except Unavailable:
            return
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=process_name(leader.process))
        call = stub.Watch(request)
        try:
            async for answer in call:
                if answer.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
                    return  # another process answers there
                met()
        except grpc.aio.AioRpcError:
            return
        finally:
            call.cancel()

    async def refuses(self, address: str) -> bool:
        """See `Peers`."""
        try:
            async with asyncio.timeout(PROBE_WITHIN_S):
                return await _all_refuse(address)
        except (TimeoutError, OSError, ListenRefused):
            return False

    async def close(self) -> None:
        """See `Peers`."""
        channels = (*self._retired, *self._channels.values())
        self._retired, self._channels = [], {}
        for channel in channels:
            await channel.close(None)

    def _connected(self, address: str) -> grpc.aio.Channel:
        if self._pair is None:
            self._pair = self._authority.issue_peer(self._member)
        credentials = grpc.ssl_channel_credentials(
            self._authority.pem, self._pair.key, self._pair.chain
        )
        named = ("grpc.ssl_target_name_override", SERVER_NAME)
        return grpc.aio.secure_channel(address, credentials, options=(*_OPTIONS, named))


def _out_of_reach(address: str) -> Unavailable:
    return Unavailable(
        f"there is no way from here to the control plane at {address or 'no address'}",
        why="it has no listener with mutual TLS for other machines",
        attempt="listen_agents in its settings",
    )


def _plain(address: str) -> grpc.aio.Channel:
    try:
        is_here = parse_address(address).is_private
    except ListenRefused:
        is_here = False
    if not is_here:
        raise _out_of_reach(address)
    return grpc.aio.insecure_channel(address, options=_OPTIONS)


async def _all_refuse(address: str) -> bool:
    where = parse_address(address)
    if where.path:
        return await _refuses(socket.AF_UNIX, where.path)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
    answers = [await _refuses(family, sockaddr) for family, *_, sockaddr in found]
    return bool(answers) and all(answers)


async def _refuses(family: int, sockaddr: Any) -> bool:
    with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.settimeout(0)
        try:
            await asyncio.get_running_loop().sock_connect(probe, sockaddr)
        except ConnectionRefusedError:
            return True
    return False
