"""What is remembered of callers, and what their uploads hold: nobody's is at another's cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.content import content as contents
from controlplane.content.content import (
    BATCH_BLOBS,
    BATCH_BYTES,
    LARGE_BYTES,
    MOST_SENDING,
    PERIOD_S,
    SHOWN_FOR_S,
    Content,
)
from controlplane.domain.errors import (
    InvalidRequest,
    LimitReached,
    LowOnRoom,
    NotFound,
    TooLarge,
    Unavailable,
)
from controlplane.domain.identity import NodeCaller, User, UserCaller, identity_of
from controlplane.domain.limits import NO_LIMITS
from controlplane.history.sql.history import History
from controlplane.history.sqlite import open_history
from controlplane.history.values import Dataset
from controlplane.limits.admission import NOTE_BYTES, Admission
from controlplane.limits.free_space import FreeSpace, Look
from controlplane.objects.errors import WrongDigest
from controlplane.state.conditions import Conditions
from controlplane.state.live_state import LiveState
from controlplane.state.live_usage import LiveUsage
from nsml.common.clock import inline
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from tests.support.memory_objects import MemoryObjects
from tests.unit.controlplane.workbench import HandClock

KIM = UserCaller(user=User(name="kim"))
EVE = UserCaller(user=User(name="eve"))
MANY = 5_000
MIB = 1 << 20


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def history(clock: HandClock) -> AsyncIterator[History]:
    history = await open_history(":memory:", clock=clock, run=inline)
    yield history
    await history.close()


@pytest.fixture
def content(clock: HandClock, history: History) -> Content:
    state = LiveState(None, clock)  # type: ignore[arg-type]
    return Content(objects=MemoryObjects(clock), history=history, state=state, clock=clock)


async def parts(blobs: Iterable[bytes]) -> AsyncIterator[tuple[str, bytes, bool]]:
    for data in blobs:
        yield digest_of(data), data, True


def manifest(name: str) -> bytes:
    chunk = ChunkRef(digest_of(b"x"), 1)
    return build([Entry(path=name, mode=0o644, size=1, chunks=(chunk,))]).encode()


async def test_what_was_sent_counts_for_a_day_at_least(content: Content, clock: HandClock) -> None:
    root = digest_of(manifest("mine"))
    await content.put(KIM, parts([b"x", manifest("mine")]))
    await content.put(EVE, parts([manifest("mine")]))
    clock.now += PERIOD_S
    assert await content.forget_sent() == 0
    assert await content.may_use(KIM, root)
    assert not await content.may_use(EVE, root), "its file was sent by somebody else"
    # Asking counts as sending: whoever works with it every day sends it once.
    assert await content.missing(KIM, [root, digest_of(b"x")]) == []
    clock.now += PERIOD_S
    assert await content.missing(KIM, [root, digest_of(b"x")]) == []
    clock.now += 2 * PERIOD_S
    assert await content.forget_sent() == 7
    assert await content.missing(KIM, [root, digest_of(b"x")]) == [root, digest_of(b"x")]
    assert not await content.may_use(KIM, root)


async def test_a_new_version_sends_what_the_one_before_has_not(
    content: Content, clock: HandClock, history: History
) -> None:
    first, second = manifest("first"), manifest("second")
    await content.put(KIM, parts([b"x", first]))
    dataset = Dataset(owner="kim", name="mnist", created_at=1.0)
    await history.catalogue.put_dataset_version(
        dataset, digest=digest_of(first), size_bytes=1, file_count=1
    )
    clock.now += 3 * PERIOD_S
    await content.forget_sent()
    root, blobs = digest_of(second), [digest_of(b"x"), digest_of(second)]
    # The same again: nothing is sent, whenever that is.
    unchanged = [digest_of(b"x"), digest_of(first)]
    assert await content.missing(KIM, unchanged, root=digest_of(first)) == []
    clock.now += 3 * PERIOD_S
    assert await content.missing(EVE, blobs, root=root, bases=[digest_of(first)]) == blobs
    assert await content.missing(KIM, blobs, root=root, bases=[digest_of(first)]) == [root]
    await content.put(KIM, parts([second]))
    assert await content.may_use(KIM, root)


async def test_a_broken_upload_keeps_what_came(content: Content) -> None:
    async def torn() -> AsyncIterator[tuple[str, bytes, bool]]:
        async for part in parts([b"%d" % number for number in range(BATCH_BLOBS)]):
            yield part
        yield digest_of(b"ab"), b"a", False

    with pytest.raises(InvalidRequest):
        await content.put(KIM, torn())
    came = [digest_of(b"%d" % number) for number in range(BATCH_BLOBS)]
    assert await content.missing(KIM, [*came, digest_of(b"ab")]) == [digest_of(b"ab")]


async def test_a_caller_sends_no_more_than_a_bound(
    content: Content, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "MOST_SENT", 3)
    await content.put(KIM, parts([b"1", b"2", b"3"]))
    await content.put(KIM, parts([b"1", b"2", b"3"]))  # nothing new
    with pytest.raises(TooLarge):
        await content.put(KIM, parts([b"4"]))
    assert await content.put(EVE, parts([b"4"])) == 1
    clock.now += PERIOD_S
    assert await content.put(KIM, parts([b"4"])) == 1


def bounded(clock: HandClock, history: History, admission: Admission) -> Content:
    """Content whose notes are admitted, while the object store takes everything."""
    state = LiveState(None, clock)  # type: ignore[arg-type]
    objects = MemoryObjects(clock)
    return Content(objects=objects, history=history, state=state, clock=clock, admission=admission)


async def test_notes_of_sent_blobs_count_for_their_user(clock: HandClock, history: History) -> None:
    """Each new one: the same code sent again is free, also at the limit."""
    few = replace(NO_LIMITS, reported_bytes=4 * NOTE_BYTES)
    content = bounded(clock, history, Admission(few, usage=LiveUsage(), clock=clock))
    code = [b"1", b"2", b"3"]
    for _ in range(3):
        await content.put(KIM, parts(code))
        assert await content.missing(KIM, [digest_of(one) for one in code]) == []
    with pytest.raises(LimitReached):
        await content.put(KIM, parts([b"4", b"5"]))
    assert await content.put(KIM, parts([*code, b"4"])) == 1
    assert await content.put(EVE, parts([b"4", b"5"])) == 2
    clock.now += PERIOD_S
    assert await content.put(KIM, parts([b"6"])) == 1, "it refills"
    with pytest.raises(LimitReached):
        await content.missing(KIM, [digest_of(one) for one in (*code, b"4")])


async def test_no_blob_is_noted_while_the_history_is_at_its_floor(
    clock: HandClock, history: History
) -> None:
    space = FreeSpace(
        folders={"history": Path("/")},
        store=None,  # type: ignore[arg-type]
        conditions=Conditions(clock),
        clock=clock,
        floor_bytes=0,
    )
    admission = Admission(NO_LIMITS, usage=LiveUsage(), clock=clock, space=space)
    content = bounded(clock, history, admission)
    await content.put(KIM, parts([b"1"]))
    low = Look(0, has_files=True, evidence="")
    space._found["history disk"] = low, clock.now
    with pytest.raises(LowOnRoom):
        await content.put(KIM, parts([b"2"]))
    with pytest.raises(Unavailable):  # it sends again
        await content.put(NodeCaller(node="a"), parts([b"2"]), session_id="s1")
    assert await history.sent.count(identity_of(KIM), period=int(clock.now // PERIOD_S)) == 1
    assert await content.put(KIM, parts([b"1"])) == 0, "nothing new is written"


async def test_what_one_was_shown_he_reads_whatever_others_are_shown(
    content: Content, clock: HandClock
) -> None:
    mine = manifest("mine")
    root = digest_of(mine)
    await content.put(EVE, parts([mine]))
    content.show(KIM, root)
    for number in range(MANY):
        content.show(EVE, digest_of(b"%d" % number))
    assert [one async for one in content.read(KIM, root, ())] == [(root, mine)]
    with pytest.raises(NotFound):
        await anext(content.read(EVE, digest_of(b"0"), ()))
    clock.now += SHOWN_FOR_S  # a right that was withdrawn meanwhile
    with pytest.raises(NotFound):
        await anext(content.read(KIM, root, ()))


async def test_large_blobs_are_not_looked_up_again_and_again(
    content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = [b"%d" % number for number in range(1_000)]
    chunks = tuple(ChunkRef(digest_of(data), len(data)) for data in blobs)
    size = sum(map(len, blobs))
    root = build([Entry(path="large", mode=0o644, size=size, chunks=chunks)]).encode()
    await content.put(KIM, parts([*blobs, root]))
    content.show(KIM, digest_of(root))
    asked = []
    get_first = content._objects.get_first

    async def noted(digests: Sequence[str], most_bytes: int) -> list[bytes]:
        asked.append(len(digests))
        return await get_first(digests, most_bytes)

    monkeypatch.setattr(content._objects, "get_first", noted)
    monkeypatch.setattr(contents, "READ_BYTES", 20)
    wanted = [one.digest for one in chunks]
    assert [data async for _, data in content.read(KIM, digest_of(root), wanted)] == blobs
    assert sum(asked) < 3 * len(blobs)


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
    blobs = [bytes([number]) * (LARGE_BYTES + 1) for number in range(3)]
    assert await content.put(KIM, parts([blobs[0], b"small", *blobs[1:]])) == 4


async def test_blobs_that_come_again_count_as_long_as_their_message_is_in_memory(
    content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = []
    put_many = content._objects.put_many

    async def noted(blobs: Mapping[str, bytes | memoryview]) -> None:
        batches.append(len(blobs))
        await put_many(blobs)

    monkeypatch.setattr(content._objects, "put_many", noted)
    messages = 3 * BATCH_BYTES // MIB
    blobs = [one for number in range(messages) for one in (b"%d" % number, bytes(MIB))]
    assert await content.put(KIM, parts(blobs)) == messages + 1
    assert len(batches) == 3


@pytest.mark.parametrize("before", [0, BATCH_BLOBS])
async def test_wrong_bytes_make_nobody_a_sender(content: Content, before: int) -> None:
    await content.put(EVE, parts([b"secret"]))
    secret = digest_of(b"secret")

    async def guessed() -> AsyncIterator[tuple[str, bytes, bool]]:
        async for part in parts([b"%d" % number for number in range(before)]):
            yield part
        yield secret, b"guess", True

    with pytest.raises(WrongDigest):
        await content.put(KIM, guessed())
    assert await content.missing(KIM, [secret]) == [secret]
