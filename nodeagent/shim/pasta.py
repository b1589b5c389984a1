"""A network of its own for a program of an agent without root: a namespace, and pasta, which forwards its traffic.

Standard library only: it runs in the shim. In order, with the process of each:

```
shim   enter()    forks the process of pasta, which stays in the machine's network; creates and
                  enters a user and a network namespace
pasta             creates `eth0` there with an address and a route
shim   furnish()  waits for that, and closes addresses; only then a program may run
shim   end()      ends pasta, with the program's last process
```

The program is in a user namespace below that one, and has no rights in this. Nothing is forwarded to it or to
the machine's loopback: pasta opens sockets, as the agent's user, for outgoing traffic.

An address is closed by a route of the type `local` at `eth0`. One of the type `unreachable` would not do:
a socket bound to an interface (SO_BINDTODEVICE, which needs no rights) bypasses it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import struct
import sys
import time

from nodeagent.shim import namespaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, TypedDict

    class PastaNetwork(TypedDict):
        """Description of such a network for a shim.

        argv: pasta's, without the pid of the namespace's process. interface: created by pasta.
        closed: addresses not reachable from there, with their prefix length.
        """

        argv: list[str]
        interface: str
        closed: list[tuple[str, int]]


_READY_WITHIN_S = 10.0
_ENDED_WITHIN_S = 1.0
_DEFAULTED = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
_ANYWHERE = ("192.0.2.1", 9)
"""Nothing is sent there: it only tests whether the kernel has a route."""

_RTMGRP_IPV4_ROUTE = 0x40
_RTM_NEWROUTE = 24
_REQUEST, _ACK, _EXCL, _CREATE = 1, 4, 0x200, 0x400
_ERROR = 2
_TABLE_LOCAL, _PROTOCOL_STATIC, _SCOPE_HOST, _TYPE_LOCAL = 255, 4, 254, 2
_RTA_DST, _RTA_OIF = 1, 4
_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=8BI")


class Pasta:
    """The network of one program. All methods raise OSError."""

    def __init__(self, wanted: PastaNetwork) -> None:
        self.pid = 0
        self._wanted = wanted
        self._words = -1

    def enter(self) -> None:
        """Move the calling single-threaded process into a network of its own."""
        go, tell = os.pipe2(os.O_CLOEXEC)
        # non-blocking: pasta would wait for its reader
        self._words, words = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            shim = os.getpid()
            self.pid = os.fork()
            if self.pid == 0:
                os.close(tell)
                self._become_pasta(shim, go, words)
            namespaces.own_network()
            self._routes = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0
            )
            namespaces.set_up("lo")
            self._routes = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0
            )
            self._routes.bind((0, _RTMGRP_IPV4_ROUTE))
            os.write(tell, b"!")
        finally:
            for descriptor in (go, tell, words):
                os.close(descriptor)

    def furnish(self) -> None:
        """Return when the namespace reaches all that it should, and nothing else."""
        poll = select.poll()
        pidfd = os.pidfd_open(self.pid)
        try:
            with self._routes as routes:
                poll.register(routes, select.POLLIN)
                poll.register(pidfd, select.POLLIN)
                until = time.monotonic() + _READY_WITHIN_S
                while not _has_route():
                    left_s = until - time.monotonic()
                    if left_s <= 0:
                        raise OSError(errno.ETIMEDOUT, "pasta makes no network: it takes too long")
                    for descriptor, _ in poll.poll(1000 * left_s):
                        if descriptor == pidfd:
                            raise OSError(errno.ENETDOWN, f"pasta makes no network: {self._said()}")
                        routes.recv(1 << 16)
            _close(self._wanted["closed"], socket.if_nametoindex(self._wanted["interface"]))
            with contextlib.suppress(OSError):
                _write("/proc/sys/net/ipv4/ping_group_range", f"{os.getegid()} {os.getegid()}")
        finally:
            os.close(pidfd)
            self._hear_no_more()

    def end(self) -> None:
        """End pasta, if it runs; the caller reaps it."""
        self._hear_no_more()
        if not self.pid:
            return
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(self.pid)
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                poll = select.poll()
                poll.register(pidfd, select.POLLIN)
                poll.poll(1000 * _ENDED_WITHIN_S)
            finally:
                os.close(pidfd)

    def reaped(self, pid: int) -> bool:
        """Record the end of a child; return whether it was pasta."""
        if not self.pid or pid != self.pid:
            return False
        self.pid = 0
        return True

    def _hear_no_more(self) -> None:
        if self._words >= 0:
            os.close(self._words)
            self._words = -1

    def _said(self) -> str:
        """Return why it ended, in its own words."""
        try:
            text = os.read(self._words, 4096).decode(errors="replace")
        except OSError:
            text = ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else "it ended"

    def _become_pasta(self, shim: int, go: int, words: int) -> NoReturn:
        """In the child: wait for the namespaces, and execute pasta."""
        try:
            namespaces.prctl(namespaces.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != shim or os.read(go, 1) != b"!":
                os._exit(1)
            os.setpgid(0, 0)
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1):
                os.dup2(nothing, stream)
            os.dup2(words, 2)
            for number in _DEFAULTED:
                signal.signal(number, signal.SIG_DFL)  # some versions fail with SIGPIPE ignored
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.chdir("/")
            argv = [*self._wanted["argv"], str(shim)]
            os.execve(argv[0], argv, {})  # noqa: S606
        except BaseException as error:  # noqa: BLE001 - a forked child must not return to its caller
            os.write(words, str(error).encode())
        os._exit(1)


def _has_route() -> bool:
    """Whether the kernel has a route to the outside."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        try:
            end.connect(_ANYWHERE)
        except OSError:
            return False
    return True


def _close(networks: list[tuple[str, int]], interface: int) -> None:
    """Make addresses local to this namespace."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as kernel:
        kernel.bind((0, 0))
        for number, (address, length) in enumerate(networks):
            body = _ROUTE.pack(
                socket.AF_INET, length, 0, 0, _TABLE_LOCAL, _PROTOCOL_STATIC, _SCOPE_HOST, _TYPE_LOCAL, 0
            )  # fmt: skip
            body += struct.pack("=HH4s", 8, _RTA_DST, socket.inet_aton(address))
            body += struct.pack("=HHI", 8, _RTA_OIF, interface)
            flags = _REQUEST | _ACK | _CREATE | _EXCL
            kernel.send(
                _HEADER.pack(_HEADER.size + len(body), _RTM_NEWROUTE, flags, number, 0) + body
            )
            answer = kernel.recv(1 << 16)
            (code,) = struct.unpack_from("=i", answer, _HEADER.size)
            if code and -code != errno.EEXIST:
                raise OSError(-code, f"close {address}/{length}: {os.strerror(-code)}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def main() -> NoReturn:
    """Try such a network: the arguments after the first two are its description, an address and a port.

    A process isolated like programs connects there. Prints why that fails; nothing: it works.
    """
    import json

    wanted, host, port = json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    network = Pasta(wanted)
    child = 0
    try:
        network.enter()
        network.furnish()
        child = namespaces.fork(with_pid=False)
        if child == 0:
            _try_to_connect(host, port)
        _, status = os.waitpid(child, 0)
        if status:
            print("nothing outside is reached through pasta", flush=True)
    except OSError as error:
        print(error.strerror or error, flush=True)
    network.end()
    os._exit(0)


def _try_to_connect(host: str, port: int) -> NoReturn:
    code = 1
    try:
        namespaces.settle(is_required=False)
        namespaces.drop_privileges()
        socket.create_connection((host, port), 3.0).close()
        code = 0
    finally:
        os._exit(code)
