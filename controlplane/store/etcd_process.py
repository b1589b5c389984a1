"""An etcd child process, for one machine and for tests.

It listens on Unix sockets in a folder that only its owner can enter: access to etcd is control of the
platform, and a port on the loopback would be open to every user and every session of the machine.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import grpc.aio
import psutil
import structlog

from controlplane.store.background_task import Companion
from controlplane.store.etcd_members import Member, refuse_unsound
from controlplane.store.interface import StoreRefused, StoreUnavailable
from nsml.common.log_files import copy_aside

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from nsml.common.clock import Clock

CLIENT_SOCKET: Final = "localhost:1"
PEER_SOCKET: Final = "localhost:2"
"""etcd 3.4 accepts Unix sockets only as HOST:PORT, a file of that name in its working folder."""
SOCKET_PATH_MAX: Final = 100
"""Maximum path length of a socket, with a margin: the kernel's limit is 107 bytes."""
STOP_AFTER_S: Final = 5.0
POLL_S: Final = 0.02
_DATA_DIR: Final = "--data-dir="


def find_etcd() -> Path | None:
    """Return the etcd on PATH, or None if there is none of a sound version."""
    found = shutil.which("etcd")
    if found is None:
        return None
    answer = subprocess.run(
        [found, "--version"], capture_output=True, text=True, timeout=10, check=False
    )
    version = re.search(r"etcd Version: (\S+)", answer.stdout)
    if version is None:
        return None
    try:
        refuse_unsound(version.group(1))
    except StoreRefused as error:
        structlog.get_logger().warning("etcd.refused", path=found, reason=str(error))
        return None
    return Path(found)


class EtcdProcess:
    """One etcd member in a folder of its own; `endpoint` is the clients' URL.

    As an async context manager it starts, is ready when the body begins, is restarted when it
    dies, and is stopped at the end. Tests call the steps themselves.

    Args:
        binary: as `find_etcd` found it.
        folder: made with mode 0700; holds the data, the log and the sockets.
        quota_bytes: size from which etcd accepts only deletes.
    """

    def __init__(
        self, binary: Path, folder: Path, *, clock: Clock, quota_bytes: int = 2 << 30
    ) -> None:
        self._binary = binary
        self._folder = folder
        self._clock = clock
        self._quota_bytes = quota_bytes
        self._log = structlog.get_logger()
        self._process: subprocess.Popen[bytes] | None = None
        self._stack = contextlib.AsyncExitStack()
        self._sockets = folder
        if len(os.fsencode(folder / CLIENT_SOCKET)) > SOCKET_PATH_MAX:
            self._sockets = Path(tempfile.mkdtemp(prefix="nsml-etcd-"))

    @property
    def endpoint(self) -> str:
        """The URL that a client connects to."""
        return f"unix://{self._sockets.absolute() / CLIENT_SOCKET}"

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process is not None and running else None

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.stop)
            self.start()
            await self.ready()
            await stack.enter_async_context(Companion(self._restart(), name="etcd.restart"))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    def start(self) -> None:
        """Start the process, after ending one left by a dead parent."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        end_leftover(self._folder)
        for name in (CLIENT_SOCKET, PEER_SOCKET):
            # etcd does not listen if a killed one has left its socket.
            (self._sockets / name).unlink(missing_ok=True)
        environment = {"PATH": os.environ.get("PATH", os.defpath)}
        if platform.machine() in ("aarch64", "arm64"):
            environment["ETCD_UNSUPPORTED_ARCH"] = "arm64"
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self._sockets,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        self._log.info("etcd.started", pid=self._process.pid, endpoint=self.endpoint)

    def _command(self) -> list[str]:
        client, peer = f"unix://{CLIENT_SOCKET}", f"unix://{PEER_SOCKET}"
        settings = {
            "name": "nsml",
            "data-dir": str(self._folder.absolute() / "data"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"nsml={peer}",
            # A lost leader is replaced in about 0.5 s and leases can be 1 s long.
            "heartbeat-interval": "50",
            "election-timeout": "300",
            "auto-compaction-retention": "5m",
            "quota-backend-bytes": str(self._quota_bytes),
            "logger": "zap",
            "log-level": "warn",
            "log-outputs": "stderr",
        }
        return [str(self._binary), *(f"--{name}={value}" for name, value in settings.items())]

    async def ready(self, deadline_s: float = 20.0) -> None:
        """Return when it answers; raise StoreUnavailable if it dies or takes too long."""
        ends_at = self._clock.monotonic() + deadline_s
        member = Member(self.endpoint, None)
        try:
            while self._clock.monotonic() < ends_at:
                if self.pid is None:
                    raise StoreUnavailable(f"etcd ended at once: {self._last_words()}")
                with contextlib.suppress(grpc.aio.AioRpcError):
                    return await member.ready(0.5)
                await self._clock.sleep(POLL_S)
        finally:
            await member.channel.close(None)
        raise StoreUnavailable(f"etcd does not get ready: {self._last_words()}")

    async def stop(self) -> None:
        """Terminate the process, and kill it after `STOP_AFTER_S`."""
        process = self._process
        if process is None:
            return
        ends_at = self._clock.monotonic() + STOP_AFTER_S
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.terminate()
        while process.poll() is None and self._clock.monotonic() < ends_at:
            await self._clock.sleep(POLL_S)
        process.kill()
        process.wait()
        if self._sockets != self._folder:
            shutil.rmtree(self._sockets, ignore_errors=True)

    async def _restart(self) -> None:
        """Restart it whenever it dies: its data is on disk, and clients resume."""
        while True:
            await self._clock.sleep(0.2)
            copy_aside(self._folder / "etcd.log")
            if self.pid is None:
                code = None if self._process is None else self._process.returncode
                self._log.error("etcd.died", code=code, last_words=self._last_words())
                await self._clock.sleep(0.5)
                self.start()

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = (self._folder / "etcd.log").read_bytes()[-2000:].decode(errors="replace")
            return lines.strip().rsplit("\n", 1)[-1]
        return "no log"


def running_in(folder: Path) -> list[psutil.Process]:
    """Return the etcd processes with data in `folder`, our children or not.

    Identified by their command: a parent may die before it has recorded a process id, and a reported
    start time changes when the clock is set.
    """
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if _has_data_of(folder, process.info["cmdline"] or ())
    ]


def end_leftover(folder: Path) -> bool:
    """End the etcd that a killed parent left running in `folder`; True if there was one."""
    found = running_in(folder)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.resume()
            process.terminate()
    for process in psutil.wait_procs(found, STOP_AFTER_S)[1]:
        with contextlib.suppress(psutil.Error):
            process.kill()
            process.wait(STOP_AFTER_S)
    return bool(found)


def _has_data_of(folder: Path, command: Sequence[str]) -> bool:
    given = [word.removeprefix(_DATA_DIR) for word in command if word.startswith(_DATA_DIR)]
    with contextlib.suppress(OSError):
        return any((folder / "data").samefile(path) for path in given)
    return False
