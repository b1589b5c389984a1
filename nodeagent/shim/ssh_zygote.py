"""Forks stand-ins for visitors that become ssh servers, with all imports done.

Its arguments are a JSON list of folders to import from, and a descriptor of a socket of the agent, which
starts it for the first connection (`runtimes/ssh_zygote.py`). Each message carries one end of a socket pair for
a stand-in, which has nothing else open (`visitor.py`): the agent sends the other end to a visitor. So nothing
of a session ever arrives here, and a new fork has nothing of the one before.

It ends when the agent closes its end, or after `IDLE_S` without a connection. Its forks continue.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys

from nodeagent.shim import client_program, namespaces, seccomp, visitor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

IDLE_S = 600.0
_NAME = b"nsml-ssh-zygote"


def main() -> NoReturn:
    """Serve the socket inherited as the descriptor named by the last argument."""
    path, number = sys.argv[-2:]
    namespaces.prctl(namespaces.PR_SET_NAME, _NAME)
    visitor.ssh_server(json.loads(path))
    with contextlib.suppress(OSError):  # a stand-in that needs it reports the error
        seccomp.assemble()
    # their exit status is not used
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.disable()
    gc.freeze()
    serve(socket.socket(fileno=int(number)))
    os._exit(0)


def serve(requests: socket.socket) -> None:
    """Fork one for each request, until the other end is closed or long silent."""
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while poll.poll(IDLE_S * 1000):
        message, given, _, _ = socket.recv_fds(requests, 1, 1)
        if not message:
            return
        for channel in given:
            with contextlib.suppress(OSError):  # its visitor manages without
                _fork(channel)
            os.close(channel)


def _fork(channel: int) -> None:
    if os.fork():
        return
    try:
        namespaces.close_all_but(*range(client_program.STREAMS), channel)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        namespaces.prctl(namespaces.PR_SET_NAME, b"nsml-visitor")
        visitor.stand_in(socket.socket(fileno=channel))
    finally:
        os._exit(client_program.FAILED_CODE)
