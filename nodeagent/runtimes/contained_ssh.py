"""The agent's side of requests of an ssh server in a container (`nodeagent/shim/contained_ssh.py`).

The server runs among the session's processes, so its requests are checked, and give only what the session's
owner can have anyway: programs in this one container, and signatures with this one host key.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import os
import signal
import socket
from collections import Counter
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeagent.runtimes.container_visits import ContainerVisits, shell_argv
from nodeagent.runtimes.visits import PIECE_BYTES, NotAdmitted, NotStarted, Output, VisitOrder
from nodeagent.shim.client_program import NOT_EXECUTABLE
from nodeagent.shim.contained_ssh import MOST_MESSAGE
from nsml.common.concurrency import TaskGroup, beside_each_other

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from nodeagent.folders import ReplicaFolder
    from nodeagent.runtimes.container_visits import ContainerVisit
    from nodeagent.runtimes.visits import Login, Visit, Visits

    Start = Callable[[VisitOrder], AbstractAsyncContextManager[ContainerVisit]]
    Sign = Callable[[bytes], bytes]

MOST_OF_CONNECTION: Final = 64
MOST_OF_CONTAINER: Final = 128
MOST_OF_NODE: Final = 512
"""Programs at once: each costs the agent some descriptors."""
_MOST_VARIABLES: Final = 80
_MOST_SIGNED: Final = 4096
_MOST_SAID: Final = 4096
_LAST_CELL: Final = 10_000
_PIPE_BYTES: Final = 256 << 10
_MOST_SIGNALS: Final = 64
"""Signals queued for a program."""
_SIGNALLED: Final = 128


class _NotUnderstood(ValueError):
    """The server's message is invalid."""


