"""Machines of a lab, as an administrator meets them: each with folders, a network and a name of its own.

All of them are namespaces of this machine (root alone makes them) and share its programs. On each one the lines
of deploy/README.md run as they stand; what its units start is started by the lines of the units, as their users.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil

from tests.e2e.programs import wait_for

if TYPE_CHECKING:
    from types import TracebackType

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
UNSHARE = ("unshare", "--mount", "--net", "--pid", "--uts", "--fork")


def can_make_namespaces() -> bool:
    return os.geteuid() == 0 and subprocess.run([*UNSHARE, "true"], check=False).returncode == 0


class Lab:
    """A network 10.0.0.0/24 and its machines; all that was started there ends with it.

    Args:
        addresses: the last number of each machine's address, by its name; NAME.lab is known on all of them.
    """

    def __init__(self, scratch: Path, addresses: dict[str, int]) -> None:
        self._scratch = scratch
        self._addresses = addresses
        self._pids: dict[str, int] = {}

    def __enter__(self) -> Self:
        names = "".join(f"10.0.0.{n} {name}.lab {name}\n" for name, n in self._addresses.items())
        (self._scratch / "hosts").write_text("127.0.0.1 localhost\n" + names)
        self._process = subprocess.Popen(
            [*UNSHARE, "--kill-child", "--mount-proc", "sleep", "infinity"]
        )
        init = wait_for(lambda: psutil.Process(self._process.pid).children(), what="namespaces")[0]
        self._inside = ("nsenter", f"--target={init.pid}", "--mount", "--net", "--pid", "--uts")
        wait_for(lambda: init.name() == "sleep", what="namespaces")
        try:
            self._run(
                self._inside,
                "ip link set lo up; ip link add lan up type bridge; mount -t tmpfs tmpfs /opt\n"
                f"mkdir -p /opt/nsml; ln -s {BIN} /opt/nsml/bin\n" + _opened(self._scratch),
            )
            for name, number in self._addresses.items():
                self._make(name, number)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def on(self, machine: str, script: str) -> str:
        """Run lines of a shell there; their output. An AssertionError where one of them fails."""
        inside = ("nsenter", f"--target={self._pids[machine]}", "--mount", "--net", "--uts")
        return self._run((*self._inside, *inside), script)

    def start(self, machine: str, unit: str) -> None:
        """Start what a unit of deploy/ starts there, with the user and the folder that it has from systemd."""
        lines = (ROOT / "deploy/systemd" / unit).read_text().splitlines()
        settings = dict(line.split("=", 1) for line in lines if re.match(r"[A-Z]\w+=", line))
        user, folder = settings.get("User", "root"), settings.get("StateDirectory")
        name = unit.removesuffix(".service")
        if folder:
            self.on(machine, f"install -d -m 700 -o {user} -g {user} /var/lib/{folder}")
        self.on(
            machine,
            f"umask {settings.get('UMask', '0022')}; exec > /run/{name}.log 2>&1 < /dev/null\n"
            f"setsid setpriv --reuid {user} --regid {user} --init-groups {settings['ExecStart']} &\n"
            f"echo $! > /run/{name}.pid",
        )

    def kill(self, machine: str, unit: str) -> None:
        """kill -9 of what was started there."""
        self.on(machine, f"kill -9 $(cat /run/{unit.removesuffix('.service')}.pid)")

    def log(self, machine: str, unit: str) -> str:
        """What it wrote."""
        return self.on(machine, f"cat /run/{unit.removesuffix('.service')}.log")

    def _make(self, name: str, number: int) -> None:
        etc, pid = self._scratch / f"etc-{name}", self._scratch / f"pid-{name}"
        self._run(
            self._inside,
            f"cp -a /etc {etc}; rm -rf {etc}/nsml; cp {self._scratch}/hosts {etc}/hosts\n"
            f"unshare --mount --net --uts sleep infinity > /dev/null 2>&1 & echo $! > {pid}\n"
            f"own() {{ [ $(readlink /proc/$!/ns/net) != $(readlink /proc/self/ns/net) ]; }}\n"
            f"until own; do sleep 0.01; done\n"
            f"ip link add lan-{number} up master lan type veth peer name eth0 netns $!",
        )
        self._pids[name] = int(pid.read_text())
        folders = "/var/lib /var/tmp /run"
        self.on(
            name,
            f"hostname {name}; mount --bind {etc} /etc\n"
            f"for folder in {folders}; do mount -t tmpfs tmpfs $folder; done\n"
            f"ip link set lo up; ip link set eth0 up; ip address add 10.0.0.{number}/24 dev eth0",
        )

    def _run(self, inside: tuple[str, ...], script: str) -> str:
        done = subprocess.run(
            [*inside, "bash", "-euc", script],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
            env={**os.environ, "NSML_CONFIG_DIR": "/run/config"},
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()


def _opened(scratch: Path) -> str:
    """Lines of a shell that let every user pass to Python and to nsml, which may lie in a home of root's."""
    needed = {Path(sys.base_prefix), Path(sys.prefix), ROOT}
    closed = {Path(*path.parts[:2]) for path in needed if not _is_passable(path)}
    lines = []
    for top in closed:
        mine = [path for path in needed if path.is_relative_to(top)]
        for number, path in enumerate(mine):
            kept = scratch / f"kept-{top.name}-{number}"
            lines.append(f"mkdir {kept}; mount --bind {shlex.quote(str(path))} {kept}")
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs {top}")
        for number, path in enumerate(mine):
            kept, place = scratch / f"kept-{top.name}-{number}", shlex.quote(str(path))
            lines.append(f"mkdir -p {place}; mount --bind {kept} {place}")
    return "\n".join(lines)


def _is_passable(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in (path, *path.parents))
