"""Tunnels through a relay: connect a client and an agent on different machines, past the control plane.

Each end proves to the relay that it has a key. Then they speak TLS with each other, with the agent as the server, and
inside it the protocol of `nsml.client.direct_tunnels`: the relay sees only encrypted data.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final

from nsml.client.contexts import split_server
from nsml.client.direct_tunnels import DirectCall, LoopConnection, proven
from nsml.client.tls_connections import TlsConnection, client_of
from nsml.common.resolving import addresses_of
from nsml.common.tunnel_keys import NotProven, prove_on

if TYPE_CHECKING:
    from nsml.v1 import sessions_pb2 as pb

_MET_WITHIN_S: Final = 5.0
_CONNECTED_WITHIN_S: Final = 1.0
"""Short, since there is a fallback: a firewall that drops packets must not cause a long delay."""


async def at_relay(way: pb.RelayWay) -> LoopConnection:
    """Connect to the other end through a relay, and prove to the relay that we have the key.

    Raises:
        OSError, ValueError: the relay is unreachable.
        NotProven: it has no such key.
    """
    dialled = await _dialled(*split_server(way.address))
    try:
        dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await prove_on(dialled, way.key)
    except (OSError, EOFError) as error:
        dialled.close()
        raise NotProven from error
    except BaseException:
        dialled.close()
        raise
    return LoopConnection(dialled)


async def _dialled(host: str, port: int) -> socket.socket:
    failure = OSError(f"{host} has no address")
    for address in await asyncio.to_thread(addresses_of, host, port):
        made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        made.settimeout(0)
        try:
            async with asyncio.timeout(_CONNECTED_WITHIN_S):
                await asyncio.get_running_loop().sock_connect(made, (address, port))
        except OSError as error:  # TimeoutError is one
            made.close()
            failure = error
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise failure


async def met(way: pb.DirectWay) -> tuple[DirectCall, TlsConnection] | None:
    """Open the client's end of a tunnel through a relay; None if that fails."""
    try:
        async with asyncio.timeout(_MET_WITHIN_S):
            connection = await at_relay(way.relay)
            try:
                context = client_of(way.relay.certificate)
                secured = TlsConnection(connection, context, is_server=False)
                await secured.handshake()
                return await proven(secured, way.key), secured
            except BaseException:
                connection.close()
                raise
    except (OSError, EOFError, ValueError, NotProven):
        return None
