"""Logs that are in the history, in the object store, or on their way: the same bytes are read."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.errors import Unavailable
from controlplane.history import blocks
from controlplane.history.errors import HistoryUnavailable
from controlplane.history.postgresql import open_postgresql
from controlplane.history.sql import archiving, logs
from controlplane.history.sqlite import open_history
from controlplane.history.values import Channel, Chunk, SessionRecord, StreamKey
from controlplane.objects.errors import ObjectsUnavailable
from controlplane.records.logs import LogLost, Logs
from nsml.common.clock import SystemClock, inline
from tests.support.examples import examples
from tests.support.memory_objects import MemoryObjects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from controlplane.history.sql.history import History

RAW, KEPT = (StreamKey(session, 1, 0, Channel.LOG) for session in ("raw", "kept"))


class Hand(SystemClock):
    """A clock of which the test says what the time is."""

    now = 1000.0

    def time(self) -> float:
        return self.now


class Troubled(MemoryObjects):
    """Objects that can be away."""

    is_away = False

    async def get(self, digest: str) -> bytes:
        if self.is_away:
            raise ObjectsUnavailable("away")
        return await super().get(digest)

    async def put(self, digest: str, data: bytes) -> None:
        if self.is_away:
            raise ObjectsUnavailable("away")
        await super().put(digest, data)


@dataclass
class Both:
    """A history in which one log is written twice: `RAW` stays there, `KEPT` is moved."""

    history: History
    clock: Hand
    objects: Troubled
    logs: Logs

    async def write(self, *pieces: tuple[int, bytes]) -> None:
        """At one moment, in one transaction."""
        await self.history.streams.append(
            [
                Chunk(stream=key, first=first, last=first + len(data) - 1, data=data)
                for key in (RAW, KEPT)
                for first, data in pieces
            ]
        )

    async def end(self, session: str = "kept", ended_at: float = 0.0) -> None:
        row = SessionRecord(
            id=session,
            name=f"kim/None/{session}",
            owner="kim",
            state="SUCCEEDED",
            created_at=0.0,
            ended_at=ended_at,
            record=b"",
        )
        await self.history.catalogue.put_session(row, term=1)

    async def archive(self, session: StreamKey = KEPT) -> int:
        """All of it; in how many steps."""
        count = 0
        while await self.logs.archive(session):
            count += 1
        return count

    async def rows(self) -> list[tuple[int, int, bool]]:
        """What the history has of the moved log: first, last, whether it is a block."""
        rows = []
        async for batch in self.history.dump():
            if batch.table == "streams":
                at = batch.columns.index("id")
                moved = [row[at] for row in batch.rows if row[1] == "kept"]
            if batch.table == "chunks":
                rows += [
                    (row[2], row[3], (row[5] or b"\0")[0] == 2)
                    for row in batch.rows
                    if row[1] in moved
                ]
        return sorted(rows)

    async def check(self, *, moments: bool = True) -> None:
        """Whatever is asked for, both give the same."""
        end = (await self.logs.read("raw")).end
        places = sorted({*range(0, end, max(1, end // 17)), 0, end, end + 3})
        for offset in places:
            for named in ({}, {"limit_bytes": 3}, {"stop": end // 2}, {"limit_bytes": 1 << 20}):
                await self._same(offset=offset, **named)
            assert await self.logs.parts(KEPT, offset) == await self.logs.parts(RAW, offset)
        for lines in (0, 1, 2, 5, 1000):
            await self._same(tail_lines=lines)
            await self._same(tail_lines=lines, stop=end // 3, offset=end // 9)
        for moment in range(int(self.clock.now) + 2, 998, -1) if moments else ():
            place = await self.logs.at("raw", moment + 0.5)
            assert await self.logs.at("kept", moment + 0.5) == place

    async def _same(self, **named: Any) -> None:
        assert await self.logs.read("kept", **named) == await self.logs.read("raw", **named)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "BLOCK_BYTES", 60)
    monkeypatch.setattr(archiving, "BLOCK_PIECES", 4)
    monkeypatch.setattr(logs, "TAIL_ROWS_A_LOOK", 3)
    monkeypatch.setattr(logs, "TAIL_LOOKS_BACK_BYTES", 150)


def both_of(history: History, clock: Hand) -> Both:
    objects = Troubled(clock)
    return Both(history, clock, objects, Logs(history=history, objects=objects, run=inline))


@pytest.fixture(params=["sqlite", "postgresql"])
async def both(request: pytest.FixtureRequest) -> AsyncIterator[Both]:
    clock = Hand()
    opened: History
    if request.param == "postgresql":
        opened = await open_postgresql(request.getfixturevalue("emptied_database"), clock=clock)
    else:
        opened = await open_history(":memory:", clock=clock, run=inline)
    yield both_of(opened, clock)
    await opened.close()


async def write_some(both: Both) -> None:
    """Lines of several lengths, a byte at a time, a long one, and two gaps."""
    at = 0
    for number in range(40):
        both.clock.now += 1
        data = b"%d %s\n" % (number, b"x" * (number % 7)) if number != 20 else b"y" * 200
        await both.write((at, data))
        at += len(data) + 11 * (number in {9, 30})
    for letter in b"a\nb\nc\n\nd":
        both.clock.now += 1
        await both.write((at, bytes((letter,))))
        at += 1


async def test_the_same_is_read_before_during_and_after(both: Both) -> None:
    await write_some(both)
    await both.check()
    steps = 0
    while await both.logs.archive(KEPT):
        steps += 1
        if steps % 4 == 0:
            await both.check()
    await both.check()
    rows = await both.rows()
    assert [is_block for first, last, is_block in rows].count(False) == 2, "the gaps"
    assert len(rows) - 2 == len({digest async for digest in both.objects.list()}) > 10
    assert not await both.logs.archive(KEPT)


async def test_what_comes_late_is_read_and_moved_too(both: Both) -> None:
    await both.write((0, b"begin\n"), (30, b"end\n"))
    await both.archive()
    both.clock.now += 1
    await both.write((10, b"late\n"))
    await both.check(moments=False)
    await both.write((34, b"and more\n"))
    await both.check(moments=False)
    assert [is_block for *_, is_block in await both.rows()] == [
        True,
        False,
        False,
        False,
        True,
        False,
    ]
    await both.archive()
    await both.check(moments=False)
    await both.write((6, b"abcd"), (15, b"." * 15))
    await both.archive()
    await both.check(moments=False)
    assert all(is_block for *_, is_block in await both.rows())
    page = await both.logs.read("kept", limit_bytes=1 << 20)
    assert page.data == b"begin\nabcdlate\n...............end\nand more\n"


async def test_whatever_breaks_off_loses_and_doubles_nothing(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_some(both)
    both.objects.is_away = True
    with pytest.raises(ObjectsUnavailable):
        await both.logs.archive(KEPT)
    both.objects.is_away = False
    before = await both.rows()
    database = both.history.streams._database  # type: ignore[attr-defined]

    async def fail(*_: Any, **__: Any) -> None:
        raise HistoryUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(database, "write", fail)
        with pytest.raises(HistoryUnavailable):
            await both.logs.archive(KEPT)
    assert await both.rows() == before
    held = {blob.digest async for blob in both.objects.list()}
    assert len(held) == 1
    await both.check()
    await asyncio.gather(*[both.archive() for _ in range(3)])  # as several leaders would
    await both.check()
    assert held < {blob.digest async for blob in both.objects.list()}, "the same block again"
    positions = [(first, last) for first, last, _ in await both.rows()]
    assert positions[0][0] == 0
    assert all(one[1] + 1 == next_[0] for one, next_ in pairwise(positions))


async def test_a_session_that_is_removed_meanwhile_stays_removed(both: Both) -> None:
    await both.write((0, b"gone\n"))
    await both.end()
    put = both.objects.put

    async def put_and_remove(digest: str, data: bytes) -> None:
        await put(digest, data)
        await both.history.catalogue.delete_session("kept")

    both.objects.put = put_and_remove  # type: ignore[method-assign]
    assert not await both.logs.archive(KEPT)
    assert (await both.logs.read("kept")).attempt == 0
    assert await both.rows() == []


async def test_what_comes_while_a_block_is_made_is_not_lost(both: Both) -> None:
    await both.write((0, b"one\n"), (8, b"three\n"))
    put = both.objects.put

    async def put_and_fill(digest: str, data: bytes) -> None:
        await put(digest, data)
        await both.write((4, b"two\n"), (14, b"four\n"))

    both.objects.put = put_and_fill  # type: ignore[method-assign]
    await both.archive()
    await both.check(moments=False)
    assert (await both.logs.read("kept")).data == b"one\ntwo\nthree\nfour\n"
    assert all(is_block for *_, is_block in await both.rows())


async def test_only_what_ended_long_enough_ago_is_due(both: Both) -> None:
    await both.write((0, b"some\n"))
    unarchived = both.history.streams.unarchived
    assert await unarchived(ended_before=1e9) == ()
    await both.end("kept", ended_at=500.0)
    await both.end("raw", ended_at=400.0)
    assert await unarchived(ended_before=400.0) == ()
    assert await unarchived(ended_before=500.0) == (RAW,)
    assert await unarchived(ended_before=501.0) == (RAW, KEPT)
    assert await unarchived(ended_before=501.0, limit=1) == (RAW,)
    await both.archive()
    assert await unarchived(ended_before=501.0) == (RAW,)
    await both.write((5, b"more\n"))
    assert await unarchived(ended_before=501.0) == (RAW, KEPT)


async def test_without_the_object_store_readers_are_told_so(both: Both) -> None:
    await both.write((0, b"some\n"))
    await both.archive()
    both.objects.is_away = True
    with pytest.raises(Unavailable, match="in the platform's object store, which does not answer"):
        await both.logs.read("kept")
    with pytest.raises(Unavailable):
        await both.logs.read("kept", tail_lines=1)
    both.objects.is_away = False
    digests = [blob.digest async for blob in both.objects.list()]
    assert (await both.logs.read("kept")).data == b"some\n"
    both.objects.is_away = True
    assert (await both.logs.read("kept")).data == b"some\n", "what was read just now is held"
    both.objects.is_away = False
    await both.objects.put_aside(digests, lambda: True)
    await both.objects.delete(digests)
    with pytest.raises(LogLost):
        await Logs(history=both.history, objects=both.objects, run=inline).read("kept")


@pytest.mark.parametrize("into", ["sqlite", "postgresql"])
async def test_a_backup_has_what_was_moved(
    both: Both, into: str, request: pytest.FixtureRequest
) -> None:
    await write_some(both)
    await both.logs.archive(KEPT)
    await both.end()
    batches = [batch async for batch in both.history.dump()]
    opened: History
    if into == "postgresql":
        opened = await open_postgresql(
            request.getfixturevalue("postgres_database"), clock=both.clock
        )
    else:
        opened = await open_history(":memory:", clock=both.clock, run=inline)
    await opened.load(batches)
    other = Both(
        opened, both.clock, both.objects, Logs(history=opened, objects=both.objects, run=inline)
    )
    await other.check()
    assert await opened.streams.unarchived(ended_before=9e9) == (KEPT,)
    await other.archive()
    await other.check()
    await opened.close()


LENGTH = 60
TEXT = b"".join(b"%d\n" % number for number in range(LENGTH))[:LENGTH]
RANGES = st.tuples(st.integers(0, LENGTH - 1), st.integers(0, LENGTH - 1)).map(sorted)
STEPS = st.lists(st.one_of(RANGES, st.just("archive")), max_size=14)


@given(
    steps=STEPS,
    offset=st.integers(0, LENGTH),
    limit=st.integers(1, LENGTH),
    lines=st.integers(0, 30),
    stop=st.integers(0, LENGTH),
)
@settings(max_examples=examples(240), deadline=None)
def test_any_cursor_of_any_log_gives_the_same(
    steps: list[Any], offset: int, limit: int, lines: int, stop: int
) -> None:
    async def scenario() -> None:
        clock = Hand()
        history = await open_history(":memory:", clock=clock, run=inline)
        both = both_of(history, clock)
        for step in steps:
            clock.now += 1
            if step == "archive":
                await both.logs.archive(KEPT)
            else:
                low, high = step
                await both.write((low, TEXT[low : high + 1]))
            raw, kept = [
                [
                    await both.logs.read(session, offset=offset, limit_bytes=limit),
                    await both.logs.read(session, offset=offset, stop=stop),
                    await both.logs.read(session, tail_lines=lines, stop=stop),
                    await both.logs.read(session, tail_lines=lines, limit_bytes=limit),
                ]
                for session in ("raw", "kept")
            ]
            assert raw == kept
            cursors = history.streams.cursors
            wanted = [(await cursors(key.session_id, 1)).get(key) for key in (RAW, KEPT)]
            assert wanted[0] == wanted[1]
        await history.close()

    asyncio.run(scenario())


def test_a_block_is_what_was_packed() -> None:
    pieces = [blocks.Piece(5, 7, 1.5, b"abc"), blocks.Piece(8, 8, 2.5, b"d")]
    block = blocks.unpack(blocks.pack(pieces))
    assert list(block.pieces(0, 100)) == pieces
    assert list(block.pieces_back(0, 8)) == pieces[:1]
    assert list(block.pieces(8, 9)) == pieces[1:]
    assert blocks.pack(pieces) == blocks.pack(pieces)
