"""Forks shims on request, so that starting one costs a fork and not an interpreter.

Common data is created here once, before the first: a page of memory that a shim writes to
costs it a copy.

One small, single-threaded process with all that `shim.py` imports, started by the process runtime.
It reads one folder per message from the socket in its last argument, with a descriptor
for the shim's standard input and perhaps one of its program's network, and answers `b"ok <pid>"` with a pidfd of the new shim, or
`b"error <reason>"`. A forked shim is a session leader
of its own with nothing of the zygote open, as if started directly; it outlives
both the zygote and the agent. The zygote ends when the agent closes its end of the socket.

Between requests it keeps a spare shim, which waits for its folder: a forked process copies each page of memory
when it first writes to it, and the spare has done so for most. It has no data of a session, and ends with
the zygote. Without a spare, as for many requests at once, the shim is forked on request.
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
    from collections.abc import Callable
    from typing import NoReturn

_MAX_MESSAGE = 8192
_QUIET_MS = 10
"""Delay without requests before a spare is forked: sooner it would delay the last start."""


def main() -> NoReturn:
    """Serve the socket inherited as the descriptor named by the last argument."""
    # shims inherit this: an order that arrives before they are ready waits for them
    signal.pthread_sigmask(signal.SIG_BLOCK, forked.WATCHED)
    namespaces.prctl(namespaces.PR_SET_NAME, b"nsml-zygote")
    with contextlib.suppress(OSError):  # a shim that needs it reports the error
        seccomp.assemble()
    gc.disable()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[-1])))
    os._exit(0)


class _Shims:
    """The shims that this process forked and has not reaped, by pidfd."""

    def __init__(self, poll: select.poll) -> None:
        self._poll = poll
        self._pids: dict[int, int] = {}

    def add(self, pid: int) -> int:
        """Watch its end; return its pidfd. Raises OSError."""
        pidfd = os.pidfd_open(pid)
        self._pids[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        return pidfd

    def reap(self, pidfd: int) -> bool:
        """Reap an ended one; False if `pidfd` is none of them."""
        if pidfd not in self._pids:
            return False
        os.waitpid(self._pids.pop(pidfd), 0)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        return True


class _Spare:
    """A shim forked in advance. It ends when this process does.

    Raises OSError if it cannot be forked.
    """

    def __init__(self, shims: _Shims) -> None:
        self._end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self.pid = _fork(lambda: _wait_for_folder(theirs))
                self.pidfd = shims.add(self.pid)
            except OSError:
                self._end.close()  # which ends it
                raise

    def takes(self, folder: bytes, given: list[int]) -> bool:
        """Have it run a folder, once; False if it has died."""
        with self._end:
            try:
                socket.send_fds(self._end, [folder], given)
            except OSError:
                return False
        return True


def serve(requests: socket.socket) -> None:
    """Answer requests until the other end is closed."""
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    shims = _Shims(poll)
    spare: _Spare | None = None
    wants_spare = True
    while True:
        ready = poll.poll(_QUIET_MS if wants_spare else None)
        if not ready:
            # tried once after each request, even if it fails
            wants_spare = False
            with contextlib.suppress(OSError):
                spare = _Spare(shims)
        for descriptor, _ in ready:
            if shims.reap(descriptor):
                continue
            folder, given, _, _ = socket.recv_fds(requests, _MAX_MESSAGE, 2)
            if not folder:
                return
            try:
                if spare is not None and spare.takes(folder, given):
                    pid, pidfd = spare.pid, spare.pidfd
                else:
                    pid = _fork(lambda folder=folder, given=given: _be_shim(folder, given))  # type: ignore[misc]
                    pidfd = shims.add(pid)
            except OSError as error:
                _answer(requests, f"error {error}".encode(), [])
                continue
            finally:
                spare, wants_spare = None, True
                for one in given:
                    os.close(one)
            _answer(requests, b"ok %d" % pid, [pidfd])


def _answer(requests: socket.socket, message: bytes, descriptors: list[int]) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the agent died: we end next
        socket.send_fds(requests, [message], descriptors)


def _fork(work: Callable[[], NoReturn]) -> int:
    """Fork a session leader that runs `work`; return its pid. Raises OSError."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        work()
    finally:
        os._exit(1)


def _wait_for_folder(end: socket.socket) -> NoReturn:
    namespaces.close_all_but(0, 1, 2, end.fileno())
    namespaces.prctl(namespaces.PR_SET_NAME, b"nsml-spare")
    # until it is a shim, signals are no orders
    signal.pthread_sigmask(signal.SIG_UNBLOCK, forked.WATCHED)
    shim.rehearse()
    folder, given, _, _ = socket.recv_fds(end, _MAX_MESSAGE, 2)
    if not folder:
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_BLOCK, forked.WATCHED)
    _be_shim(folder, given)


def _be_shim(folder: bytes, given: list[int]) -> NoReturn:
    for one in given[:1]:
        os.dup2(one, 0)
    network = given[1] if len(given) > 1 else None
    namespaces.close_all_but(0, 1, 2, *given[1:])
    shim.run(os.fsdecode(folder), network)
