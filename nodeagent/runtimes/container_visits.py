"""Visits to containers: programs started in them by their engine (`docker exec`).

An engine applies a container's seccomp filter and limits to them, and ends them with the container. The rest
is done here: a program whose client disconnects gets SIGHUP, signals reach its process group, and its result
is polled until it is known.

While the output of an ended program is unread, Docker starts no other program in its container and does not end that.
So it is read as soon as the program has ended, however slow its client is.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
from collections import deque
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nodeagent.engine.client import Engine, EngineError, NotThere, translated
from nodeagent.runtimes.visits import (
    BEGIN_AT_ONCE,
    LOOK_S,
    PIECE_BYTES,
    NotAdmitted,
    NotStarted,
    Output,
)
from nodeagent.shim.client_program import NOT_EXECUTABLE, NOT_THERE
from nodeagent.shim.files import content_of
from nodeagent.shim.keeper import has_ended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from nodeagent.runtimes.visits import VisitOrder

# runc's Go runtime now and then leaves a program that enters a container with the hard limit of open files as its soft
# one (opencontainers/runc#4195): it takes that of the container's first program again.
_AS_THE_FIRST: Final = r"""
while read -r a b c most _; do
  [ "$a $b $c" = "Max open files" ] && ulimit -S -n "$most"
done < /proc/1/limits 2> /dev/null
"""
_SHELL_SCRIPT: Final = rf"""{_AS_THE_FIRST}
place="$NSML_SESSION_NAME:$NSML_RANK"
export PS1 SHELL
SHELL=$(command -v bash) && PS1="$place \\w $ " && exec bash
SHELL=/bin/sh PS1="$place $ "
exec sh
"""
_COMMAND_SCRIPT: Final = rf"""{_AS_THE_FIRST}
export SHELL
SHELL=$(command -v bash) && exec bash -c "$1"
SHELL=/bin/sh
exec sh -c "$1"
"""
_GONE: Final = "its program does not run here"
_HEADER: Final = struct.Struct(">BxxxI")
"""Before each piece without a terminal: stream, and number of bytes."""
_BEGUN_WITHIN_S: Final = 10.0
_ENDED_WITHIN_S: Final = 5.0
_ASKS_EVERY_S: Final = 0.02
_SIGNALLED: Final = 128
_MOST_HEAD: Final = 64 << 10
_MOST_KEPT: Final = 256 << 10
"""Most buffered output while the program runs."""
_MOST_BEYOND: Final = 16 << 20
"""Most bytes read beyond that after its end: its background processes may write without end."""
_LOOKS_EVERY_S: Final = 0.2
_LOOKS: Final = 5


def shell_argv(command: str | None) -> Sequence[str]:
    """Return the command of a container's shell, to read its input, or to run a command line."""
    if command is None:
        return "/bin/sh", "-c", _SHELL_SCRIPT
    return "/bin/sh", "-c", _COMMAND_SCRIPT, "sh", command


class ContainerVisits:
    """Starts programs in containers of one engine."""

    def __init__(self, socket: Path) -> None:
        self._engine = Engine(socket)
        self._beginning = asyncio.Semaphore(BEGIN_AT_ONCE)

    @asynccontextmanager
    async def started(self, container: str, order: VisitOrder) -> AsyncIterator[ContainerVisit]:
        """Start a program in a container while the context lasts. Raises NotAdmitted."""
        async with AsyncExitStack() as ends:
            async with self._beginning:
                visit = await self._visit(container, order)
                ends.push_async_callback(visit.close)
                await visit.begin(order)
            yield visit

    async def _visit(self, container: str, order: VisitOrder) -> ContainerVisit:
        """Return a program that is about to begin. Raises NotAdmitted."""
        has_terminal = order.terminal is not None
        try:
            made = await asyncio.to_thread(self._made, container, order)
            streams = await _attached(self._engine, made, has_terminal=has_terminal)
        except NotThere as error:
            raise NotAdmitted(_GONE) from error
        except (EngineError, OSError) as error:
            raise NotAdmitted(str(error)) from error
        return ContainerVisit(self._engine, made, *streams, has_terminal=has_terminal)

    def _made(self, container: str, order: VisitOrder) -> str:
        """Return the engine's id of a program not started yet. Raises EngineError."""
        sdk = self._engine.sdk
        with translated(self._engine.socket):
            made: dict[str, Any] = sdk.api.exec_create(
                container,
                list(order.argv or shell_argv(None)),
                stdin=True,
                tty=order.terminal is not None,
                environment=dict(order.environment),
            )
        return str(made["Id"])


