"""The agent's side of a visit: a program started in a replica that runs (`nodeagent/shim/visitor.py`)."""

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
from contextlib import asynccontextmanager, suppress
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
"""Taken of an output at once: a message with it fits one frame of a tunnel."""
_PIPE_BYTES: Final = 256 << 10
"""What a program can write ahead: with what pipes have by themselves, 64 KiB, all is passed on in small pieces."""
_SOCKET_BYTES: Final = 1 << 20
"""As much of a connection of ssh, if the kernel allows so much."""
_TERMINAL_BYTES: Final = 4 << 10
"""Of a terminal, in one read."""
_LINGER_S: Final = 1.0
"""How long after the program's end what it has left in the background may be silent and hold its output open."""
_ADMITTED_WITHIN_S: Final = 5.0
_SERVES_WITHIN_S: Final = 20.0
"""An ssh server imports much first."""
_LOOKS: Final = 10
LOOK_S: Final = 0.1
"""Between looks whether the replica's program has ended with what was killed."""
_MOST_ORDER: Final = 1 << 20
_MOST_ANSWER = 1 << 20


class NotAdmitted(Exception):
    """No program can be started in the replica; the message says why, for people."""


class NotStarted(NotAdmitted):
    """This program cannot be: `exit_code` is what shells give then, 127 where it is not there, else 126."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitOrder:
    """What to start: an empty `argv` is a shell; `terminal` is rows and columns, None for three pipes.

    `copy`: no program, but a copy of files (`nodeagent/shim/file_server.py`).
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    terminal: tuple[int, int] | None
    copy: Mapping[str, object] | None = None


class Output(Enum):
    """Which stream of a program; a terminal has one."""

    STANDARD = 1
    ERRORS = 2


class Visit(Protocol):
    """A program that was started in a replica.

    `sources` are to be read at the same time, each to its end: what the program writes.
    """

    @property
    def sources(self) -> Sequence[AsyncIterator[tuple[Output, bytes]]]:
        """What it writes, as it comes; ends with it, or a moment later if what it left behind is silent."""
        ...

    async def write(self, data: bytes) -> bool:
        """Give it bytes, waiting while it takes none; False once it never will."""
        ...

    async def close_input(self) -> None:
        """Its standard input has ended; not with a terminal."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """Its terminal has another size."""
        ...

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        ...

    async def ended(self) -> tuple[int | None, int | None]:
        """Wait for its end: exit code or signal; neither where it went with its replica."""
        ...


class ProcessVisit:
    """`Visit` of what a visitor started: `end` is its socket, `streams` this side of the standard streams.

    `beside` is the process of the replica's program; None: it runs in no replica.
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
            except OSError:  # of a terminal: its other end is closed
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
        """Leave: the program gets SIGHUP unless it has ended."""
        for one in {*self._outputs, *([] if self._input is None else [self._input])}:
            with suppress(OSError):
                os.close(one)
        self._end.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What an ssh server shows to clients that do not know its host key, and asks of those who are not known yet.

    Attributes:
        certificate: for its host key.
        authorized_keys: SHA-256 of each public key that may log in, in hexadecimal.
    """

    certificate: str
    authorized_keys: Sequence[str]

    def beside(self, host_key: str) -> str:
        """Both as one text: shims of earlier versions pass on the text of a host key, and nothing else."""
        return json.dumps({"host_key": host_key, **asdict(self)})


class Visits:
    """Starts programs in replicas; `boot_id` is of this boot."""

    def __init__(self, boot_id: str) -> None:
        self._boot_id = boot_id
        self._doors: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._zygote = SshZygote()

    def close(self) -> None:
        """Start nothing more; what runs goes on."""
        self._zygote.close()

    @asynccontextmanager
    async def started(self, folder: ReplicaFolder, order: VisitOrder) -> AsyncIterator[Visit]:
        """A program in a replica, while the context lasts. Raises NotAdmitted."""
        end = await self._entered(folder, PROGRAM if order.copy is None else COPY)
        async with joined(end, order) as visit:
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
        """A connection to an ssh server in a replica, which ends with the context. Raises NotAdmitted.

        `host_key` is the private half, in OpenSSH's form. In a container it is the public one, and `asking` is where the
        server asks for the rest (`nodeagent/shim/contained_ssh.py`). `login`: the server asks for it.
        """
        if login is not None:
            host_key = login.beside(host_key)
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
        """The listener that a replica's shim holds (`nodeagent/shim/loopback.py`). Raises NotAdmitted."""
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
        """The connection of a visitor that can become this. Raises NotAdmitted."""
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
        """The connection of a visitor that the shim has forked. Raises OSError, NotAdmitted."""
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
    """Whether the replica's program has ended, too: what is beside it is killed then."""
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
    """What can be read now, or a part; empty at the end. Raises BlockingIOError: nothing."""
    return os.read(descriptor, PIECE_BYTES)


def _all_there(terminal: int) -> bytes:
    """What can be read now of a terminal, which gives little at a time.

    Raises BlockingIOError: nothing. OSError: its other end is closed.
    """
    pieces = [os.read(terminal, _TERMINAL_BYTES)]
    with suppress(OSError):  # said again by the next read, which has nothing to lose
        while pieces[-1] and len(pieces) < PIECE_BYTES // _TERMINAL_BYTES:
            pieces.append(os.read(terminal, _TERMINAL_BYTES))
    return b"".join(pieces)


@asynccontextmanager
async def joined(end: socket.socket, order: VisitOrder) -> AsyncIterator[Visit]:
    """What the visitor at the other `end` starts, while the context lasts. Raises NotAdmitted."""
    try:
        visit = await _begun(end, order)
    except OSError as error:
        raise NotAdmitted(error.strerror or str(error)) from error
    try:
        yield visit
    finally:
        visit.close()


async def _begun(end: socket.socket, order: VisitOrder) -> ProcessVisit:
    """What the visitor starts. Raises OSError, NotAdmitted."""
    theirs: list[int] = []
    streams: list[int] = []
    is_begun = False
    try:
        if order.terminal is None:
            for is_input in (True, False, False):
                reads, writes = os.pipe2(os.O_CLOEXEC)
                if not is_input:
                    with suppress(OSError):  # this user has much in pipes already
                        fcntl.fcntl(reads, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
                theirs.append(reads if is_input else writes)
                streams.append(writes if is_input else reads)
        words = {
            "argv": list(order.argv),
            "env": dict(order.environment),
            "terminal": order.terminal,
            "copy": order.copy,
        }
        # one message, and the kernel's usual room for one is less than what may be asked for
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
    finally:
        for one in [*theirs, *([] if is_begun else streams)]:
            os.close(one)
        if not is_begun:
            end.close()


async def _served(
    end: socket.socket, host_key: str, stand_in: socket.socket, asking: socket.socket | None
) -> socket.socket:
    """The connection to the ssh server that the visitor becomes, or `stand_in` for it.

    Raises:
        NotAdmitted: it cannot.
        TimeoutError: it does not say so.
        OSError: this process lacks something.
    """
    ours, theirs = socket.socketpair()
    is_begun = False
    try:
        ours.setblocking(False)  # noqa: FBT003
        for one in (ours, theirs):  # else all is passed on in small pieces
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        words = {
            "ssh": {"host_key": host_key, "path": [one for one in sys.path if one.startswith("/")]},
            "env": {},
        }
        given = [one for one in (theirs, asking, stand_in) if one is not None]
        socket.send_fds(end, [json.dumps(words).encode()], [one.fileno() for one in given])
        stand_in.close()  # it learns by that when the visitor has ended
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
    """The next message and its descriptors; an empty one when the visitor is gone."""
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
