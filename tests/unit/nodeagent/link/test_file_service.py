"""The service agent.files: what may be asked for, and that each side waits for the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.folders import ReplicaFolder, ReplicaFolders, ReplicaId
from nodeagent.link.file_service import Files
from nodeagent.link.services import RunningReplica
from nodeagent.runtimes.visits import NotAdmitted, Output, VisitOrder
from nsml.spec.frames import Frames, framed
from nsml.v1 import sessions_pb2 as pb
from tests.support.scripted_platform import session_id

REPLICA = ReplicaId(session_id=session_id(1), attempt=1, rank=0)
OUT = pb.FilesRequest(path=b"/a/\xff", sends=True)


class Server:
    """The process in the replica: what it is given, and what it says."""

    def __init__(self) -> None:
        self.order: VisitOrder | None = None
        self.refusal = ""
        self.given = b""
        self.takes = asyncio.Event()
        self.takes.set()
        self.says = asyncio.Queue[tuple[Output, bytes] | None]()
        self.end = asyncio.Event()
        self.input_is_closed = asyncio.Event()
        self.is_left = False

    @property
    def sources(self) -> list[AsyncIterator[tuple[Output, bytes]]]:
        return [self._pieces()]

    async def _pieces(self) -> AsyncIterator[tuple[Output, bytes]]:
        while (one := await self.says.get()) is not None:
            yield one

    async def write(self, data: bytes) -> bool:
        await self.takes.wait()
        self.given += data
        return True

    async def close_input(self) -> None:
        self.input_is_closed.set()

    async def ended(self) -> tuple[int | None, int | None]:
        await self.end.wait()
        return 0, None

    @asynccontextmanager
    async def started(self, folder: ReplicaFolder, order: VisitOrder) -> AsyncIterator[Server]:
        if self.refusal:
            raise NotAdmitted(self.refusal)
        self.order = order
        try:
            yield self
        finally:
            self.is_left = True

    def finish(self) -> None:
        self.says.put_nowait(None)
        self.end.set()


class Client:
    """The other end of the stream."""

    def __init__(self, *said: bytes) -> None:
        self._says = asyncio.Queue[bytes](4)
        for one in said:
            self._says.put_nowait(one)
        self.told = b""
        self.reads = asyncio.Event()
        self.reads.set()
        self.say = self._says.put

    async def read(self) -> bytes:
        return await self._says.get()

    async def write(self, data: bytes) -> None:
        await self.reads.wait()
        self.told += data


@pytest.fixture
async def server() -> Server:
    return Server()


@asynccontextmanager
async def served(
    tmp_path: Path, server: Server, client: Client
) -> AsyncIterator[asyncio.Task[None]]:
    replica = RunningReplica(id=REPLICA, folder=ReplicaFolders(tmp_path).of(REPLICA))
    serving = asyncio.create_task(Files(server).serve(replica, client))  # type: ignore[arg-type]
    try:
        yield serving
    finally:
        serving.cancel()
        await asyncio.wait([serving])


def request(one: pb.FilesRequest) -> bytes:
    return framed(one.SerializeToString())


STARTED = framed(pb.FilesResponse(started=True).SerializeToString())


async def until(is_so: object) -> None:
    assert callable(is_so)
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.001)


async def test_both_are_joined_until_the_process_ends(tmp_path: Path, server: Server) -> None:
    said = request(OUT)
    client = Client(said[:3], said[3:], b"question")
    async with served(tmp_path, server, client) as serving:
        await until(lambda: server.given == b"question")
        server.says.put_nowait((Output.STANDARD, b"answer"))
        server.says.put_nowait((Output.ERRORS, b"a traceback that is nobody's"))
        await until(lambda: client.told.endswith(b"answer"))
        await client.say(b"")
        await asyncio.wait_for(server.input_is_closed.wait(), 60)
        server.finish()
        await asyncio.wait_for(serving, 60)
    assert client.told == STARTED + b"answer"
    assert server.order == VisitOrder(
        argv=(),
        environment={},
        terminal=None,
        copy={"path": "/a/\udcff", "sends": True, "name": "", "keeps_in_step": False},
    )
    assert server.is_left


async def test_each_side_waits_for_the_other(tmp_path: Path, server: Server) -> None:
    client = Client(request(OUT))
    async with served(tmp_path, server, client) as serving:
        await until(lambda: client.told == STARTED)
        client.reads.clear()
        server.takes.clear()
        for _ in range(3):
            server.says.put_nowait((Output.STANDARD, b"x"))
        for _ in range(5):
            await client.say(b"y")  # the fifth one where one was taken
        server.finish()
        await asyncio.wait([serving], timeout=0.05)
        assert not serving.done()
        assert (client.told, server.given) == (STARTED, b"")
        client.reads.set()
        await asyncio.wait_for(serving, 60)
    assert client.told == STARTED + b"xxx"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "cannot be understood"),
        (framed(b"\xff\xff"), "cannot be understood"),
        (b"\xff" * 8, "cannot be understood"),
        (request(OUT) + b"more", "cannot be understood"),
        (request(pb.FilesRequest(sends=True)), "1 to 4096 bytes"),
        (request(pb.FilesRequest(path=b"x" * 4097)), "1 to 4096 bytes"),
        (request(pb.FilesRequest(path=b"a\0b")), "1 to 4096 bytes"),
        *(
            (request(pb.FilesRequest(path=b"a", name=name)), "cannot be called so")
            for name in (b"..", b".", b"a/b", b"a\0b", b"x" * 256)
        ),
    ],
)
async def test_what_cannot_be_is_refused(
    tmp_path: Path, server: Server, said: bytes, why: str
) -> None:
    client = Client(said)
    async with served(tmp_path, server, client) as serving:
        await asyncio.wait_for(serving, 60)
    [only] = Frames().feed(client.told)
    assert why in pb.FilesResponse.FromString(only).refused
    assert server.order is None


async def test_who_lets_nobody_in_says_why(tmp_path: Path, server: Server) -> None:
    server.refusal = "its program does not run here"
    client = Client(request(OUT))
    async with served(tmp_path, server, client) as serving:
        await asyncio.wait_for(serving, 60)
    [only] = Frames().feed(client.told)
    assert pb.FilesResponse.FromString(only).refused == server.refusal


async def test_a_client_that_leaves_ends_it(tmp_path: Path, server: Server) -> None:
    client = Client(request(OUT))
    async with served(tmp_path, server, client):
        await until(lambda: client.told == STARTED)
    assert server.is_left