class Room:
    """Number of programs of all servers of an agent, by container."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()

    def refusal(self, container: str) -> str:
        """Return why no more can be started there, or ""."""
        if self._running[container] >= MOST_OF_CONTAINER:
            return f"{MOST_OF_CONTAINER} programs run for ssh in this replica already"
        if self._running.total() >= MOST_OF_NODE:
            return f"{MOST_OF_NODE} programs run for ssh on its node already"
        return ""

    def take(self, container: str) -> None:
        """Count one more."""
        self._running[container] += 1

    def leave(self, container: str) -> None:
        """Count one less."""
        self._running[container] -= 1
        if not self._running[container]:
            del self._running[container]


@asynccontextmanager
async def server(
    visits: Visits,
    folder: ReplicaFolder,
    plan: Mapping[str, Any],
    host_key: Ed25519PrivateKey,
    room: Room,
    *,
    login: Login | None = None,
) -> AsyncIterator[socket.socket]:
    """Connect to an ssh server in a replica's container, while the context lasts. Raises NotAdmitted.

    `plan` names the container and its engine; `login` is as for `Visits.ssh_server`.
    """
    container = str(plan["name"])
    start = partial(ContainerVisits(Path(plan["socket"])).started, container)
    public = host_key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        async with (
            beside_each_other() as group,
            visits.ssh_server(folder, public.decode(), theirs, login=login) as connection,
        ):
            theirs.close()
            serving = group.create_task(serve(ours, container, start, host_key.sign, room))
            yield connection
            serving.cancel()


async def serve(
    asking: socket.socket, container: str, start: Start, sign: Sign, room: Room
) -> None:
    """Answer the server at the other end until it is gone, or sends an invalid message; then its programs get SIGHUP.

    Closes `asking`. `start` may raise NotAdmitted.
    """
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()
    asking.setblocking(False)  # noqa: FBT003
    with asking:
        async with TaskGroup() as group:
            with suppress(OSError, _NotUnderstood):
                while message := await loop.sock_recv(asking, MOST_MESSAGE):
                    words = _words(message)
                    refusal = room.refusal(container)
                    if len(running) >= MOST_OF_CONNECTION:
                        refusal = f"{MOST_OF_CONNECTION} programs run already"
                    if "sign" in words:
                        _tell(asking, {"signature": _signature(words["sign"], sign)})
                    elif refusal:
                        _tell(asking, {"failed": refusal})
                    else:
                        order = _order(words)
                        program = _Program(asking, has_terminal=order.terminal is not None)
                        room.take(container)
                        task = group.create_task(program.run(order, start))
                        running.add(task)
                        task.add_done_callback(running.discard)
                        task.add_done_callback(lambda _: room.leave(container))
                    await asyncio.sleep(0)  # so that others run, too
            for one in running:
                one.cancel()


def _words(message: bytes) -> dict[str, Any]:
    try:
        words = json.loads(message)
    except ValueError as error:
        raise _NotUnderstood(str(error)) from error
    if not isinstance(words, dict):
        raise _NotUnderstood("no object")
    return words


def _signature(data: object, sign: Sign) -> str:
    try:
        asked = base64.b64decode(str(data), validate=True)
    except ValueError as error:
        raise _NotUnderstood(str(error)) from error
    if len(asked) > _MOST_SIGNED:
        raise _NotUnderstood("too much to sign")
    return base64.b64encode(sign(asked)).decode("ascii")


def _order(words: dict[str, Any]) -> VisitOrder:
    """Return the program to start. Raises _NotUnderstood."""
    argv, command, environment = words.get("argv"), words.get("command"), words.get("env")
    if argv is None:
        if not isinstance(command, str | None):
            raise _NotUnderstood("no command")
        argv = shell_argv(command)
    if not isinstance(argv, list | tuple) or not isinstance(environment, dict):
        raise _NotUnderstood("no program")
    texts = [*argv, *environment, *environment.values()]
    if not all(isinstance(one, str) and "\0" not in one for one in texts):
        raise _NotUnderstood("no texts")
    if len(environment) > _MOST_VARIABLES or any("=" in name or not name for name in environment):
        raise _NotUnderstood("no variables")
    size = words.get("terminal")
    return VisitOrder(
        argv=tuple(argv), environment=environment, terminal=None if size is None else _size(size)
    )


def _size(size: object) -> tuple[int, int]:
    """Return rows and columns. Raises _NotUnderstood."""
    match size:
        case [int(rows), int(columns)]:
            return min(max(rows, 1), _LAST_CELL), min(max(columns, 1), _LAST_CELL)
    raise _NotUnderstood("no size")


def _tell(end: socket.socket, words: dict[str, Any], given: Sequence[int] = ()) -> None:
    """Send a message. Raises OSError: the other end is gone, or its buffer full."""
    socket.send_fds(end, [json.dumps(words).encode()], given)


class _Program:
    """A requested program; the server gets its ends of the streams at once."""

    def __init__(self, asking: socket.socket, *, has_terminal: bool) -> None:
        """Raises OSError."""
        self._end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._end.setblocking(False)  # noqa: FBT003
        given: Sequence[int] = ()
        self._open: set[int] = set()
        try:
            with theirs:
                ours, given = _terminal() if has_terminal else _pipes()
                self._open.update(ours)
                _tell(asking, {"begins": True}, [theirs.fileno(), *given])
        except BaseException:
            self._close()
            raise
        finally:
            for one in given:
                os.close(one)
        self._has_terminal = has_terminal
        self._input, *outputs = ours
        self._outputs = dict(zip(Output, outputs or ours, strict=False))
        self._size: tuple[int, int] | None = None
        self._signals: list[int] = []
        self._is_asked = asyncio.Event()

    async def run(self, order: VisitOrder, start: Start) -> None:
        """Run until it has ended, or the server disconnects."""
        try:
            async with TaskGroup() as group:
                running = group.create_task(self._run(order, start))
                listening = group.create_task(self._listen())
                await asyncio.wait([running, listening], return_when=asyncio.FIRST_COMPLETED)
                running.cancel()
                listening.cancel()
        finally:
            self._close()

    async def _run(self, order: VisitOrder, start: Start) -> None:
        said: dict[str, Any] = {"lost": True}
        try:
            async with start(order) as visit:
                with suppress(OSError):
                    _tell(self._end, {"pid": visit.inner_pid})
                said = await self._joined(visit)
        except* NotStarted as errors:
            [error] = errors.exceptions
            code = error.exit_code if isinstance(error, NotStarted) else NOT_EXECUTABLE
            said = {"failed": str(error), "code": code}
        except* NotAdmitted as errors:
            said = {"failed": str(errors.exceptions[0]), "code": NOT_EXECUTABLE}
        for one in tuple(self._open):  # the end of its output comes before its exit status
            self._let_go(one)
        with suppress(OSError):
            _tell(self._end, said)

    async def _joined(self, visit: Visit) -> dict[str, Any]:
        """Relay both ways until it has ended and all output is sent; return how it ended."""
        async with TaskGroup() as group:
            beside = [group.create_task(self._give(visit)), group.create_task(self._obey(visit))]
            passing = [group.create_task(self._pass_on(one)) for one in visit.sources]
            code, number = await visit.ended()
            await asyncio.gather(*passing)
            for one in beside:
                one.cancel()
        if number is not None:
            # the engine reports signals so, and a program may have exited with it
            return {"code": _SIGNALLED + number}
        return {"lost": True} if code is None else {"code": code}

    async def _give(self, visit: Visit) -> None:
        takes = True
        while takes and (data := await _read(self._input)):
            takes = await visit.write(data)
            await asyncio.sleep(0)  # so that others run, too
        if takes:
            await visit.close_input()
        elif not self._has_terminal:
            self._let_go(self._input)  # the server notices that it reads no more

    async def _pass_on(self, source: AsyncIterator[tuple[Output, bytes]]) -> None:
        async for kind, data in source:
            await _write(self._outputs[kind], data)

    async def _listen(self) -> None:
        """Receive the server's requests, until it disconnects."""
        loop = asyncio.get_running_loop()
        with suppress(OSError, _NotUnderstood):
            while message := await loop.sock_recv(self._end, _MOST_SAID):
                words = _words(message)
                if "size" in words:
                    self._size = _size(words["size"])
                elif words.get("signal") in signal.valid_signals():
                    self._signals = [*self._signals, words["signal"]][:_MOST_SIGNALS]
                self._is_asked.set()
                await asyncio.sleep(0)

    async def _obey(self, visit: Visit) -> None:
        """Carry out the server's requests; only the last size counts."""
        while True:
            await self._is_asked.wait()
            self._is_asked.clear()
            size, self._size = self._size, None
            signals, self._signals = self._signals, []
            if size is not None:
                await visit.resize(*size)
            for number in signals:
                await visit.signal(number)

    def _let_go(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._open.discard(descriptor)
            os.close(descriptor)

    def _close(self) -> None:
        for one in tuple(self._open):
            self._let_go(one)
        self._end.close()


def _terminal() -> tuple[list[int], list[int]]:
    """Return our end of a terminal's stream, and the server's. Raises OSError."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)  # noqa: FBT003
    return [ours.detach()], [theirs.detach()]


def _pipes() -> tuple[list[int], list[int]]:
    """Return our ends of a program's input, output and errors, and the server's. Raises OSError."""
    ours: list[int] = []
    theirs: list[int] = []
    try:
        for is_input in (True, False, False):
            reads, writes = os.pipe2(os.O_CLOEXEC)
            ours.append(reads if is_input else writes)
            theirs.append(writes if is_input else reads)
            os.set_blocking(ours[-1], False)
            with suppress(OSError):  # this user's pipes use much memory already
                fcntl.fcntl(reads, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        for one in (*ours, *theirs):
            os.close(one)
        raise
    return ours, theirs


async def _read(descriptor: int) -> bytes:
    """Read some bytes; empty at the end."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return os.read(descriptor, PIECE_BYTES)
        except BlockingIOError:
            await _ready(descriptor, loop.add_reader, loop.remove_reader)
        except OSError:
            return b""


async def _write(descriptor: int, data: bytes) -> None:
    """Write all, or until the server has closed its end."""
    loop, rest = asyncio.get_running_loop(), memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            await _ready(descriptor, loop.add_writer, loop.remove_writer)
        except OSError:
            return


async def _ready(
    descriptor: int, add: Callable[..., object], remove: Callable[[int], object]
) -> None:
    ready = asyncio.Event()
    add(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        remove(descriptor)
