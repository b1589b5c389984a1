"""TCP ports on which programs of a session listen, in the session's network.

In a network of the session's own every listener is the session's. In a shared one (the node's, a gang's)
a port is reached only if processes of the session hold every listener on it: the agent may be trusted
by services of the machine that the session must not use.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nodeagent.folders import ReplicaFolder, ReplicaId
from nodeagent.machine.foreign_processes import Replicas, belongs, read_process
from nodeagent.network.netlink import inside
from nodeagent.runtimes.launcher import shim_command
from nodeagent.runtimes.records import read_claim
from nodeagent.runtimes.shims import is_alive

_PROC = Path("/proc")
_BOOT_ID = _PROC / "sys/kernel/random/boot_id"
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_LAST_PORT = 65_535
_LISTENS = "0A"
_VISIT_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class TcpListener:
    """A listening socket of /proc/net/tcp: `address` is where to connect to."""

    family: socket.AddressFamily
    address: str
    inode: int


class NoListener(OSError):
    """No program of the session listens on the port."""


def port_of(service: str) -> int | None:
    """Return the TCP port in a service's name; None for the name of a Unix socket."""
    if not _PORT.fullmatch(service) or int(service) > _LAST_PORT:
        return None
    return int(service)


def listener_on(folder: ReplicaFolder, replica_id: ReplicaId, port: int) -> Visit:
    """Find the listener of a replica's program on a port. Blocking.

    Raises:
        NoListener: its processes have none; the message gives the reason, for people.
        OSError: the lookup failed.
    """
    claim = read_claim(folder)
    boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
    if claim is None or not is_alive(claim, boot_id):
        raise NoListener("its program does not run here")
    # Its shim records the program a moment after the start.
    pid = claim.child or _process_of(replica_id, claim.pid) or claim.pid
    found = listeners(port, *(_table(pid, kind) for kind in ("tcp", "tcp6")))
    if not found:
        raise NoListener(f"no program of the session listens on TCP port {port}")
    is_shared = _network_of(pid) == _network_of(os.getpid())
    if is_shared and not _holds_all(found, replica_id, claim.pid):
        raise NoListener(
            f"it shares its node's network, and TCP port {port} there belongs to another program"
        )
    return Visit(pid, found[0], port, is_shared=is_shared)


@dataclass(frozen=True, slots=True)
class Visit:
    """A listener, and a process in its network."""

    pid: int
    listener: TcpListener
    port: int
    is_shared: bool

    def socket(self) -> socket.socket:
        """Return a new unconnected, non-blocking socket in that network. Blocking; raises OSError."""
        family = self.listener.family
        if self.is_shared:
            made = socket.socket(family, socket.SOCK_STREAM)
        else:
            made = _socket_in(self.pid, family)
        made.settimeout(0)
        return made


def listeners(port: int, ipv4: str, ipv6: str) -> Sequence[TcpListener]:
    """Return the listeners on a port, from the texts of /proc/net/tcp and tcp6; IPv4 first."""
    found = []
    for family, table in ((socket.AF_INET, ipv4), (socket.AF_INET6, ipv6)):
        for line in table.splitlines()[1:]:
            fields = line.split()
            address, _, number = fields[1].partition(":")
            if fields[3] == _LISTENS and int(number, 16) == port:
                found.append(TcpListener(family, _reached_at(family, address), int(fields[9])))
    return found


def _reached_at(family: socket.AddressFamily, written: str) -> str:
    """Parse an address of the kernel, in words of the machine's byte order; loopback for any."""
    words = [int(written[at : at + 8], 16) for at in range(0, len(written), 8)]
    if not any(words):
        return "127.0.0.1" if family == socket.AF_INET else "::1"
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))


def _table(pid: int, kind: str) -> str:
    try:
        return (_PROC / str(pid) / "net" / kind).read_text(encoding="ascii")
    except FileNotFoundError:  # a kernel without IPv6
        return ""


def _network_of(pid: int) -> tuple[int, int]:
    facts = (_PROC / str(pid) / "ns/net").stat()
    return facts.st_dev, facts.st_ino


def _process_of(replica_id: ReplicaId, shim: int) -> int | None:
    """Return a process of the replica in another network than ours, or None."""
    own = _network_of(os.getpid())
    for pid in _processes():
        with suppress(OSError):  # gone, or not visible to us
            if _network_of(pid) != own and _is_of(pid, replica_id, shim):
                return pid
    return None


def _processes() -> Iterator[int]:
    return (int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdigit())


def _is_of(pid: int, replica_id: ReplicaId, shim: int) -> bool:
    replicas = Replicas(marks=frozenset({str(replica_id)}), pids=frozenset({shim}))
    return belongs(read_process(_PROC, pid), replicas, _PROC)


def _holds_all(found: Iterable[TcpListener], replica_id: ReplicaId, shim: int) -> bool:
    """Whether each listener is a socket of a process of the replica."""
    wanted = {f"socket:[{one.inode}]" for one in found}
    for pid in _processes():
        held = _sockets_of(f"{_PROC}/{pid}") & wanted
        if held and _is_of(pid, replica_id, shim):
            wanted -= held
        if not wanted:
            break
    return not wanted


def _sockets_of(process: str) -> set[str]:
    found = set()
    with suppress(OSError):  # gone, or not visible to us
        for entry in os.scandir(f"{process}/fd"):
            found.add(str(Path(entry.path).readlink()))
    return found


def _socket_in(pid: int, family: socket.AddressFamily) -> socket.socket:
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return inside(network, lambda: socket.socket(family, socket.SOCK_STREAM))
    except PermissionError:
        return _brought(network, family)  # it is of a user namespace below the agent's
    finally:
        os.close(network)


def _brought(network: int, family: socket.AddressFamily) -> socket.socket:
    """Return a socket made by a single-threaded process: only such can enter a user namespace."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = shim_command(
            "namespace_sockets", str(network), str(theirs.fileno()), str(int(family))
        )
        done = subprocess.run(
            command,
            pass_fds=(network, theirs.fileno()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VISIT_WITHIN_S,
            check=False,
        )
        theirs.close()
        ours.settimeout(0)
        if done.returncode:
            last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise OSError(f"the session's network cannot be entered: {last}")
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        return socket.socket(fileno=descriptors[0])
