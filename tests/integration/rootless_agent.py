"""An agent without root for tests: `python -m tests.integration.rootless_agent UID FOLDER JSON`, run as root.

It runs in the network of whoever starts it, with mounts of its own: there the resolvers are those of FOLDER, and
everybody may open /dev/net/tun, as on
most machines, and pass the folders that lead to this checkout and its interpreter. Orders come as lines of JSON on
its standard input, and each has one answer.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import json
import os
import sys
import time
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import structlog

from nodeagent.folders import ReplicaFolders, ReplicaId
from nodeagent.machine.accounts import barrier
from nodeagent.network.gang_network import GangNetwork
from nodeagent.network.pasta import probe_pasta
from nodeagent.runtimes.interface import Isolation, PythonEnvironment, ReplicaSpec
from nodeagent.runtimes.isolation import probe_isolation
from nodeagent.runtimes.launch import this_machine
from nodeagent.runtimes.limits import probe_limits
from nodeagent.runtimes.process import ProcessDriver
from nodeagent.runtimes.visits import Visits
from tests.support.process_drivers import process_driver

PREFIX = Path(sys.base_prefix)
WITHIN_S = 60.0
_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000
_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    words = [os.fsencode(source), os.fsencode(target), kind and kind.encode()]
    if _libc.mount(*words, ctypes.c_ulong(flags), data.encode()):
        raise OSError(ctypes.get_errno(), f"mount {target}")


def own_mounts(folder: Path) -> None:
    """Everybody may pass to what this process needs, here alone."""
    if _libc.unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    mount("", "/", None, _MS_REC | _MS_PRIVATE)
    mount("sysfs", "/sys", "sysfs", 0)
    tun = folder / "tun"
    os.mknod(tun, 0o020666, os.makedev(10, 200))
    tun.chmod(0o666)
    mount(str(tun), "/dev/net/tun", None, _MS_BIND)
    mount(str(folder / "resolv.conf"), "/etc/resolv.conf", None, _MS_BIND)
    needed = [Path(sys.base_prefix), Path(sys.prefix), Path(__file__).resolve().parents[2]]
    held = [(path, os.open(path, os.O_PATH)) for path in needed]
    for path, descriptor in held:
        while path.exists() and (wall := barrier(path)):
            mount("tmpfs", str(wall), "tmpfs", 0, "mode=755")
        if not path.exists():
            path.mkdir(parents=True)
            mount(f"/proc/self/fd/{descriptor}", str(path), None, _MS_BIND | _MS_REC)


class Agent:
    """Runs programs as sessions without accounts."""

    def __init__(self, driver: ProcessDriver, folders: ReplicaFolders) -> None:
        self._driver = driver
        self._folders = folders
        self._running: dict[str, ReplicaSpec] = {}

    async def start(self, code: str, *, gang: bool = False, **more: Any) -> dict[str, Any]:
        """Start a program; its first line, or all that it printed until it ended."""
        name = "s" + base64.b32encode(os.urandom(10)).decode().lower()
        spec = ReplicaSpec(
            replica_id=ReplicaId(session_id=name, attempt=1, rank=0),
            argv=[str(PREFIX / "bin/python3"), "-I", "-c", code],
            isolation=Isolation.NAMESPACE,
            python=PythonEnvironment(folder=PREFIX, base_prefix=PREFIX),
            gang=GangNetwork() if gang else None,
            **more,
        )
        began = time.monotonic()
        await self._driver.start(spec)
        self._running[name] = spec
        folder = self._folders.of(spec.replica_id)
        async with asyncio.timeout(WITHIN_S):
            while not (folder.output.exists() and folder.output.read_bytes().endswith(b"\n")):
                if folder.exit.exists():
                    break
                await asyncio.sleep(0.002)
        return {
            "name": name,
            "output": folder.output.read_text() if folder.output.exists() else "",
            "ms": 1000 * (time.monotonic() - began),
            "shim": json.loads(folder.shim.read_bytes())["pid"],
        }

    async def serve(self, name: str, word: str) -> dict[str, Any]:
        """Answer whoever connects first to the listener that a program's shim holds."""
        folder = self._folders.of(self._running[name].replica_id)
        with await Visits(this_machine(with_pid=True).boot_id).listener(folder) as listener:
            listener.settimeout(WITHIN_S)
            connection, _ = await asyncio.to_thread(listener.accept)
            with connection:
                connection.sendall(word.encode())
        return {}

    async def end(self, name: str, *, kill: bool = True) -> dict[str, Any]:
        """How a program ended, or is ended."""
        spec = self._running.pop(name)
        if kill:
            await self._driver.kill(spec.replica_id, reason="the test is over")
        async with asyncio.timeout(WITHIN_S):
            record = await self._driver.wait(spec.replica_id)
        return asdict(record) if is_dataclass(record) else {}

    async def end_all(self) -> None:
        for name in list(self._running):
            await self.end(name)


async def serve(data: Path, probed: dict[str, Any]) -> None:
    isolation = probe_isolation(data / "trial")
    facts = probe_pasta(data, **probed)
    answer({"reason": facts.reason, "isolation": isolation.level.value})
    folders = ReplicaFolders(data / "replicas")
    limits = probe_limits(data, disk_floor_bytes=0, with_groups=False)
    async with process_driver(folders, isolation, limits, network=facts.network) as driver:
        agent = Agent(driver, folders)
        try:
            while line := await asyncio.to_thread(sys.stdin.readline):
                order = json.loads(line)
                answer(await getattr(agent, order.pop("do"))(**order))
        finally:
            await agent.end_all()


def answer(words: Any) -> None:
    print(json.dumps(words, default=str), flush=True)


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    uid, folder, probed = int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    own_mounts(folder)
    data = folder / "agent"
    data.mkdir(mode=0o700)
    os.chown(data, uid, uid)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as a process that was never root
    asyncio.run(serve(data, probed))


if __name__ == "__main__":
    main()
