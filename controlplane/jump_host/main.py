"""The program of a jump host: `python -m controlplane.jump_host.main DESCRIPTOR` serves the inherited socket.

The first line of its standard input has the control plane's address, and its host key: a JSON object. It ends
with that input, so no jump host outlives its control plane.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import asyncssh
import structlog

from controlplane.jump_host.server import JumpHost
from nsml.client.connect import check_listener, open_channel
from nsml.client.contexts import Context
from nsml.client.endpoints import Endpoints
from nsml.common.concurrency import TaskGroup
from nsml.common.confinement import confine

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = structlog.get_logger()

_NICENESS: Final = 5
"""Lower priority than the control plane: decisions precede users' copies."""


async def _run(listener: socket.socket, order: Mapping[str, Any]) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), _read, ended)
    context = Context(name="jump host", server=order["server"])
    ways = Endpoints(
        lambda server: open_channel(context, server),
        context.servers,
        lambda server: check_listener(context, server),
    )
    async with TaskGroup() as group:
        jump_host = JumpHost(ways, order["secret"], group)
        options = jump_host.options(bytes.fromhex(order["host_key"]))
        async with asyncssh.listen(sock=listener, **options):
            await ended.wait()
        os._exit(0)  # open connections end with the control plane


def _read(ended: asyncio.Event) -> None:
    """After the first line only the end of the input follows."""
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        ended.set()


def main() -> None:
    """Run it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the control plane handles it
    # asyncio warns of each packet to a client that has left: strangers could cause thousands of lines
    logging.disable(logging.WARNING)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # a unit may forbid it
        os.nice(_NICENESS)
    with suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    order = json.loads(sys.stdin.buffer.readline())
    try:
        confine()
    except OSError as error:
        _log.warning("jump_host.not_confined", why=str(error))
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        listener.settimeout(0)
        asyncio.run(_run(listener, order))


if __name__ == "__main__":
    main()
