"""The service agent.program: what a client may say, and that how a program ended is said after all that it wrote."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeagent.folders import ReplicaFolder, ReplicaFolders, ReplicaId
from nodeagent.link.program_service import Programs
from nodeagent.link.services import RunningReplica
from nodeagent.runtimes.visits import NotAdmitted, NotStarted, Output, VisitOrder
from nsml.spec.frames import MOST_BYTES, Frames, framed
from nsml.v1 import sessions_pb2 as pb
from tests.support.scripted_platform import session_id

REPLICA = ReplicaId(session_id=session_id(1), attempt=1, rank=0)
SHELL = pb.ProgramRequest(start=pb.StartProgram())


class Scripted:
    """A visit whose program writes what it is told and ends when it is told."""

    def __init__(self) -> None:
        self.order: VisitOrder | None = None
        self.done: list[Any] = []
        self.takes = True
        self.reads = asyncio.Event()
        self.reads.set()
        self.written = asyncio.Queue[tuple[Output, bytes] | None]()
        self.end = asyncio.get_running_loop().create_future()
        self.is_left = False

    @property
    def sources(self) -> list[AsyncIterator[tuple[Output, bytes]]]:
        return [self._pieces()]

    async def _pieces(self) -> AsyncIterator[tuple[Output, bytes]]:
        while (one := await self.written.get()) is not None:
            yield one

    async def write(self, data: bytes) -> bool:
        await self.reads.wait()
        self.done.append(data)
        return self.takes

    async def close_input(self) -> None:
        self.done.append("closed")

    async def resize(self, rows: int, columns: int) -> None:
        self.done.append((rows, columns))

    async def signal(self, number: int) -> None:
        self.done.append(number)

    async def ended(self) -> tuple[int | None, int | None]:
        return await self.end  # type: ignore[no-any-return]

    @asynccontextmanager
    async def started(self, folder: ReplicaFolder, order: VisitOrder) -> AsyncIterator[Scripted]:
        if order.argv == ("unknown",):
            raise NotStarted("cannot start 'unknown'", 127)
        if order.argv == ("refused",):
            raise NotAdmitted("cannot start 'refused': it is not there")
        self.order = order
        try:
            yield self
        finally:
            self.is_left = True


class Client:
    """The other end of the stream: what it says, and what it is told."""

    def __init__(self) -> None:
        self._says = asyncio.Queue[bytes]()
        self._frames = Frames()
        self.told: list[pb.ProgramResponse] = []
        self.taken = 0
        self.reads = asyncio.Event()
        self.reads.set()

    def say(self, *requests: pb.ProgramRequest) -> None:
        for one in requests:
            self.say_bytes(framed(one.SerializeToString()))

    def say_bytes(self, data: bytes) -> None:
        self._says.put_nowait(data)

    async def read(self) -> bytes:
        return await self._says.get()

    async def write(self, data: bytes) -> None:
        await self.reads.wait()
        for message in self._frames.feed(data):
            response = pb.ProgramResponse.FromString(message)
            if response.WhichOneof("kind") == "taken":
                self.taken += response.taken
            else:
                self.told.append(response)


@pytest.fixture
async def visit() -> Scripted:
    return Scripted()


class Visits:
    """Lets every program in but one that is called `refused`."""

    def __init__(self, visit: Scripted) -> None:
        self._visit = visit

    @asynccontextmanager
    async def started(self, folder: ReplicaFolder, order: VisitOrder) -> AsyncIterator[Scripted]:
        if order.argv == ("unknown",):
            raise NotStarted("cannot start 'unknown'", 127)
        if order.argv == ("refused",):
            raise NotAdmitted("cannot start 'refused': it is not there")
        self._visit.order = order
        try:
            yield self._visit
        finally:
            self._visit.is_left = True


@pytest.fixture
def replica(tmp_path: Path) -> RunningReplica:
    folder = ReplicaFolders(tmp_path).of(REPLICA)
    folder.create()
    folder.spec.write_text(json.dumps({"namespace": None}))
    return RunningReplica(id=REPLICA, folder=folder)


@asynccontextmanager
async def served(
    replica: RunningReplica, visit: Scripted, client: Client
) -> AsyncIterator[asyncio.Task[None]]:
    serving = asyncio.create_task(Programs(Visits(visit)).serve(replica, client))  # type: ignore[arg-type]
    try:
        yield serving
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def until(is_so: Any) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.001)


async def test_signals_and_sizes_pass_by_what_the_program_does_not_take(
    replica: RunningReplica, visit: Scripted
) -> None:
    client = Client()
    client.say(SHELL, *[pb.ProgramRequest(input=b"x")] * 3)
    client.say(pb.ProgramRequest(signal=2), pb.ProgramRequest(input_end=True))
    visit.reads.clear()
    async with served(replica, visit, client):
        await until(lambda: visit.done == [2])
        visit.reads.set()
        await until(lambda: visit.done == [2, b"x", b"x", b"x", "closed"])


async def test_what_may_be_on_its_way_is_kept_and_no_more(
    replica: RunningReplica, visit: Scripted
) -> None:
    """So the client is always heard, whatever its program does not read."""
    client = Client()
    visit.reads.clear()
    piece = pb.ProgramRequest(input=b"x" * (128 << 10))
    client.say(SHELL, *[piece] * 8, pb.ProgramRequest(signal=2))
    async with served(replica, visit, client) as serving:
        await until(lambda: visit.done == [2])
        assert client.taken == 0
        client.say(pb.ProgramRequest(input=b"x"))
        await asyncio.wait_for(serving, 60)
    assert visit.is_left
    assert client.told[1:] == [
        pb.ProgramResponse(refused="what its client says cannot be understood")
    ]


async def test_what_a_client_says_reaches_the_program(
    replica: RunningReplica, visit: Scripted
) -> None:
    client = Client()
    start = pb.StartProgram(
        argv=["vim"], environment={"TERM": "x"}, terminal=pb.TerminalSize(rows=24, columns=80)
    )
    requests = [
        pb.ProgramRequest(start=start),
        pb.ProgramRequest(input=b"\0\xff"),
        pb.ProgramRequest(resize=pb.TerminalSize(rows=0, columns=4_000_000_000)),
        pb.ProgramRequest(signal=15),
        pb.ProgramRequest(signal=4_000_000_000),
        pb.ProgramRequest(start=start),
        pb.ProgramRequest(),
        pb.ProgramRequest(input_end=True),
        pb.ProgramRequest(input=b"too late"),
    ]
    # cut anywhere
    said = b"".join(framed(one.SerializeToString()) for one in requests)
    for at in range(0, len(said), 7):
        client.say_bytes(said[at : at + 7])
    async with served(replica, visit, client) as serving:
        await until(lambda: "closed" in visit.done)
        visit.written.put_nowait(None)
        visit.end.set_result((0, None))
        await asyncio.wait_for(serving, 60)
    assert sorted(map(str, visit.done)) == sorted(map(str, [b"\0\xff", (1, 10_000), 15, "closed"]))
    assert visit.done.index(b"\0\xff") < visit.done.index("closed")
    assert visit.order == VisitOrder(argv=("vim",), environment={"TERM": "x"}, terminal=(24, 80))


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ((7, None), pb.ProgramEnded(exit_code=7)),
        ((None, 9), pb.ProgramEnded(signal=9)),
        ((None, None), pb.ProgramEnded(is_lost=True)),
    ],
)
async def test_its_end_is_said_after_all_that_it_wrote(
    replica: RunningReplica, visit: Scripted, end: Any, said: pb.ProgramEnded
) -> None:
    client = Client()
    client.say(SHELL)
    async with served(replica, visit, client) as serving:
        await until(lambda: client.told)
        client.reads.clear()
        for one in ((Output.STANDARD, b"out"), (Output.ERRORS, b"err"), None):
            visit.written.put_nowait(one)
        visit.end.set_result(end)
        await asyncio.wait([serving], timeout=0.05)
        assert not serving.done()  # its client reads nothing
        client.reads.set()
        await asyncio.wait_for(serving, 60)
    assert client.told == [
        pb.ProgramResponse(started=True),
        pb.ProgramResponse(output=b"out"),
        pb.ProgramResponse(error_output=b"err"),
        pb.ProgramResponse(ended=said),
    ]


async def test_a_program_that_takes_nothing_more_still_ends_as_it_does(
    replica: RunningReplica, visit: Scripted
) -> None:
    client, visit.takes = Client(), False
    client.say(SHELL, *[pb.ProgramRequest(input=b"x")] * 3, pb.ProgramRequest(signal=2))
    async with served(replica, visit, client) as serving:
        await until(lambda: 2 in visit.done)
        visit.written.put_nowait(None)
        visit.end.set_result((0, None))
        await asyncio.wait_for(serving, 60)
    assert visit.done in ([b"x", 2], [2, b"x"])
    assert client.taken == 3


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (framed(b"\xff\xff"), "cannot be understood"),
        ((MOST_BYTES + 1).to_bytes(4, "big"), "cannot be understood"),
        (framed(pb.ProgramRequest(input=b"x").SerializeToString()), "does not say what to start"),
        (b"", "does not say what to start"),
        (
            framed(pb.ProgramRequest(start=pb.StartProgram(argv=["a\0b"])).SerializeToString()),
            "no program can be given this",
        ),
        (
            framed(
                pb.ProgramRequest(
                    start=pb.StartProgram(environment={"A=B": "c"})
                ).SerializeToString()
            ),
            "no program can be given this",
        ),
        (
            framed(
                pb.ProgramRequest(
                    start=pb.StartProgram(environment={f"V{n}": "" for n in range(65)})
                ).SerializeToString()
            ),
            "at most 64 variables",
        ),
        (
            framed(pb.ProgramRequest(start=pb.StartProgram(argv=["refused"])).SerializeToString()),
            "cannot start 'refused': it is not there",
        ),
    ],
)
async def test_what_cannot_be_is_refused(
    replica: RunningReplica, visit: Scripted, said: bytes, why: str
) -> None:
    client = Client()
    client.say_bytes(said)
    async with served(replica, visit, client) as serving:
        await asyncio.wait_for(serving, 60)
    [only] = client.told
    assert why in only.refused
    assert visit.order is None


async def test_a_program_that_cannot_be_started_ends_as_in_a_shell(
    replica: RunningReplica, visit: Scripted
) -> None:
    client = Client()
    client.say(pb.ProgramRequest(start=pb.StartProgram(argv=["unknown"])))
    async with served(replica, visit, client) as serving:
        await asyncio.wait_for(serving, 60)
    assert client.told == [
        pb.ProgramResponse(started=True),
        pb.ProgramResponse(error_output=b"nsml: cannot start 'unknown'\r\n"),
        pb.ProgramResponse(ended=pb.ProgramEnded(exit_code=127)),
    ]


async def test_a_client_that_speaks_nonsense_later_is_left(
    replica: RunningReplica, visit: Scripted
) -> None:
    client = Client()
    client.say(SHELL)
    async with served(replica, visit, client) as serving:
        await until(lambda: client.told)
        client.say_bytes(b"\xff" * 8)
        await asyncio.wait_for(serving, 60)
    assert visit.is_left
    assert not any(one.HasField("ended") for one in client.told)


async def test_a_replica_that_just_begins_lets_nobody_in(
    replica: RunningReplica, visit: Scripted
) -> None:
    replica.folder.spec.unlink()
    client = Client()
    client.say(SHELL)
    async with served(replica, visit, client) as serving:
        await asyncio.wait_for(serving, 60)
    assert client.told == [pb.ProgramResponse(refused="its program is just beginning")]
