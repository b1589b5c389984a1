"""The process of this control plane's relay, and its orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.core.serving_process import ServingProcess
from controlplane.relay.orders import Expect, Forget, encode
from controlplane.state.agent_connections import RelayEnd
from nsml.common.tunnel_keys import KEY_BYTES

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from nsml.common.clock import Clock


class RelayProcess:
    """Serves tunnels while `run` runs; `address` is `listener`'s address for clients and agents."""

    def __init__(
        self,
        listener: socket.socket,
        address: str,
        *,
        random_bytes: Callable[[int], bytes],
        clock: Clock,
    ) -> None:
        self._address = address
        self._random_bytes = random_bytes
        self.process = ServingProcess(
            "controlplane.relay.main", listener, name="relay", address=address, clock=clock
        )

    @property
    def pid(self) -> int:
        """Process id while it runs, else 0."""
        return self.process.pid

    def expect(self, tunnel_id: str, user: str) -> tuple[RelayEnd, RelayEnd] | None:
        """Return the ends of a client and of an agent to be joined there; None while it does not run."""
        if not self.process.pid:
            return None
        keys = self._random_bytes(KEY_BYTES), self._random_bytes(KEY_BYTES)
        self.process.tell(encode(Expect(tunnel_id=tunnel_id, user=user, keys=keys)))
        client, agent = (RelayEnd(address=self._address, key=key) for key in keys)
        return client, agent

    def forget(self, tunnel_id: str) -> None:
        """End the tunnel: bytes still in transit are cut off soon."""
        self.process.tell(encode(Forget(tunnel_id=tunnel_id)))

    async def run(self) -> None:
        """Run until cancelled."""
        await self.process.run()
