"""Start programs in a running session or on a node, with their streams, through the control plane.

async with client.sessions.open_program("@last", ["cat"]) as program:
    await program.write(b"question")
    await program.end_input()
    async for kind, data in program.output():
        ...
    print(program.exit_code)
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from enum import Enum
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from nsml.client.errors import ClientError, ConnectionLost, StateConflict, TooLarge, Unavailable
from nsml.client.tunnels import open_agent_service, open_node_service
from nsml.spec import agent_services
from nsml.spec.frames import MOST_BYTES, Frames, NotFrames, framed
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from nsml.client.rpc import Rpc
    from nsml.client.tunnels import Tunnel

PIECE_BYTES = 240 << 10
"""Most standard input in one message."""
_SIGNALLED = 128
_DEADLINES = 3
"""Deadlines of a call within which a program begins: where many start at one time, they take turns on their node."""


class Output(Enum):
    """An output stream of a program."""

    STANDARD = 1
    ERRORS = 2


class RemoteProgram:
    """A running program. One task may read its output while another writes; all methods raise ClientError.

    `exit_code`: as in shells (128 + signal), set when `output` ends. None: not ended, or lost, for instance with its
    replica.
    """

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self._frames = Frames()
        self._came: list[pb.ProgramResponse] = []
        self._written: asyncio.Queue[pb.ProgramResponse | ClientError] = asyncio.Queue(1)
        self._ahead = 0
        self._is_taken = asyncio.Event()
        self._is_over = False
        self._speaks = asyncio.Lock()
        self.exit_code: int | None = None

    async def begin(self, start: pb.StartProgram) -> None:
        """Start it. Raises StateConflict if it cannot start; TooLarge."""
        request = pb.ProgramRequest(start=start)
        if request.ByteSize() > MOST_BYTES:
            raise TooLarge(
                "the program's arguments are too long", why=f"{MOST_BYTES >> 10} KiB is the most"
            )
        await self._say(request)
        first = await self._next()
        if first.WhichOneof("kind") == "refused":
            raise StateConflict("the program was not started", why=first.refused)
        if not first.started:
            raise ConnectionLost("the node's answer cannot be understood")

    async def write(self, data: bytes) -> None:
        """Write to its stdin; blocks until it reads. Its output must be read meanwhile."""
        for at in range(0, len(data), PIECE_BYTES):
            piece = data[at : at + PIECE_BYTES]
            while (
                self._ahead + len(piece) > agent_services.PROGRAM_INPUT_BYTES and not self._is_over
            ):
                self._is_taken.clear()
                await self._is_taken.wait()
            self._ahead += len(piece)
            await self._say(pb.ProgramRequest(input=piece))

    async def end_input(self) -> None:
        """Close its standard input."""
        await self._say(pb.ProgramRequest(input_end=True))

    async def resize(self, rows: int, columns: int) -> None:
        """Resize its terminal."""
        await self._say(
            pb.ProgramRequest(resize=pb.TerminalSize(rows=max(rows, 1), columns=max(columns, 1)))
        )

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        await self._say(pb.ProgramRequest(signal=number))

    async def output(self) -> AsyncIterator[tuple[Output, bytes]]:
        """Yield its output, to its end.

        Raises:
            ConnectionLost: the output is incomplete.
        """
        while True:
            response = await self._written.get()
            if isinstance(response, ClientError):
                raise response
            match response.WhichOneof("kind"):
                case "output":
                    yield Output.STANDARD, response.output
                case "error_output":
                    yield Output.ERRORS, response.error_output
                case "ended":
                    self.exit_code = _code(response.ended)
                    return

    async def read_on(self) -> None:
        """Receive its messages, as fast as `output` is read, until it ends or the connection breaks."""
        try:
            while not self._is_over:
                response = await self._next()
                if response.WhichOneof("kind") == "taken":
                    self._ahead -= response.taken
                    self._is_taken.set()
                    continue
                self._is_over = response.WhichOneof("kind") == "ended"
                await self._written.put(response)
        except ClientError as error:
            self._is_over = True
            self._is_taken.set()
            await self._written.put(error)
        finally:
            self._is_over = True
            self._is_taken.set()

    async def _say(self, request: pb.ProgramRequest) -> None:
        async with self._speaks:
            await self._tunnel.write(framed(request.SerializeToString()))

    async def _next(self) -> pb.ProgramResponse:
        while not self._came:
            try:
                data = await self._tunnel.read()
            except Unavailable as error:
                raise _broken() from error
            if not data:
                raise _broken()
            try:
                self._came += map(pb.ProgramResponse.FromString, self._frames.feed(data))
            except (NotFrames, DecodeError) as error:
                raise ConnectionLost("the node's answer cannot be understood") from error
        return self._came.pop(0)


def _broken() -> ConnectionLost:
    return ConnectionLost(
        "the connection to the program broke", why="whether it still runs is unknown"
    )


def _code(ended: pb.ProgramEnded) -> int | None:
    match ended.WhichOneof("how"):
        case "exit_code":
            return ended.exit_code
        case "signal":
            return _SIGNALLED + ended.signal
    return None


@asynccontextmanager
async def open_program(
    rpc: Rpc,
    reference: str,
    argv: Sequence[str],
    *,
    rank: int = 0,
    environment: Mapping[str, str] | None = None,
    terminal: tuple[int, int] | None = None,
) -> AsyncIterator[RemoteProgram]:
    """Start a program in a replica; if it outlives the context, it gets SIGHUP.

    An empty `argv` is a shell; `terminal` is rows and columns of its terminal, None for three pipes.

    Raises:
        StateConflict: it cannot be started.
        ConnectionLost: it is unknown whether it started.
        ClientError: as `nsml.client.tunnels.open_tunnel`.
    """
    opening = open_agent_service(
        rpc, reference, agent_services.PROGRAM, rank=rank, what="programs in sessions"
    )
    start = _start_of(argv, environment, terminal)
    async with opening as tunnel, _started(tunnel, start, _DEADLINES * rpc.deadline_s) as program:
        yield program


@asynccontextmanager
async def open_node_program(
    rpc: Rpc,
    node: str,
    argv: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    terminal: tuple[int, int] | None = None,
) -> AsyncIterator[RemoteProgram]:
    """As `open_program`, on a node itself, as its agent's account; all its child processes end with the context.

    Raises:
        StateConflict: it cannot be started.
        ConnectionLost: it is unknown whether it started.
        ClientError: as `nsml.client.tunnels.open_node_service`.
    """
    opening = open_node_service(rpc, node, agent_services.NODE_PROGRAM, what="programs on nodes")
    start = _start_of(argv, environment, terminal)
    async with opening as tunnel, _started(tunnel, start, _DEADLINES * rpc.deadline_s) as program:
        yield program


def _start_of(
    argv: Sequence[str], environment: Mapping[str, str] | None, terminal: tuple[int, int] | None
) -> pb.StartProgram:
    start = pb.StartProgram(argv=argv, environment=environment or {})
    if terminal is not None:
        start.terminal.rows, start.terminal.columns = (max(one, 1) for one in terminal)
    return start


@asynccontextmanager
async def _started(
    tunnel: Tunnel, start: pb.StartProgram, within_s: float
) -> AsyncIterator[RemoteProgram]:
    program = RemoteProgram(tunnel)
    try:
        async with asyncio.timeout(within_s):
            await program.begin(start)
    except TimeoutError as error:
        raise ConnectionLost("the node did not answer in time") from error
    reading = asyncio.create_task(program.read_on())
    try:
        yield program
    finally:
        reading.cancel()
