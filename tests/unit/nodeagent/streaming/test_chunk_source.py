"""Fetches of chunks: one for all who wait, and none for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from nodeagent.peers.sources import ChunkLocation
from nodeagent.storage.other_sources import OtherSources
from nodeagent.streaming.chunk_cache import ChunkCache
from nodeagent.streaming.chunk_source import ChunkSource
from nodeagent.streaming.index import Chunk
from nsml.client.errors import Unavailable
from nsml.client.rpc import Rpc
from nsml.common.clock import in_thread
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef
from nsml.v1 import content_pb2

DATA = [bytes([number]) * 100 for number in range(4)]
CHUNKS = [Chunk(100 * at, 100, digest_of(one)) for at, one in enumerate(DATA)]


class Held:
    """A platform that answers once it is let: `asked` are the digests of each call, `open` the calls under way."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.asked: list[list[str]] = []
        self.open = 0
        self.is_away = False

    async def stream(self, _: str, request: Any, __: Any) -> AsyncIterator[Any]:
        self.asked.append(list(request.digests))
        self.open += 1
        try:
            await self.may_answer.wait()
            if self.is_away:
                self.is_away = False
                raise Unavailable("away")
            for digest in request.digests:
                (data,) = [one for one in DATA if digest_of(one) == digest]
                blob = content_pb2.Blob(digest=digest, data=data, last=True)
                yield content_pb2.GetBlobsResponse(blobs=[blob])
        finally:
            self.open -= 1


async def until(held: Held, calls: int) -> None:
    async with asyncio.timeout(60):
        while held.open != calls:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def source(tmp_path: Path, held: Held) -> ChunkSource:
    cache = ChunkCache(tmp_path, kind="chunks", most_bytes=1000)
    cache.create()
    return ChunkSource(
        cache, rpc=lambda: cast("Rpc", held), run=in_thread, pause=lambda: asyncio.sleep(0)
    )


async def content(source: ChunkSource, at: int, ahead: int = 0) -> bytes:
    with await source.open("root", "file", CHUNKS[at], CHUNKS[at + 1 : at + 1 + ahead]) as file:
        file.seek(0)
        return file.read()


async def test_what_comes_next_comes_in_the_same_call(source: ChunkSource, held: Held) -> None:
    held.may_answer.set()
    assert await content(source, 0, ahead=3) == DATA[0]
    assert [await content(source, at) for at in (1, 2, 3)] == DATA[1:]
    assert held.asked == [[one.digest for one in CHUNKS]]


async def test_a_fetch_ends_when_all_who_waited_for_it_have_left(
    source: ChunkSource, held: Held
) -> None:
    leaving = [asyncio.create_task(content(source, 0, ahead=3)) for _ in range(2)]
    await until(held, 1)
    leaving[0].cancel()
    await asyncio.sleep(0)
    assert held.open == 1, "another one waits"
    leaving[1].cancel()
    await until(held, 0)
    staying = asyncio.create_task(content(source, 2))
    await until(held, 1)
    held.may_answer.set()
    assert await staying == DATA[2]


async def test_who_comes_while_a_fetch_is_given_up_has_another(
    source: ChunkSource, held: Held
) -> None:
    leaving = asyncio.create_task(content(source, 0))
    await until(held, 1)
    leaving.cancel()
    staying = asyncio.create_task(content(source, 0))
    held.may_answer.set()
    assert await staying == DATA[0]


async def test_readers_wait_while_the_platform_is_away(source: ChunkSource, held: Held) -> None:
    held.is_away = True
    held.may_answer.set()
    assert await content(source, 0, ahead=1) == DATA[0]
    assert len(held.asked) == 2


async def test_an_agent_that_ends_fetches_nothing_more(source: ChunkSource, held: Held) -> None:
    waiting = asyncio.create_task(content(source, 0))
    await until(held, 1)
    source.close()
    with pytest.raises(Unavailable):
        await waiting
    await until(held, 0)


class Peer:
    """Another source that has some of the chunks."""

    kind = "peers"

    def __init__(self, *has: int) -> None:
        self._has = {digest_of(DATA[at]): DATA[at] for at in has}
        self.asked: list[list[tuple[str, str, int]]] = []

    async def bring(
        self, wanted: Sequence[ChunkLocation]
    ) -> AsyncGenerator[tuple[ChunkRef, bytes], None]:
        self.asked.append([(one.ref.digest, one.path, one.offset) for one in wanted])
        for one in wanted:
            if one.ref.digest in self._has:
                yield one.ref, self._has[one.ref.digest]


async def test_other_sources_stay_open_until_the_last_reader_and_fetch_end(
    tmp_path: Path, held: Held
) -> None:
    peer, may_bring, opened, closed = Peer(0, 1), asyncio.Event(), [], []

    class Slow(Peer):
        async def bring(
            self, wanted: Sequence[ChunkLocation]
        ) -> AsyncGenerator[tuple[ChunkRef, bytes], None]:
            async with aclosing(peer.bring(wanted)) as chunks:
                async for ref, data in chunks:
                    await may_bring.wait()
                    assert not closed
                    yield ref, data

    class Others(OtherSources):
        @asynccontextmanager
        async def of(self, root: str, *, is_stream: bool = False) -> AsyncIterator[Any]:
            opened.append(root)
            yield [Slow()]
            closed.append(root)

    cache = ChunkCache(tmp_path, kind="chunks", most_bytes=1000)
    cache.create()
    source = ChunkSource(
        cache,
        rpc=lambda: cast("Rpc", held),
        run=in_thread,
        pause=lambda: asyncio.sleep(0),
        others=Others(),
    )
    async with source.reading("root"), source.reading("root"):
        reading = asyncio.create_task(content(source, 0, ahead=1))
        async with asyncio.timeout(60):
            while not peer.asked:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.001)
    assert (opened, closed) == (["root"], [])
    may_bring.set()
    assert await reading == DATA[0]
    assert await content(source, 1) == DATA[1]
    async with asyncio.timeout(60):
        while not closed:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)
    assert not held.asked


async def test_what_other_sources_have_the_platform_is_not_asked_for(
    tmp_path: Path, held: Held
) -> None:
    held.may_answer.set()
    peer, came = Peer(0, 2), []

    class Others(OtherSources):
        @asynccontextmanager
        async def of(self, root: str, *, is_stream: bool = False) -> AsyncIterator[Any]:
            assert (root, is_stream) == ("root", True)
            yield [peer]

    cache = ChunkCache(tmp_path, kind="chunks", most_bytes=1000)
    cache.create()
    source = ChunkSource(
        cache,
        rpc=lambda: cast("Rpc", held),
        run=in_thread,
        pause=lambda: asyncio.sleep(0),
        others=Others(),
        came=lambda size, others: came.append((size, dict(others))),
    )
    async with source.reading("root"):
        assert await content(source, 0, ahead=2) == DATA[0]
        assert [await content(source, at) for at in (1, 2)] == DATA[1:3]
    assert peer.asked == [[(one.digest, "file", one.start) for one in CHUNKS[:3]]]
    assert held.asked == [[CHUNKS[1].digest]]
    assert came == [(300, {"peers": 200})]
    assert await content(source, 3) == DATA[3]
    assert len(peer.asked) == 1, "it is asked while a stream is served"
