"""Forks stand-ins for visitors that are to become ssh servers, with all imported that those need.

Its arguments are a JSON list of the folders where that is found, and the number of a socket of the agent's, which
starts it for the first connection (`runtimes/ssh_zygote.py`). With each message comes the end of a pair that becomes
the stand-in's, which has nothing else open (`visitor.py`): the agent gives the other end to a visitor. So of all that
is of a session nothing ever comes here, and what is forked next has nothing of the one before.

It ends when the agent closes its end, and when nobody has connected for `IDLE_S`. What it has forked goes on.
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
    with contextlib.suppress(OSError):  # a stand-in that needs it says why there is none
        seccomp.assemble()
    # nobody asks how they ended
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.disable()
    gc.freeze()
    serve(socket.socket(fileno=int(number)))
    os._exit(0)


def serve(requests: socket.socket) -> None:
    """Fork one for each request, until the other end is closed or silent for long."""
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while poll.poll(IDLE_S * 1000):
        message, given, _, _ = socket.recv_fds(requests, 1, 1)
        if not message:
            return
        for channel in given:
            with contextlib.suppress(OSError):  # its visitor does without
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
