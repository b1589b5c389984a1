"""What is remembered of callers, and what their uploads hold: nobody's is at another's cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from controlplane.domain.errors import NotFound
from controlplane.domain.identity import User, UserCaller
from controlplane.history.sqlite import open_history
from controlplane.objects.memory import MemoryObjects
from controlplane.operations.content import BATCH_BYTES, MOST_SENDING, Content
from controlplane.operations.state import LiveState
from nsml.clock import inline
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from tests.unit.controlplane.workbench import HandClock

KIM = UserCaller(user=User(name="kim"))
EVE = UserCaller(user=User(name="eve"))
MANY = 5_000
MIB = 1 << 20


@pytest.fixture
async def content() -> AsyncIterator[Content]:
    clock = HandClock()
    history = await open_history(":memory:", clock=clock, run=inline)
    state = LiveState(None, clock)  # type: ignore[arg-type]
    yield Content(objects=MemoryObjects(clock), history=history, state=state, clock=clock)
    await history.close()


async def parts(blobs: Iterable[bytes]) -> AsyncIterator[tuple[str, bytes, bool]]:
    for data in blobs:
        yield digest_of(data), data, True


def manifest(name: str) -> bytes:
    chunk = ChunkRef(digest_of(b"x"), 1)
    return build([Entry(path=name, mode=0o644, size=1, chunks=(chunk,))]).encode()


async def test_what_one_sent_is_his_whatever_others_send(content: Content) -> None:
    mine = manifest("mine")
    await content.put(KIM, parts([b"x", mine]))
    await content.put(EVE, parts(manifest(f"f{number}") for number in range(MANY)))
    assert await content.may_use(KIM, digest_of(mine))
    # Of each there is a bound: what was sent long ago is to be sent again.
    assert await content.may_use(EVE, digest_of(manifest(f"f{MANY - 1}")))
    assert not await content.may_use(EVE, digest_of(manifest("f0")))


async def test_what_one_was_shown_he_reads_whatever_others_are_shown(content: Content) -> None:
    mine = manifest("mine")
    root = digest_of(mine)
    await content.put(EVE, parts([mine]))
    content.show(KIM, root)
    for number in range(MANY):
        content.show(EVE, digest_of(b"%d" % number))
    assert [one async for one in content.read(KIM, root, ())] == [(root, mine)]
    with pytest.raises(NotFound):
        await anext(content.read(EVE, digest_of(b"0"), ()))


class Upload:
    """A call of PutBlobs: one blob, whose last part comes when it is let."""

    def __init__(self, content: Content, caller: UserCaller, data: bytes) -> None:
        self._data = data
        self._let = asyncio.Event()
        self.begun = asyncio.Event()
        self.taken = 0
        self._call = asyncio.create_task(content.put(caller, self._parts()))

    async def finish(self) -> int:
        self._let.set()
        return await self._call

    async def give_up(self) -> None:
        self._call.cancel()
        await asyncio.wait([self._call])

    async def _parts(self) -> AsyncIterator[tuple[str, bytes, bool]]:
        self.begun.set()
        for start in range(0, len(self._data), MIB):
            part = self._data[start : start + MIB]
            last = start + MIB >= len(self._data)
            if last:
                await self._let.wait()
            self.taken += len(part)
            yield digest_of(self._data), part, last


async def test_so_many_calls_of_one_caller_bring_blobs_at_once(content: Content) -> None:
    calls = [Upload(content, KIM, b"%d" % number) for number in range(MOST_SENDING)]
    for call in calls:
        await call.begun.wait()
    waiting, given_up, next_one = (Upload(content, KIM, one) for one in (b"a", b"b", b"c"))
    other = Upload(content, EVE, b"other")
    assert await other.finish() == 1
    assert not waiting.begun.is_set()
    assert await calls[0].finish() == 1
    await waiting.begun.wait()
    await given_up.give_up()
    await calls[1].give_up()
    await next_one.begun.wait()
    for call in (*calls[2:], waiting, next_one):
        assert await call.finish() == 1


async def test_one_caller_brings_one_large_blob_at_a_time(content: Content) -> None:
    first, second, third = (Upload(content, KIM, bytes([one]) * 10 * MIB) for one in range(3))
    small, other = Upload(content, KIM, b"small"), Upload(content, EVE, b"x" * 10 * MIB)
    assert await small.finish() == await other.finish() == 1
    assert (first.taken, second.taken, third.taken) == (9 * MIB, 5 * MIB, 5 * MIB)
    await first.give_up()
    assert await second.finish() == await third.finish() == 1


async def test_a_call_may_bring_several_large_blobs(content: Content) -> None:
    blobs = [bytes([number]) * (BATCH_BYTES + 1) for number in range(3)]
    assert await content.put(KIM, parts([blobs[0], b"small", *blobs[1:]])) == 4
