"""The agent's side of a visit: a program started in a running replica (`nodeagent/shim/visitor.py`)."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import termios
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakValueDictionary

from nodeagent.runtimes.records import read_claim
from nodeagent.runtimes.shims import is_alive
from nodeagent.runtimes.ssh_zygote import SshZygote
from nodeagent.safe_paths import path_of
from nodeagent.shim.loopback import LISTENER
from nodeagent.shim.visitor import CONTAINED_SSH, COPY, PROGRAM, SOCKET, SSH, VISIT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from nodeagent.folders import ReplicaFolder
    from nodeagent.runtimes.records import ShimClaim

PIECE_BYTES: Final = 240 << 10
"""Size of one read of an output: a message with it fits one frame of a tunnel."""
_PIPE_BYTES: Final = 256 << 10
"""Size of a program's pipes: with their default, 64 KiB, all is sent in small pieces."""
_SOCKET_BYTES: Final = 1 << 20
"""The same for an ssh connection, if the kernel allows it."""
_TERMINAL_BYTES: Final = 4 << 10
"""Size of one read of a terminal."""
_LINGER_S: Final = 1.0
"""Silence after the program's end, until output held open by its background processes is dropped."""
_ADMITTED_WITHIN_S: Final = 10.0
BEGIN_AT_ONCE: Final = 8
"""Programs that begin at one time: of more, all would take longer than a program may take to begin."""
_SERVES_WITHIN_S: Final = 20.0
"""An ssh server has slow imports."""
_LOOKS: Final = 10
LOOK_S: Final = 0.1
"""Interval of checks whether the replica's program has ended with a killed one."""
_MOST_ORDER: Final = 1 << 20
_MOST_ANSWER = 1 << 20


class NotAdmitted(Exception):
    """No program can be started in the replica; the message gives the reason, for people."""


class NotStarted(NotAdmitted):
    """This program cannot be started: `exit_code` is that of shells, 127 if it does not exist, else 126."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitOrder:
    """The program to start: an empty `argv` is a shell; `terminal` is rows and columns, None for three pipes.

    `copy`: a copy of files instead (`nodeagent/shim/file_server.py`).
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    terminal: tuple[int, int] | None
    copy: Mapping[str, object] | None = None


class Output(Enum):
    """A stream of a program; a terminal has one."""

    STANDARD = 1
    ERRORS = 2


