"""The services agent.program and agent.node-program: start a program in a replica, or on the node.

Its output is read as fast as the client takes it, and its exit is sent after all output.
"""

from __future__ import annotations

import asyncio
import json
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nodeagent.runtimes.container_visits import ContainerVisits
from nodeagent.runtimes.node_visits import NodeVisits
from nodeagent.runtimes.visits import NotAdmitted, NotStarted, Output, VisitOrder
from nsml.common.concurrency import TaskGroup
from nsml.spec import agent_services
from nsml.spec.frames import Frames, NotFrames, framed
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from nodeagent.link.services import RunningReplica, Stream
    from nodeagent.runtimes.visits import Visit, Visits

_LAST_CELL: Final = 10_000
_MOST_VARIABLES: Final = 64


class NotAsked(ValueError):
    """The requested program cannot be started; the message gives the reason, for people."""


class NodePrograms:
    """Serves `agent.node-program` on the node of this name."""

    def __init__(self, node: str) -> None:
        self._visits = NodeVisits(node)

    async def serve(self, stream: Stream) -> None:
        """Run the program of the first message, until it has ended or the client disconnects."""
        await _serve(stream, self._started)

    async def _started(self, order: VisitOrder) -> AbstractAsyncContextManager[Visit]:
        return self._visits.started(order)


class Programs:
    """Serves `agent.program`."""

    def __init__(self, visits: Visits) -> None:
        self._visits = visits
        self._engines: dict[str, ContainerVisits] = {}

    async def serve(self, replica: RunningReplica, stream: Stream) -> None:
        """Run the program of the first message, until it has ended or the client disconnects."""
        await _serve(stream, partial(self._started, replica))

    async def _started(
        self, replica: RunningReplica, order: VisitOrder
    ) -> AbstractAsyncContextManager[Visit]:
        """Start it by the replica's shim or container engine."""
        try:
            spec = json.loads(await asyncio.to_thread(replica.folder.spec.read_bytes))
        except (OSError, ValueError) as error:
            raise NotAdmitted("its program is just beginning") from error
        plan = spec.get("container")
        if not plan:
            return self._visits.started(replica.folder, order)
        path = str(plan["socket"])
        engine = self._engines.setdefault(path, ContainerVisits(Path(path)))
        return engine.started(str(plan["name"]), order)


async def _serve(
    stream: Stream, started: Callable[[VisitOrder], Awaitable[AbstractAsyncContextManager[Visit]]]
) -> None:
    requests, refused = _requests(stream), ""
    try:
        order = _order(await anext(requests, pb.ProgramRequest()))
        async with await started(order) as visit:
            await _say(stream, pb.ProgramResponse(started=True))
            await _Attached(visit, stream).run(requests)
    except* (NotFrames, DecodeError):
        refused = "what its client says cannot be understood"
    except* NotStarted as error:
        await _say_not_started(stream, error.exceptions[0])
    except* (NotAdmitted, NotAsked) as error:
        refused = str(error.exceptions[0])
    if refused:
        await _say(stream, pb.ProgramResponse(refused=refused))


def _order(request: pb.ProgramRequest) -> VisitOrder:
    """Return the order of a request. Raises NotAsked."""
    if request.WhichOneof("kind") != "start":
        raise NotAsked("the first message does not say what to start")
    start = request.start
    if len(start.environment) > _MOST_VARIABLES:
        raise NotAsked(f"at most {_MOST_VARIABLES} variables can be given")
    words = [*start.argv, *start.environment, *start.environment.values()]
    if any("\0" in word for word in words) or any("=" in name for name in start.environment):
        raise NotAsked("no program can be given this")
    return VisitOrder(
        argv=tuple(start.argv),
        environment=dict(start.environment),
        terminal=_size(start.terminal) if start.HasField("terminal") else None,
    )


def _size(size: pb.TerminalSize) -> tuple[int, int]:
    return min(max(size.rows, 1), _LAST_CELL), min(max(size.columns, 1), _LAST_CELL)


async def _requests(stream: Stream) -> AsyncIterator[pb.ProgramRequest]:
    frames = Frames()
    while data := await stream.read():
        for message in frames.feed(data):
            yield pb.ProgramRequest.FromString(message)


async def _say(stream: Stream, response: pb.ProgramResponse) -> None:
    await stream.write(framed(response.SerializeToString()))


async def _say_not_started(stream: Stream, error: BaseException) -> None:
    """Report it like a shell: on standard error, with its exit code."""
    code = error.exit_code if isinstance(error, NotStarted) else 0
    await _say(stream, pb.ProgramResponse(started=True))
    await _say(stream, pb.ProgramResponse(error_output=f"nsml: {error}\r\n".encode()))
    await _say(stream, pb.ProgramResponse(ended=pb.ProgramEnded(exit_code=code)))


class _Attached:
    """A running program, and its client."""

    def __init__(self, visit: Visit, stream: Stream) -> None:
        self._visit = visit
        self._stream = stream
        self._input: asyncio.Queue[bytes] = asyncio.Queue()
        """Empty bytes at its end. Signals, sizes and a disconnect do not wait behind it."""
        self._ahead = 0
        self._has_all_input = False
        self._answering = asyncio.Lock()

    async def run(self, requests: AsyncIterator[pb.ProgramRequest]) -> None:
        """Relay until it has ended and all of its output is sent."""
        async with TaskGroup() as group:
            serving = [
                group.create_task(self._take(requests)),
                group.create_task(self._give_input()),
            ]
            passing = [group.create_task(self._pass_on(one)) for one in self._visit.sources]
            code, number = await self._visit.ended()
            await asyncio.gather(*passing)
            # cancelling a task in the middle of a message breaks the stream
            async with self._answering:
                for one in serving:
                    one.cancel()
        ended = pb.ProgramEnded(is_lost=True)
        if code is not None:
            ended = pb.ProgramEnded(exit_code=code)
        elif number is not None:
            ended = pb.ProgramEnded(signal=number)
        await _say(self._stream, pb.ProgramResponse(ended=ended))

    async def _pass_on(self, source: AsyncIterator[tuple[Output, bytes]]) -> None:
        async for kind, data in source:
            said = (
                pb.ProgramResponse(output=data)
                if kind is Output.STANDARD
                else pb.ProgramResponse(error_output=data)
            )
            await _say(self._stream, said)

    async def _take(self, requests: AsyncIterator[pb.ProgramRequest]) -> None:
        """Carry out the client's requests."""
        async for request in requests:
            match request.WhichOneof("kind"):
                case "input" if request.input and not self._has_all_input:
                    self._ahead += len(request.input)
                    if self._ahead > agent_services.PROGRAM_INPUT_BYTES:
                        raise NotFrames("more input than may be on its way")
                    self._input.put_nowait(request.input)
                case "input_end" if not self._has_all_input:
                    self._has_all_input = True
                    self._input.put_nowait(b"")
                case "resize":
                    await self._visit.resize(*_size(request.resize))
                case "signal" if request.signal in signal.valid_signals():
                    await self._visit.signal(request.signal)

    async def _give_input(self) -> None:
        takes = True
        while data := await self._input.get():
            takes = takes and await self._visit.write(data)
            self._ahead -= len(data)
            async with self._answering:
                await _say(self._stream, pb.ProgramResponse(taken=len(data)))
        await self._visit.close_input()
