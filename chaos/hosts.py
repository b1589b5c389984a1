"""The machines of a tormented platform: namespaces of the network, or the loopback.

Where this machine allows it each host is a network namespace with an address of its own; their cables meet in a bridge in
the namespace of the client, which this process moves into, so that nothing of it is in the machine's
own network and all of it is gone with the last process. A way is cut in one direction by giving the
sender a hardware address of the other that nobody has: what it sends is lost without a word, which is
what a broken network does, and needs neither a firewall nor a module of the kernel.

Without root the same is done in a user namespace, in which this process has the rights of its network and
stays who it is (`with_rights_of_a_network`).
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CLIENT = "client"
"""The host that load and nemesis are on."""

_ENTERED = "NSML_CHAOS_ENTERED"
_CLONE_NEWNET = 0x40000000
_NOBODY = "02:6e:73:00:ff:ff"
_CANARY_PORT = 9
_MADE_WITHIN_S = 5.0
_FLIGHT_S = 0.1
"""How long a datagram may take between two hosts of one machine, with much to spare."""


class Hosts(Protocol):
    """Where parts run, and the ways between them."""

    why_no_cuts: str
    """Why no way can be cut; empty where they can."""

    def address(self, host: str) -> str:
        """Where the others reach it."""
        ...

    def enter(self, host: str) -> tuple[str, ...]:
        """What runs a program there."""
        ...

    def cut(self, source: str, target: str) -> None:
        """Lose what one sends to the other, and nothing else."""
        ...

    def mend(self, source: str, target: str) -> None:
        """Undo that."""
        ...

    def reaches(self, source: str, target: str) -> bool:
        """Whether a datagram arrives: the proof of both."""
        ...

    def close(self) -> None:
        """Nothing of it is left."""
        ...


class Loopback:
    """Every host is an address of the loopback. Nothing can be cut."""

    def __init__(self, names: Sequence[str], *, why: str) -> None:
        net = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
        self._addresses = {name: f"{net}.{number}" for number, name in enumerate(names, start=1)}
        self.why_no_cuts = why

    def address(self, host: str) -> str:
        """An address below 127.0.0.0/8."""
        return self._addresses[host]

    def enter(self, _host: str) -> tuple[str, ...]:
        """Nothing: it is this machine."""
        return ()

    def cut(self, source: str, target: str) -> None:
        """Refused."""
        raise NotImplementedError(f"{source} to {target}: {self.why_no_cuts}")

    def mend(self, source: str, target: str) -> None:
        """Nothing was cut."""

    def reaches(self, _source: str, _target: str) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Nothing was made."""


