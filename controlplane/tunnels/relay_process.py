"""The relay of this control plane: its process, which is started again when it dies, and what it is told."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.relay.orders import Expect, Forget, encode
from controlplane.state.agent_connections import RelayEnd
from nsml.common.tunnel_keys import KEY_BYTES

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from nsml.common.clock import Clock

_RESTARTED_AFTER_S: Final = 0.5
_STOPPED_WITHIN_S: Final = 2.0
_BACKLOG: Final = 512
_INHERITED: Final = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "TEST_RUN_FOLDER")
"""Of our environment, which may have keys of stores."""

_log = structlog.get_logger()


class RelayProcess:
    """Serves tunnels at `address`, where clients and agents reach `listener`, while `run` runs.

    Connections that come while it is started again wait in the listener, which stays ours.
    """

    def __init__(
        self,
        listener: socket.socket,
        address: str,
        *,
        random_bytes: Callable[[int], bytes],
        clock: Clock,
    ) -> None:
        self._listener = listener
        self._address = address
        self._random_bytes = random_bytes
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Process id while it runs, else 0."""
        return self._process.pid if self._process is not None else 0

    def expect(self, tunnel_id: str, user: str) -> tuple[RelayEnd, RelayEnd] | None:
        """The ways of a client and of an agent who are to meet there; None while it does not run."""
        if self._process is None:
            return None
        keys = self._random_bytes(KEY_BYTES), self._random_bytes(KEY_BYTES)
        self._tell(Expect(tunnel_id=tunnel_id, user=user, keys=keys))
        client, agent = (RelayEnd(address=self._address, key=key) for key in keys)
        return client, agent

    def forget(self, tunnel_id: str) -> None:
        """The tunnel is over: what still passes is broken off soon."""
        self._tell(Forget(tunnel_id=tunnel_id))

    async def run(self) -> None:
        """Until cancelled."""
        self._listener.listen(_BACKLOG)
        try:
            while True:
                try:
                    await self._live()
                except OSError as error:
                    _log.error("relay.not_started", error=str(error))
                await self._clock.sleep(_RESTARTED_AFTER_S)
        finally:
            self._listener.close()

    async def _live(self) -> None:
        """One process, from its start to its end. Raises OSError."""
        process = self._process = await self._started()
        try:
            _log.error("relay.died", code=await process.wait())
        finally:
            self._process = None
            await _stop(process)

    async def _started(self) -> asyncio.subprocess.Process:
        descriptor = self._listener.fileno()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "controlplane.relay.main", str(descriptor)),
            stdin=asyncio.subprocess.PIPE,
            env={name: os.environ[name] for name in _INHERITED if name in os.environ},
            pass_fds=[descriptor],
            process_group=0,
        )
        _log.info("relay.started", pid=process.pid, address=self._address)
        return process

    def _tell(self, order: Expect | Forget) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(encode(order))


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Have it end, if it has not."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(_STOPPED_WITHIN_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
