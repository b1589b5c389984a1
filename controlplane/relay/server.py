"""Authenticates connections to a relay, and joins the two ends of each tunnel."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from controlplane.relay.fair_queue import FairQueue
from controlplane.relay.orders import Expect, Forget
from controlplane.relay.splice import PIECE_BYTES, Splice
from nsml.common.concurrency import TaskGroup
from nsml.common.tunnel_keys import NotProven, check_on, id_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

PROVEN_WITHIN_S: Final = 5.0
MOST_UNPROVEN: Final = 512
MOST_UNPROVEN_OF_ADDRESS: Final = 128
"""Limits of unauthenticated connections: in total, and of one address."""
LINGER_S: Final = 1.0
"""Time for the last bytes of an ended tunnel."""
_PAUSE_S: Final = 0.1
"""Pause if no connection can be accepted, such as for lack of descriptors."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Tunnel:
    """A tunnel with two expected ends; `first` is the one that waits for the other."""

    user: str
    names: tuple[bytes, ...]
    """Ids of its keys."""
    first: socket.socket | None = None
    splice: Splice | None = None

    def close(self) -> None:
        if self.first is not None:
            self.first.close()
        if self.splice is not None:
            self.splice.close()


class RelayServer:
    """The tunnels of one control plane. `obey` sets the expected ones, `run` serves them.

    Args:
        listener: a non-blocking listening TCP socket.
        orders: returns new orders.
    """

    def __init__(
        self, listener: socket.socket, orders: Callable[[], Iterable[Expect | Forget]] = tuple
    ) -> None:
        self._listener = listener
        self._orders = orders
        self._tunnels: dict[str, _Tunnel] = {}
        self._expected: dict[bytes, tuple[_Tunnel, bytes]] = {}
        self._unproven: Counter[str] = Counter()
        self._buffer = memoryview(bytearray(PIECE_BYTES))
        self._queue = FairQueue(asyncio.get_running_loop().call_soon)

    def obey_all(self) -> None:
        """Apply all new orders."""
        for order in self._orders():
            self.obey(order)

    def obey(self, order: Expect | Forget) -> None:
        """Expect the two ends of a tunnel, or drop the tunnel."""
        match order:
            case Expect():
                names = tuple(map(id_of, order.keys))
                tunnel = self._tunnels[order.tunnel_id] = _Tunnel(user=order.user, names=names)
                for name, key in zip(names, order.keys, strict=True):
                    self._expected[name] = tunnel, key
            case Forget():
                self._forget(order.tunnel_id)

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            async with TaskGroup() as group:
                while True:
                    client, address = await self._accepted()
                    is_full = self._unproven.total() >= MOST_UNPROVEN
                    if is_full or self._unproven[address] >= MOST_UNPROVEN_OF_ADDRESS:
                        client.close()
                        continue
                    self._unproven[address] += 1
                    group.create_task(self._prove(client, address))
        finally:
            for tunnel in self._tunnels.values():
                tunnel.close()

    async def _accepted(self) -> tuple[socket.socket, str]:
        while True:
            try:
                client, address = await asyncio.get_running_loop().sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(_PAUSE_S)
            else:
                return client, str(address[0])

    async def _prove(self, client: socket.socket, address: str) -> None:
        """Authenticate a connection by its key, or close it."""
        try:
            async with asyncio.timeout(PROVEN_WITHIN_S):
                self._let_in(await check_on(client, self._key_of), client)
        except (OSError, EOFError, NotProven, TimeoutError):
            client.close()
        except BaseException:
            client.close()
            raise
        finally:
            self._unproven[address] -= 1
            if not self._unproven[address]:
                del self._unproven[address]

    def _key_of(self, name: bytes) -> bytes | None:
        if name not in self._expected:
            self.obey_all()  # the order was sent before this end connected, but may be unread
        _, key = self._expected.get(name, (None, None))
        return key

    def _let_in(self, name: bytes, client: socket.socket) -> None:
        """Raises NotProven: the key was used already, or the tunnel has ended."""
        tunnel, _ = self._expected.pop(name, (None, None))
        if tunnel is None:
            raise NotProven
        if tunnel.first is None:
            tunnel.first = client
            return
        first, tunnel.first = tunnel.first, None
        tunnel.splice = Splice(
            first,
            client,
            user=tunnel.user,
            queue=self._queue,
            buffer=self._buffer,
            on_end=lambda: setattr(tunnel, "splice", None),
        )

    def _forget(self, tunnel_id: str) -> None:
        tunnel = self._tunnels.pop(tunnel_id, None)
        if tunnel is None:
            return
        for name in tunnel.names:
            self._expected.pop(name, None)
        if tunnel.splice is None:
            tunnel.close()
        else:
            asyncio.get_running_loop().call_later(LINGER_S, tunnel.close)
