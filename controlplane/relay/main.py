"""The program of a relay: `python -m controlplane.relay.main DESCRIPTOR` serves the inherited listening socket.

It reads orders from its standard input, and ends with that: no relay outlives its control plane.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress

import structlog

from controlplane.relay.orders import Expect, Forget, decode
from controlplane.relay.server import RelayServer
from nsml.common.confinement import confine

_log = structlog.get_logger()

_READ_BYTES = 64 << 10
_NICENESS = 5
"""Lower priority than the control plane, if the kernel has both in one group: decisions precede users' output."""


class _Orders:
    """The lines of a non-blocking descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._part = b""
        self.ended = asyncio.Event()

    def come(self) -> Iterator[Expect | Forget]:
        """Return the orders that have arrived."""
        while not self.ended.is_set():
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self.ended.set()
            *lines, self._part = (self._part + data).split(b"\n")
            yield from map(decode, lines)


async def _run(listener: socket.socket, descriptor: int) -> None:
    orders = _Orders(descriptor)
    server = RelayServer(listener, orders.come)
    loop = asyncio.get_running_loop()

    def obey() -> None:
        server.obey_all()
        if orders.ended.is_set():
            loop.remove_reader(descriptor)

    loop.add_reader(descriptor, obey)
    serving = asyncio.create_task(server.run())
    ending = asyncio.create_task(orders.ended.wait())
    await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if serving.done():
        serving.result()
    serving.cancel()
    await asyncio.wait([serving])


def main() -> None:
    """Run it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the control plane handles it
    with suppress(OSError):  # a unit may forbid it
        os.nice(_NICENESS)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        confine()
    except OSError as error:
        _log.warning("relay.not_confined", why=str(error))
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        listener.settimeout(0)
        orders = sys.stdin.fileno()
        os.set_blocking(orders, False)
        asyncio.run(_run(listener, orders))


if __name__ == "__main__":
    main()