class Namespaces:
    """A network namespace each. This process is in the client's from then on.

    Raises:
        OSError, subprocess.CalledProcessError: they cannot be made here.
    """

    why_no_cuts = ""

    def __init__(self, names: Sequence[str]) -> None:
        net = f"10.{secrets.randbelow(100) + 100}.{secrets.randbelow(250)}"
        everybody = [CLIENT, *(name for name in names if name != CLIENT)]
        self._number = {name: number for number, name in enumerate(everybody, start=1)}
        self._net = net
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._canaries: dict[str, socket.socket] = {}
        self._hearing = threading.Lock()
        """Held while somebody listens: others at the same ear would take what was for them."""
        _enter_a_network_of_its_own()
        try:
            self._make_hub()
            for name in everybody[1:]:
                self._make(name)
            for name in everybody:
                self._canaries[name] = self._canary(name)
        except BaseException:
            self.close()
            raise

    def address(self, host: str) -> str:
        """Its address on the bridge."""
        return f"{self._net}.{self._number[host]}"

    def enter(self, host: str) -> tuple[str, ...]:
        """Through the namespace of the process that holds it."""
        return () if host == CLIENT else ("nsenter", f"--net={self._namespace(host)}", "--")

    def cut(self, source: str, target: str) -> None:
        """Let the source send to a hardware address that nobody has."""
        self._point(source, target, _NOBODY)

    def mend(self, source: str, target: str) -> None:
        """Let it send to the real one again."""
        self._point(source, target, self._hardware(target))

    def reaches(self, source: str, target: str) -> bool:
        """Whether a datagram from one arrives at the other."""
        with self._hearing:
            return self._hears(source, target)

    def close(self) -> None:
        """End who holds the namespaces: they go with their last process."""
        for canary in self._canaries.values():
            canary.close()
        for holder in self._holders.values():
            holder.kill()
            holder.wait()

    def _hears(self, source: str, target: str) -> bool:
        word = secrets.token_bytes(8)
        ear = self._canaries[target]
        self._canaries[source].sendto(word, (self.address(target), _CANARY_PORT))
        ends_at = time.monotonic() + _FLIGHT_S
        while (left_s := ends_at - time.monotonic()) > 0:
            ear.settimeout(left_s)
            with suppress(TimeoutError):
                if ear.recv(64) == word:
                    return True
        return False

    def _make_hub(self) -> None:
        here = f"{self.address(CLIENT)}/24"
        _ip("link", "add", "hub", "type", "bridge")
        _ip("link", "set", "hub", "address", self._hardware(CLIENT))
        _ip("address", "add", here, "dev", "hub")
        for link in ("hub", "lo"):
            _ip("link", "set", link, "up")

    def _make(self, name: str) -> None:
        ours = Path("/proc/self/ns/net").readlink()
        # It ends with the pipe, so also when this process is killed.
        holder = subprocess.Popen(
            ["unshare", "--net", "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._holders[name] = holder
        ends_at = time.monotonic() + _MADE_WITHIN_S
        while Path(self._namespace(name)).readlink() == ours:
            if holder.poll() is not None or time.monotonic() > ends_at:
                raise OSError(f"no network namespace can be made for {name}")
            time.sleep(0.002)
        cable = f"cable{self._number[name]}"
        there = str(holder.pid)
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", there)
        _ip("link", "set", cable, "master", "hub", "up")
        inside = [
            f"link set eth0 address {self._hardware(name)}",
            f"address add {self.address(name)}/24 dev eth0",
            "link set eth0 up",
            "link set lo up",
        ]
        _ip("-batch", "-", by=self.enter(name), given="\n".join(inside))

    def _hardware(self, host: str) -> str:
        return f"02:6e:73:00:00:{self._number[host]:02x}"

    def _namespace(self, host: str) -> str:
        return f"/proc/{self._holders[host].pid}/ns/net"

    def _point(self, source: str, target: str, hardware: str) -> None:
        device = "hub" if source == CLIENT else "eth0"
        change = ("neigh", "replace", self.address(target), "lladdr", hardware)
        _ip(*change, "dev", device, "nud", "permanent", by=self.enter(source))

    def _canary(self, host: str) -> socket.socket:
        """A socket on that host: it stays where it was made."""
        made: list[socket.socket] = []

        def make() -> None:
            if host != CLIENT:
                _enter(self._namespace(host))
            canary = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            canary.bind((self.address(host), _CANARY_PORT))
            made.append(canary)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if not made:
            raise OSError(f"no socket can be made on {host}")
        return made[0]


def with_rights_of_a_network(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Become `command` in a user namespace where this process is not root and may make one.

    Returns where there is nothing to gain: with root, the second time, and where it is not allowed.
    """
    enter = ["unshare", "--user", "--map-current-user", "--keep-caps"]
    if os.geteuid() == 0 or environ.get(_ENTERED) or shutil.which(enter[0]) is None:
        return
    if subprocess.run([*enter, "true"], capture_output=True, check=False).returncode == 0:
        os.execvpe(enter[0], [*enter, *command], {**environ, _ENTERED: "1"})  # noqa: S606


def hosts_for(names: Sequence[str]) -> Hosts:
    """Namespaces where this machine allows it, else the loopback, which says why."""
    lacking = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]
    if lacking:
        why = f"there is no {' and no '.join(lacking)} (Debian: iproute2, util-linux)"
        return Loopback(names, why=why)
    try:
        return Namespaces(names)
    except subprocess.CalledProcessError as error:
        return Loopback(names, why=f"no network can be made here: {error.stderr.strip()}")
    except OSError as error:
        by = "" if os.geteuid() == 0 else " (it needs root or user namespaces)"
        return Loopback(names, why=f"no network can be made here{by}: {error.strerror or error}")


def _enter_a_network_of_its_own() -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _enter(namespace: str) -> None:
    """Move the thread that calls."""
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY)
    try:
        if library.setns(descriptor, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)


def _ip(*arguments: str, by: Sequence[str] = (), given: str | None = None) -> None:
    command = [*by, "ip", *arguments]
    subprocess.run(command, input=given, capture_output=True, check=True, text=True)