async def _attached(
    engine: Engine, made: str, *, has_terminal: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Start it, and attach to its streams. Raises OSError, NotAdmitted."""
    reader, writer = await asyncio.open_unix_connection(str(engine.socket), limit=PIECE_BYTES)
    body = json.dumps({"Detach": False, "Tty": has_terminal}).encode()
    head = (
        f"POST /v{engine.sdk.api.api_version}/exec/{made}/start HTTP/1.1\r\nHost: engine\r\n"
        "Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    try:
        writer.write(head.encode() + body)
        await _check_answer(reader)
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


async def _check_answer(reader: asyncio.StreamReader) -> None:
    """Read the head of the answer. Raises NotAdmitted with the engine's reason for a refusal."""
    try:
        answer = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise NotAdmitted("its engine does not answer") from error
    if not answer.startswith((b"HTTP/1.1 101", b"HTTP/1.1 200")):
        reason = (await reader.read(_MOST_HEAD)).decode(errors="replace")
        with suppress(ValueError, KeyError, TypeError):
            reason = json.loads(reason)["message"]
        raise NotAdmitted(reason.strip() or "its engine does not start anything in it")


class ContainerVisit:
    """`Visit` of a program started by the engine."""

    def __init__(
        self,
        engine: Engine,
        made: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        has_terminal: bool,
    ) -> None:
        self._engine = engine
        self._made = made
        self._reader = reader
        self._writer = writer
        self._has_terminal = has_terminal
        self._process: int | None = None
        self._is_found = False
        self.inner_pid: int | None = None
        """Its pid in the container; None if unknown."""
        self._kept: deque[tuple[Output, bytes]] = deque()
        self._kept_bytes = 0
        self._changed = asyncio.Event()
        self._is_read = False
        self._is_cut = False
        self._is_over = False
        self._reading = asyncio.create_task(self._read())

    async def begin(self, order: VisitOrder) -> None:
        """Wait until it has begun: earlier signals would be lost. Raises NotAdmitted."""
        facts = await self._find()
        if not facts:
            raise NotAdmitted(_GONE)
        if not facts.get("Pid"):
            raise await self._why_not(order)
        if order.terminal is not None:
            await self.resize(*order.terminal)

    async def _find(self) -> Mapping[str, Any]:
        """Wait until the engine has started it, or failed; return its facts."""
        # it answers before the start, and reports until then that nothing runs
        facts = await self._facts_once(
            lambda facts: bool(facts.get("Pid")) or not facts or facts.get("ExitCode") is not None,
            _BEGUN_WITHIN_S,
        )
        self._is_found = True
        if facts.get("Pid"):
            self._process = _process_of(facts)
        if self._process is not None:
            self.inner_pid = _inner_pid(int(facts["Pid"]))
        return facts

    async def _why_not(self, order: VisitOrder) -> NotStarted:
        """Read the engine's reason, sent as output of the program."""
        said = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDED_WITHIN_S):
                async for _, data in self._pieces():
                    said = (said + data)[:_MOST_HEAD]
        what = f"cannot start {order.argv[0]!r}" if order.argv else "there is no shell"
        reason = said.decode(errors="replace").strip().removesuffix(": unknown")
        code = NOT_THERE if "not found" in reason or "no such file" in reason else NOT_EXECUTABLE
        return NotStarted(f"{what}: {reason.rpartition(': ')[2]}" if reason else what, code)

    @property
    def sources(self) -> Sequence[AsyncIterator[tuple[Output, bytes]]]:
        """See `Visit`."""
        return [self._pieces()]

    async def _pieces(self) -> AsyncIterator[tuple[Output, bytes]]:
        while True:
            while self._kept:
                kind, data = self._kept.popleft()
                self._kept_bytes -= len(data)
                self._note()
                yield kind, data
            if self._is_read:
                return
            await self._changed.wait()

    async def _read(self) -> None:
        """Read from the engine as fast as the client does; all of it once the program has ended."""
        beyond = 0
        try:
            async for kind, data in self._engines():
                if await self._is_unwanted():
                    beyond += len(data)
                    if beyond > _MOST_BEYOND:
                        self._is_cut = True
                        self._writer.transport.abort()
                        return
                self._kept.append((kind, data))
                self._kept_bytes += len(data)
                self._note()
        except asyncio.IncompleteReadError as end:
            self._is_cut = bool(end.partial)
        except OSError:
            self._is_cut = True
        finally:
            self._is_read = True
            self._note()

    async def _engines(self) -> AsyncIterator[tuple[Output, bytes]]:
        """Yield output from the engine. Raises OSError, IncompleteReadError at its end."""
        if self._has_terminal:
            while data := await self._reader.read(PIECE_BYTES):
                yield Output.STANDARD, data
            return
        while True:
            kind, size = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            output = Output.ERRORS if kind == Output.ERRORS.value else Output.STANDARD
            while size:
                data = await self._reader.read(min(size, PIECE_BYTES))
                if not data:
                    raise ConnectionResetError("the engine's stream broke")
                size -= len(data)
                yield output, data

    async def _is_unwanted(self) -> bool:
        """Wait for room in the buffer; True if the program has ended before that."""
        while self._kept_bytes >= _MOST_KEPT:
            if await self._has_ended():
                return True
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOKS_EVERY_S):
                    await self._changed.wait()
        return False

    async def _has_ended(self) -> bool:
        if self._process is None:
            return not (await self._facts()).get("Running")
        return has_ended(self._process)

    def _note(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def write(self, data: bytes) -> bool:
        """See `Visit`."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError:
            return False
        return True

    async def close_input(self) -> None:
        """See `Visit`."""
        with suppress(OSError, RuntimeError):
            if not self._has_terminal:
                self._writer.write_eof()

    async def resize(self, rows: int, columns: int) -> None:
        """See `Visit`."""
        if self._has_terminal:
            sdk = self._engine.sdk

            def ask() -> None:
                with suppress(EngineError), translated(self._engine.socket):
                    sdk.api.exec_resize(self._made, height=rows, width=columns)

            await asyncio.to_thread(ask)

    async def signal(self, number: int) -> None:
        """See `Visit`; no effect if the engine's processes are not visible."""
        if self._process is not None:
            await self._signal(number)

    async def _signal(self, *numbers: int) -> None:
        facts = await self._facts()
        if facts.get("Running"):
            with suppress(OSError, ValueError):
                # the engine makes each a group leader
                for number in numbers:
                    os.killpg(int(facts["Pid"]), number)

    async def ended(self) -> tuple[int | None, int | None]:
        """See `Visit`."""
        while not self._is_read:
            await self._changed.wait()
        if self._is_cut:
            return None, None
        facts = await self._facts_once(lambda facts: not facts.get("Running"), _ENDED_WITHIN_S)
        self._is_over = True
        code = facts.get("ExitCode")
        if facts.get("Running") or code is None:
            return None, None
        number = code - _SIGNALLED
        if number == signal.SIGKILL and await self._is_alone(str(facts.get("ContainerID"))):
            return None, None
        if number > 0 and number in signal.valid_signals():
            return None, number
        return code, None

    async def _is_alone(self, container: str) -> bool:
        """Whether its container has ended, which ends all of its processes."""
        sdk = self._engine.sdk

        def runs() -> bool:
            try:
                with translated(self._engine.socket):
                    return bool(sdk.api.inspect_container(container)["State"]["Running"])
            except EngineError:
                return False

        for _ in range(_LOOKS):
            if not await asyncio.to_thread(runs):
                return True
            await asyncio.sleep(LOOK_S)
        return False

    async def close(self) -> None:
        """Disconnect: the program gets SIGHUP unless it has ended."""
        try:
            if not self._is_over:
                await asyncio.shield(self._hang_up())
        finally:
            self._reading.cancel()
            self._writer.transport.abort()
            if self._process is not None:
                os.close(self._process)
                self._process = None

    async def _hang_up(self) -> None:
        if not self._is_found:
            await self._find()  # its client disconnected before it began
        if self._process is not None:
            # a stopped process handles it only after SIGCONT
            await self._signal(signal.SIGHUP, signal.SIGCONT)

    async def _facts_once(
        self, is_so: Callable[[Mapping[str, Any]], bool], within_s: float
    ) -> Mapping[str, Any]:
        """Poll the engine's facts until `is_so`, or a timeout; return the last ones."""
        facts = await self._facts()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not is_so(facts):
                    await asyncio.sleep(_ASKS_EVERY_S)
                    facts = await self._facts()
        return facts

    async def _facts(self) -> Mapping[str, Any]:
        sdk = self._engine.sdk

        def ask() -> Mapping[str, Any]:
            try:
                with translated(self._engine.socket):
                    return sdk.api.exec_inspect(self._made)  # type: ignore[no-any-return]
            except EngineError:
                return {}  # it was removed with its container

        return await asyncio.to_thread(ask)


def _inner_pid(pid: int) -> int | None:
    """Return a process's pid in the innermost namespace."""
    with suppress(OSError):  # it has just ended
        for line in content_of(f"/proc/{pid}/status").split(b"\n"):
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
    return None


def _process_of(facts: Mapping[str, Any]) -> int | None:
    """Return a pidfd of the engine's process; None if its pid is not valid here, or it has ended."""
    try:
        found = os.pidfd_open(int(facts["Pid"]))
    except (OSError, ValueError, KeyError):
        return None
    with suppress(OSError):  # it has just ended
        group = content_of(f"/proc/{facts['Pid']}/cgroup")
        if str(facts.get("ContainerID") or "-").encode() in group:
            return found
    os.close(found)
    return None