class Visit(Protocol):
    """A program started in a replica.

    `sources` must be read concurrently, each to its end: the program's output.
    """

    @property
    def sources(self) -> Sequence[AsyncIterator[tuple[Output, bytes]]]:
        """Its output; ends with it, or a moment later if its background processes are silent."""
        ...

    async def write(self, data: bytes) -> bool:
        """Write to its input, waiting while it does not read; False once it never will."""
        ...

    async def close_input(self) -> None:
        """Close its standard input; no effect with a terminal."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """Resize its terminal."""
        ...

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        ...

    async def ended(self) -> tuple[int | None, int | None]:
        """Wait for its end: exit code or signal; neither if it ended with its replica."""
        ...


class ProcessVisit:
    """`Visit` of a visitor's program: `end` is the visitor's socket, `streams` this side of the standard streams.

    `beside` is the process of the replica's program; None: not in a replica.
    """

    def __init__(
        self,
        end: socket.socket,
        streams: Sequence[int],
        beside: int | None,
        *,
        has_terminal: bool,
    ) -> None:
        self._end = end
        self._beside = beside
        self._has_terminal = has_terminal
        self._input: int | None = streams[0]
        self._outputs = streams if has_terminal else streams[1:]
        self._is_over = asyncio.Event()
        for descriptor in streams:
            os.set_blocking(descriptor, False)

    @property
    def sources(self) -> Sequence[AsyncIterator[tuple[Output, bytes]]]:
        """See `Visit`."""
        return [
            self._pieces(descriptor, kind)
            for descriptor, kind in zip(self._outputs, Output, strict=False)
        ]

    async def _pieces(self, descriptor: int, kind: Output) -> AsyncIterator[tuple[Output, bytes]]:
        while True:
            try:
                data = (_all_there if self._has_terminal else _some)(descriptor)
            except BlockingIOError:
                if await self._is_readable(descriptor):
                    continue
                return
            except OSError:  # a terminal whose other end is closed
                return
            if not data:
                return
            yield kind, data

    async def _is_readable(self, descriptor: int) -> bool:
        """Wait for bytes, or the end; False once the program has ended and none come."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(descriptor, ready.set)
        waiting = [asyncio.ensure_future(one.wait()) for one in (ready, self._is_over)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not ready.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LINGER_S):
                        await ready.wait()
        finally:
            for one in waiting:
                one.cancel()
            loop.remove_reader(descriptor)
        return ready.is_set()

    async def write(self, data: bytes) -> bool:
        """See `Visit`."""
        rest = memoryview(data)
        loop = asyncio.get_running_loop()
        while rest and self._input is not None:
            try:
                rest = rest[os.write(self._input, rest) :]
            except BlockingIOError:
                ready = asyncio.Event()
                loop.add_writer(self._input, ready.set)
                try:
                    await ready.wait()
                finally:
                    loop.remove_writer(self._input)
            except OSError:  # it has closed its input
                return False
        return self._input is not None

    async def close_input(self) -> None:
        """See `Visit`."""
        if self._input is not None and not self._has_terminal:
            os.close(self._input)
            self._input = None

    async def resize(self, rows: int, columns: int) -> None:
        """See `Visit`."""
        if self._has_terminal and self._input is not None:
            with suppress(OSError):
                fcntl.ioctl(
                    self._input, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0)
                )

    async def signal(self, number: int) -> None:
        """See `Visit`."""
        with suppress(OSError):  # it has ended
            self._end.send(json.dumps({"signal": number}).encode())

    async def ended(self) -> tuple[int | None, int | None]:
        """See `Visit`."""
        said, _ = await _received(self._end)
        self._is_over.set()
        is_killed = said.get("signal") == signal.SIGKILL
        if is_killed and self._beside is not None and await _ends(self._beside):
            return None, None
        return said.get("code"), said.get("signal")

    def close(self) -> None:
        """Disconnect: the program gets SIGHUP unless it has ended."""
        for one in {*self._outputs, *([] if self._input is None else [self._input])}:
            with suppress(OSError):
                os.close(one)
        self._end.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Certificate of an ssh server for clients that do not know its host key, and keys that it accepts from unauthenticated ones.

    Attributes:
        certificate: for its host key.
        authorized_keys: SHA-256 of each authorized public key, in hexadecimal.
    """

    certificate: str
    authorized_keys: Sequence[str]

    def beside(self, host_key: str) -> str:
        """Combine both in one text: shims of earlier versions forward only the text of a host key."""
        return json.dumps({"host_key": host_key, **asdict(self)})


class Visits:
    """Starts programs in replicas; `boot_id` is of this boot."""

    def __init__(self, boot_id: str) -> None:
        self._boot_id = boot_id
        self._doors: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._zygote = SshZygote()
        self._beginning = asyncio.Semaphore(BEGIN_AT_ONCE)

    def close(self) -> None:
        """Start nothing more; running programs continue."""
        self._zygote.close()

    @asynccontextmanager
    async def started(self, folder: ReplicaFolder, order: VisitOrder) -> AsyncIterator[Visit]:
        """Start a program in a replica, while the context lasts. Raises NotAdmitted."""
        async with self._beginning:
            end = await self._entered(folder, PROGRAM if order.copy is None else COPY)
            visit = await begun(end, order)
        with closing(visit):
            yield visit

    @asynccontextmanager
    async def ssh_server(
        self,
        folder: ReplicaFolder,
        host_key: str,
        asking: socket.socket | None = None,
        *,
        login: Login | None = None,
    ) -> AsyncIterator[socket.socket]:
        """Connect to an ssh server in a replica, which ends with the context. Raises NotAdmitted.

        `host_key` is the private half, in OpenSSH's format. In a container it is the public one, and `asking` receives the
        server's requests (`nodeagent/shim/contained_ssh.py`). `login`: required of clients.
        """
        if login is not None:
            host_key = login.beside(host_key)
        async with self._beginning:
            end = await self._entered(folder, SSH if asking is None else CONTAINED_SSH)
            try:
                stand_in = await self._zygote.stand_in()
                connection = await _served(end, host_key, stand_in, asking)
            except TimeoutError as late:
                self._zygote.kill()
                raise NotAdmitted(f"nothing began within {_SERVES_WITHIN_S:g} s") from late
            except OSError as error:
                raise NotAdmitted(error.strerror or str(error)) from error
        try:
            yield connection
        finally:
            connection.close()
            end.close()

    async def listener(self, folder: ReplicaFolder) -> socket.socket:
        """Return the listener held by a replica's shim (`nodeagent/shim/loopback.py`). Raises NotAdmitted."""
        end = await self._entered(folder, LISTENER)
        try:
            end.send(json.dumps({LISTENER: True}).encode())
            async with asyncio.timeout(_ADMITTED_WITHIN_S):
                said, given = await _received(end)
        except TimeoutError as late:
            raise NotAdmitted(f"no listener came within {_ADMITTED_WITHIN_S:g} s") from late
        except OSError as error:
            raise NotAdmitted(error.strerror or str(error)) from error
        finally:
            end.close()
        if not given:
            raise NotAdmitted(str(said.get("failed") or "its program has just ended"))
        for one in given[1:]:
            os.close(one)
        return socket.socket(fileno=given[0])

    async def _entered(self, folder: ReplicaFolder, kind: str) -> socket.socket:
        """Return the connection of a visitor that supports `kind`. Raises NotAdmitted."""
        claim = await asyncio.to_thread(read_claim, folder)
        if claim is None or not is_alive(claim, self._boot_id):
            raise NotAdmitted("its program does not run here")
        if kind not in claim.admits:
            raise NotAdmitted("it was started by an earlier version of nsml, which cannot do this")
        try:
            async with self._doors.setdefault(str(folder.path), asyncio.Lock()):
                return await self._admitted(folder, claim)
        except OSError as error:
            raise NotAdmitted(error.strerror or str(error)) from error

    async def _admitted(self, folder: ReplicaFolder, claim: ShimClaim) -> socket.socket:
        """Return the connection of a visitor that the shim has forked. Raises OSError, NotAdmitted."""
        shim = os.pidfd_open(claim.pid)
        place = os.open(folder.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            if not is_alive(claim, self._boot_id):
                raise NotAdmitted("its program does not run here")
            path = path_of(place) / SOCKET
            path.unlink(missing_ok=True)
            door.setblocking(False)  # noqa: FBT003
            door.bind(str(path))
            door.listen(1)
            signal.pidfd_send_signal(shim, VISIT)
            async with asyncio.timeout(_ADMITTED_WITHIN_S):
                end, _ = await asyncio.get_running_loop().sock_accept(door)
        except TimeoutError as late:
            raise NotAdmitted(f"it lets nobody in within {_ADMITTED_WITHIN_S:g} s") from late
        finally:
            with suppress(OSError):
                (path_of(place) / SOCKET).unlink(missing_ok=True)
            door.close()
            os.close(place)
            os.close(shim)
        return end


async def _ends(beside: int) -> bool:
    """Whether the replica's program has ended, too: then others in it are killed."""
    for _ in range(_LOOKS):
        if not _runs(beside):
            return True
        await asyncio.sleep(LOOK_S)
    return False


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def _some(descriptor: int) -> bytes:
    """Read what is available; empty at the end. Raises BlockingIOError: nothing."""
    return os.read(descriptor, PIECE_BYTES)


def _all_there(terminal: int) -> bytes:
    """Read what is available of a terminal, which returns little at a time.

    Raises BlockingIOError: nothing. OSError: its other end is closed.
    """
    pieces = [os.read(terminal, _TERMINAL_BYTES)]
    with suppress(OSError):  # raised again by the next read, without loss
        while pieces[-1] and len(pieces) < PIECE_BYTES // _TERMINAL_BYTES:
            pieces.append(os.read(terminal, _TERMINAL_BYTES))
    return b"".join(pieces)


def _open_pipes(theirs: list[int], ours: list[int]) -> None:
    """Append the ends of three pipes: input, output and error output. Raises OSError."""
    for is_input in (True, False, False):
        reads, writes = os.pipe2(os.O_CLOEXEC)
        theirs.append(reads if is_input else writes)
        ours.append(writes if is_input else reads)
        if not is_input:
            with suppress(OSError):  # this user's pipes use much memory already
                fcntl.fcntl(reads, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


async def begun(end: socket.socket, order: VisitOrder) -> ProcessVisit:
    """Start the program of the visitor at the other `end`; it lasts until it is closed. Raises NotAdmitted."""
    theirs: list[int] = []
    streams: list[int] = []
    is_begun = False
    try:
        if order.terminal is None:
            _open_pipes(theirs, streams)
        words = {
            "argv": list(order.argv),
            "env": dict(order.environment),
            "terminal": order.terminal,
            "copy": order.copy,
        }
        # one message, larger than the kernel's default for one
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_ORDER)
        socket.send_fds(
            end, [json.dumps(words, ensure_ascii=False).encode("utf-8", "surrogatepass")], theirs
        )
        async with asyncio.timeout(_ADMITTED_WITHIN_S):
            said, given = await _received(end)
            if given:
                streams += given
                said, _ = await _received(end)
        if "code" in said:
            raise NotStarted(str(said["failed"]), int(said["code"]))
        if "pid" not in said:
            raise NotAdmitted(str(said.get("failed") or "its program has just ended"))
        is_begun = True
        return ProcessVisit(
            end, streams, said.get("beside"), has_terminal=order.terminal is not None
        )
    except TimeoutError as late:
        raise NotAdmitted(f"nothing began within {_ADMITTED_WITHIN_S:g} s") from late
    except OSError as error:
        raise NotAdmitted(error.strerror or str(error)) from error
    finally:
        for one in [*theirs, *([] if is_begun else streams)]:
            os.close(one)
        if not is_begun:
            end.close()


async def _served(
    end: socket.socket, host_key: str, stand_in: socket.socket, asking: socket.socket | None
) -> socket.socket:
    """Return the connection to the ssh server of the visitor, or of its `stand_in`.

    Raises:
        NotAdmitted: it cannot.
        TimeoutError: it does not answer.
        OSError: this process lacks something.
    """
    ours, theirs = socket.socketpair()
    is_begun = False
    try:
        ours.setblocking(False)  # noqa: FBT003
        for one in (ours, theirs):  # else all is sent in small pieces
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        words = {
            "ssh": {"host_key": host_key, "path": [one for one in sys.path if one.startswith("/")]},
            "env": {},
        }
        given = [one for one in (theirs, asking, stand_in) if one is not None]
        socket.send_fds(end, [json.dumps(words).encode()], [one.fileno() for one in given])
        stand_in.close()  # it then notices the end of the visitor
        async with asyncio.timeout(_SERVES_WITHIN_S):
            said, _ = await _received(end)
        if "pid" not in said:
            raise NotAdmitted(str(said.get("failed") or "its program has just ended"))
        is_begun = True
        return ours
    finally:
        theirs.close()
        stand_in.close()
        if not is_begun:
            ours.close()
            end.close()


async def _received(end: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the next message and its descriptors; an empty one if the visitor is gone."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    end.setblocking(False)  # noqa: FBT003
    loop.add_reader(end, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(end)
    try:
        message, given, _, _ = socket.recv_fds(end, _MOST_ANSWER, 3)
        for one in given:
            os.set_inheritable(one, False)  # noqa: FBT003
        return (json.loads(message) if message else {}), given
    except (OSError, ValueError):
        return {}, []
