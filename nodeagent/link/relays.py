"""Connects the agent to clients on other machines through a relay, since nodes accept no connections."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cached_property

import structlog

from nodeagent.link.own_certificate import make_own_certificate
from nsml.client.direct_tunnels import DirectCall, LoopConnection, Reader
from nsml.client.relayed_tunnels import at_relay
from nsml.client.tls_connections import TlsConnection
from nsml.common.clock import Clock
from nsml.common.tunnel_keys import NotProven, check
from nsml.v1 import agents_pb2 as pb

_THERE_WITHIN_S = 4.0
"""The control plane waits 10 seconds for the first message, which is sent after it."""
_COMES_WITHIN_S = 10.0
_AVOIDED_FOR_S = 60.0
"""How long an unreachable relay is not tried again: each try delays a tunnel."""

log = structlog.get_logger()


class NotMet(Exception):
    """The client did not come to the relay, or is not the announced one."""


class AtRelay:
    """An expected client, over a connection to the relay."""

    def __init__(self, connection: LoopConnection, context: ssl.SSLContext, key: bytes) -> None:
        self._connection = connection
        self._context = context
        self._key = key

    async def client(self) -> tuple[DirectCall, Callable[[], Awaitable[None]]]:
        """Return the call with the client, admitted, and a function that closes it. Raises NotMet, ClientError."""
        try:
            async with asyncio.timeout(_COMES_WITHIN_S):
                secured = TlsConnection(self._connection, self._context, is_server=True)
                await secured.handshake()
                reader = Reader(secured)
                await check(reader.exactly, secured.send, lambda _: self._key)
        except (OSError, EOFError, NotProven) as error:
            raise NotMet(type(error).__name__) from error
        call = DirectCall(secured, reader)
        await call.admit()
        return call, self._close

    async def _close(self) -> None:
        self._connection.close()


class Relays:
    """Relay connections of one agent."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._avoided: dict[str, float] = {}
        """End of avoidance by address, by the monotonic clock, in seconds."""

    @property
    def certificate(self) -> bytes:
        """This agent's certificate for clients at a relay (DER)."""
        return self._identity[0]

    @asynccontextmanager
    async def at(self, order: pb.OpenTunnel) -> AsyncIterator[AtRelay | None]:
        """Connect to the relay of an order while the context lasts; None: it is unreachable."""
        address = order.relay.address
        if self._clock.monotonic() < self._avoided.get(address, 0.0):
            yield None
            return
        try:
            async with asyncio.timeout(_THERE_WITHIN_S):
                connection = await at_relay(order.relay)
        except NotProven:  # another relay by now
            yield None
            return
        except (OSError, ValueError) as error:
            log.info("relay.out_of_reach", address=address, error=str(error))
            self._avoided = {address: self._clock.monotonic() + _AVOIDED_FOR_S}
            yield None
            return
        try:
            yield AtRelay(connection, self._identity[1], order.direct_key)
        finally:
            connection.close()

    @cached_property
    def _identity(self) -> tuple[bytes, ssl.SSLContext]:
        """A key of this process alone, and its certificate."""
        return _made_identity()


def _made_identity() -> tuple[bytes, ssl.SSLContext]:
    own = make_own_certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no client resumes
    with tempfile.NamedTemporaryFile(prefix="nsml-relay-") as file:  # only its owner can read it
        file.write(own.key + own.certificate)
        file.flush()
        context.load_cert_chain(file.name)
    return own.der, context
