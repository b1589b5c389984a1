"""Starts shims: by the zygote or, if it does not answer, directly.

Nothing here forks the agent itself: it runs gRPC's threads. Both ways end in `shim.run` in a session
of its own, with an empty environment and without any descriptor of the agent except, as standard input,
the program's secrets: in anonymous memory, never on a disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodeagent.folders import ReplicaFolder
    from nsml.common.clock import Offload

_ROOT = str(Path(__file__).resolve().parents[2])
# appended, so that nothing beside our packages can shadow the standard library
_BOOT = "import sys; sys.path.append(sys.argv[1]); from nodeagent.shim.{} import main; main()"
_ZYGOTE_ANSWERS_WITHIN_S = 10.0

log = structlog.get_logger()


def shim_command(module: str, *arguments: str) -> list[str]:
    """Return the command line of a module of `nodeagent.shim`, such as `zygote`, on a bare interpreter.

    Through an import and not as a script, because only imports are compiled once.
    """
    return [sys.executable, "-I", "-S", "-c", _BOOT.format(module), _ROOT, *arguments]


@dataclass(frozen=True, slots=True)
class StartedShim:
    """A new shim: its pid, and a descriptor that becomes readable when it has ended."""

    pid: int
    pidfd: int
    child: subprocess.Popen[bytes] | None = None
    """Set if the shim is a child of this process, which must reap it."""


class Launcher:
    """Starts shims, one at a time. Not usable before `open`."""

    def __init__(self, run: Offload, *, with_zygote: bool = True) -> None:
        self._run = run
        self._with_zygote = with_zygote
        self._zygote: _Zygote | None = None
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        """Start the zygote."""
        if self._with_zygote:
            self._zygote = await self._run(_Zygote)

    async def close(self) -> None:
        """End the zygote; its shims continue."""
        if self._zygote:
            await self._run(self._zygote.close)
            self._zygote = None

    async def start(
        self, folder: ReplicaFolder, secrets: bytes = b"", network: int | None = None
    ) -> StartedShim:
        """Start a shim on `folder` with `secrets` on its standard input. Raises OSError.

        `network` is a descriptor of its program's network namespace; None: the machine's.
        """
        async with self._turn:
            if self._with_zygote:
                try:
                    if self._zygote is None:
                        self._zygote = await self._run(_Zygote)
                    return await self._zygote.start(folder, secrets, network)
                except (OSError, EOFError, TimeoutError) as error:
                    log.warning("zygote.failed", reason=str(error))
                    await self.close()
            return await self._run(lambda: start_directly(folder, secrets, network))


def start_directly(
    folder: ReplicaFolder, secrets: bytes = b"", network: int | None = None
) -> StartedShim:
    """Start a shim as a child of this process. Raises OSError."""
    passed = () if network is None else (network,)
    command = shim_command("shim", str(folder.path), *map(str, passed))
    with _in_memory(secrets) as given:
        child = _spawn(command, stdin=given, pass_fds=passed)
    return StartedShim(child.pid, os.pidfd_open(child.pid), child)


def start_node_visitor(node: str, end: int, *, grace_s: float) -> subprocess.Popen[bytes]:
    """Start a visitor of the node itself, which the caller reaps, with the descriptor `end`. Raises OSError."""
    command = shim_command("node_visitor", str(grace_s), node, str(end))
    return _spawn(command, stdin=subprocess.DEVNULL, pass_fds=(end,))


def start_ssh_zygote(path: str, end: int) -> subprocess.Popen[bytes]:
    """Start the zygote of ssh servers, which the caller reaps, with the descriptor `end`. Raises OSError."""
    command = shim_command("ssh_zygote", path, str(end))
    return _spawn(command, stdin=subprocess.DEVNULL, pass_fds=(end,))


def reap_at_end(child: subprocess.Popen[bytes]) -> None:
    """Reap it when it has ended, without asyncio, which kills running children when its loop is closed."""
    loop, pidfd = asyncio.get_running_loop(), os.pidfd_open(child.pid)

    def reap() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        child.wait()

    loop.add_reader(pidfd, reap)


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    """Yield a descriptor for reading `content`. Raises OSError."""
    descriptor = os.memfd_create("nsml-secrets")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        yield descriptor
    finally:
        os.close(descriptor)


class _Zygote:
    """The agent's end of the zygote's socket."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            command = shim_command("zygote", str(number))
            self._process = _spawn(command, stdin=subprocess.DEVNULL, pass_fds=(number,))
        ours.setblocking(False)  # noqa: FBT003
        self._socket = ours

    async def start(
        self, folder: ReplicaFolder, secrets: bytes, network: int | None
    ) -> StartedShim:
        """Send one request, and return its answer. Raises OSError, EOFError when the zygote is gone."""
        passed = () if network is None else (network,)
        with _in_memory(secrets) as given:
            socket.send_fds(self._socket, [os.fsencode(folder.path)], [given, *passed])
        try:
            async with asyncio.timeout(_ZYGOTE_ANSWERS_WITHIN_S):
                await _readable(self._socket)
        except BaseException:
            self._socket.close()  # the next request would read this answer
            raise
        message, descriptors, _, _ = socket.recv_fds(self._socket, 4096, 1)
        kind, _, text = message.decode(errors="replace").partition(" ")
        if kind == "ok" and descriptors:
            return StartedShim(int(text), descriptors[0])
        if kind == "error":
            raise OSError(text)
        raise EOFError("the zygote ended, or its answer lost the descriptor")

    def close(self) -> None:
        """Close the socket, which ends the zygote, and reap it."""
        self._socket.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _spawn(
    command: list[str], *, stdin: int, pass_fds: tuple[int, ...] = ()
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={},
        start_new_session=True,
        pass_fds=pass_fds,
    )


async def _readable(end: socket.socket) -> None:
    """Return when `end` is readable."""
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(end, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(end)
