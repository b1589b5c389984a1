"""The two calls of a tunnel: its bytes pass through them, or bypass them, by the relay or on one machine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from controlplane.access.current import refused_by_now
from controlplane.tunnels.frames import LEAVES_WITHIN_S, Passed, passing
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from controlplane.tunnels.frames import Frame
    from controlplane.tunnels.pacing import Pacing
    from controlplane.tunnels.tunnels import Tunnel

LOOKS_EVERY_S: Final = 2.0
"""Interval of checks of a caller's rights while no bytes pass."""


def direct_way(tunnel: Tunnel) -> pb.DirectWay | None:
    """Return the client's direct way to the agent, None if bytes pass here."""
    if not tunnel.is_elsewhere:
        return None
    way = pb.DirectWay(socket=tunnel.direct_socket, key=tunnel.direct_key)
    if tunnel.relay is not None:
        way.relay.address, way.relay.key = tunnel.relay.address, tunnel.relay.key
        way.relay.certificate = tunnel.relay_certificate
    return way


def client_end(
    tunnel: Tunnel, frames: AsyncIterator[Frame], pacing: Pacing
) -> AsyncGenerator[Passed, None]:
    """Return the responses of the client's call. Raises NsmlError."""
    if tunnel.is_elsewhere:
        return _open_meanwhile(tunnel)
    return passing(frames, into=tunnel.down, out=tunnel.up, pacing=pacing)


def agent_end(
    tunnel: Tunnel, frames: AsyncIterator[Frame], pacing: Pacing
) -> AsyncGenerator[Passed, None]:
    """Return the responses of the agent's call. Raises NsmlError."""
    if tunnel.is_elsewhere:
        return _open_meanwhile(tunnel)
    return passing(
        frames, into=tunnel.up, out=tunnel.down, pacing=pacing, leaves_within_s=LEAVES_WITHIN_S
    )


async def _open_meanwhile(tunnel: Tunnel) -> AsyncGenerator[Passed, None]:
    """Keep the call open until either ends or its caller loses access, which the interceptor reports at the last message."""
    while not tunnel.is_left.is_set():
        try:
            async with asyncio.timeout(LOOKS_EVERY_S):
                await tunnel.is_left.wait()
        except TimeoutError:
            if await refused_by_now() is not None:
                break
    yield Passed(gone=True)
