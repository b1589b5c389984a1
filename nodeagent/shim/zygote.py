"""Forks shims on request, so that starting one costs a fork and not an interpreter.

What is the same for all of them is made here once, before the first: a page of memory that a shim writes to
costs it a copy.

One small, single-threaded process with all that `shim.py` imports, started by the process runtime.
It reads one folder per message from the socket whose number is its last argument, with a descriptor
that becomes the shim's standard input and perhaps one of its program's network, and answers `b"ok <pid>"` with a pidfd of the new shim, or
`b"error <reason>"`. A forked shim is a session leader
of its own with nothing of the zygote open, the same as one that was started directly; it outlives
both the zygote and the agent. The zygote ends when the agent closes its end of the socket.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys

from nodeagent.shim import forked, namespaces, seccomp, shim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_MAX_MESSAGE = 8192


def main() -> NoReturn:
    """Serve the socket inherited as the descriptor named by the last argument."""
    # shims inherit this: an order that arrives before they are ready waits for them
    signal.pthread_sigmask(signal.SIG_BLOCK, forked.WATCHED)
    namespaces.prctl(namespaces.PR_SET_NAME, b"nsml-zygote")
    with contextlib.suppress(OSError):  # a shim that needs it says why there is none
        seccomp.assemble()
    gc.disable()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[-1])))
    os._exit(0)


def serve(requests: socket.socket) -> None:
    """Answer requests until the other end is closed."""
    shims: dict[int, int] = {}  # pidfd -> pid
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in shims:
                os.waitpid(shims.pop(descriptor), 0)
                poll.unregister(descriptor)
                os.close(descriptor)
                continue
            folder, given, _, _ = socket.recv_fds(requests, _MAX_MESSAGE, 2)
            if not folder:
                return
            try:
                pid = _fork_shim(os.fsdecode(folder), given)
                pidfd = os.pidfd_open(pid)
            except OSError as error:
                _answer(requests, f"error {error}".encode(), [])
                continue
            finally:
                for one in given:
                    os.close(one)
            shims[pidfd] = pid
            poll.register(pidfd, select.POLLIN)
            _answer(requests, b"ok %d" % pid, [pidfd])


def _answer(requests: socket.socket, message: bytes, descriptors: list[int]) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the agent died: we end next
        socket.send_fds(requests, [message], descriptors)


def _fork_shim(folder: str, given: list[int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for one in given[:1]:
            os.dup2(one, 0)
        network = given[1] if len(given) > 1 else None
        forked.close_all_but(0, 1, 2, *given[1:])
        shim.run(folder, network)
    finally:
        os._exit(1)
