"""Two hosts of one machine: network namespaces with a cable between them, and nothing in common.

What one shared bridge or loopback hides, two hosts show: names that do not resolve, addresses that
are somebody else's, ports that are taken only here. Needs root.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.programs import wait_for
from tests.engines import absent, remove_with_mounts
from tests.support.leftovers import MARK
from tests.support.said import last_line


@dataclass(frozen=True)
class Host:
    """A network namespace: `address` is where the other one reaches it."""

    namespace: str
    address: str

    @property
    def enter(self) -> tuple[str, ...]:
        """What runs a program there, with the files and control groups of the machine."""
        return ("nsenter", f"--net=/var/run/netns/{self.namespace}")


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Both, gone at the end; skips the test where they cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if not (shutil.which("ip") and shutil.which("nsenter")):
        pytest.skip("there is no ip or no nsenter (Debian: iproute2, util-linux)")
    mark = secrets.token_hex(3)
    run = Path(os.environ.get(MARK, "nsml")).name
    names = [f"{run}-{mark}-{side}" for side in "ab"]
    net = f"10.{secrets.randbelow(100) + 100}.{secrets.randbelow(250)}"
    hosts = [Host(name, f"{net}.{number}") for number, name in enumerate(names, start=1)]
    with ExitStack() as stack:
        for host in hosts:
            made = subprocess.run(
                ["ip", "netns", "add", host.namespace], capture_output=True, text=True, check=False
            )
            if made.returncode != 0:
                pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
            stack.callback(_ip, "netns", "del", host.namespace)
        ends = [f"nsml{mark}{side}" for side in "ab"]
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for host, end in zip(hosts, ends, strict=True):
            _ip("link", "set", end, "netns", host.namespace)
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", end)
            for link in (end, "lo"):
                _ip("-n", host.namespace, "link", "set", link, "up")
        yield hosts[0], hosts[1]


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {last_line(done.stderr)}"


@contextmanager
def engine_on(host: Host, image: str) -> Iterator[Path]:
    """The socket of a container engine of the host's own that has `image`, taken from the machine's."""
    # of a short name: the paths of the engine's sockets have 108 bytes at most
    folder = Path(tempfile.mkdtemp(prefix="nsml-e"))
    socket = folder / "docker.sock"
    command = [
        *(
            *host.enter,
            "dockerd",
            "--bridge",
            "none",
            "--iptables=false",
            "--host",
            f"unix://{socket}",
        ),
        *("--data-root", str(folder / "data"), "--exec-root", str(folder / "run")),
        *("--pidfile", str(folder / "pid")),
    ]
    with (folder / "log").open("wb") as log:
        engine = subprocess.Popen(command, stdout=log, stderr=log)
    at = ["docker", "-H", f"unix://{socket}"]
    try:
        wait_for(
            lambda: (
                subprocess.run([*at, "info"], capture_output=True, check=False).returncode == 0
                or engine.poll() is not None
            ),
            what="the engine answers",
        )
        if engine.poll() is not None:
            absent(f"no engine can be started on {host.namespace}: {last_line(folder / 'log')}")
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saved:
            subprocess.run([*at, "load", "-q"], stdin=saved.stdout, capture_output=True, check=True)
        yield socket
        left = subprocess.run([*at, "ps", "-aq"], capture_output=True, check=True, text=True).stdout
        assert left == "", "containers are left"
    finally:
        engine.terminate()
        engine.wait(60)
        remove_with_mounts(folder)
