"""The spool reader against whole, torn, damaged and hostile files."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import resource
import shutil
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nodeagent.collect.spool import RecordFile, ReplicaSpool, Search, SpoolFollower, SpoolLimits
from nodeagent.collect.streams import GAP_COST, Batch, Channel, Cursor, Gap, Item, StreamId
from nodeagent.folders import FIRST_LOST, ReplicaFolder, ReplicaId
from nsml._frames import LOST_BYTES, MAGIC, MAX_PAYLOAD, frame
from nsml._spool import Spool
from nsml.common.clock import inline
from tests.support.examples import examples
from tests.support.memory import peak_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REPLICA = ReplicaId(session_id="s" + "a" * 16, attempt=1, rank=0)
LOG = StreamId(replica_id=REPLICA, channel=Channel.LOG, writer=0)


def metric(writer: int) -> StreamId:
    return StreamId(replica_id=REPLICA, channel=Channel.METRIC, writer=writer)


@pytest.fixture
def folder(tmp_path: Path) -> ReplicaFolder:
    return new_folder(tmp_path)


def new_folder(tmp_path: Path) -> ReplicaFolder:
    made = ReplicaFolder(tmp_path / str(REPLICA))
    made.create()
    return made


def spool_of(folder: ReplicaFolder, limits: SpoolLimits | None = None) -> ReplicaSpool:
    return ReplicaSpool(REPLICA, folder, {}, limits)


def payload(number: int) -> bytes:
    return b'{"kind":"metric","n":%d}' % number


def whole(count: int) -> bytes:
    return MAGIC + b"".join(frame(n, payload(n)) for n in range(1, count + 1))


def put(folder: ReplicaFolder, content: bytes, writer: int = 1) -> None:
    (folder.spool / f"{writer}.records").write_bytes(content)


def drain(spool: ReplicaSpool, *, final: bool = True) -> list[Item]:
    """Everything there is, with the second look that damage gets."""
    items: list[Item] = []
    quiet = 0
    while quiet < 2:
        more = spool.read(final=final)
        quiet = 0 if more else quiet + 1
        items += more
    return items


def records_in(items: Sequence[Item], writer: int = 1) -> dict[int, bytes]:
    """Records by number; fails when one comes twice or out of order."""
    found: dict[int, bytes] = {}
    for item in items:
        if item.stream == metric(writer):
            assert item.first == max(found, default=0) + 1, "not in order"
            assert item.last >= item.first
            numbers = range(item.first, item.last + 1)
            if isinstance(item, Batch):
                assert len(item.records) == len(numbers)
                found.update(zip(numbers, item.records, strict=True))
            else:
                found.update(dict.fromkeys(numbers, b"GAP"))
    return found


def text_in(items: Sequence[Item]) -> bytes:
    return b"".join(i.text for i in items if isinstance(i, Batch) and i.stream == LOG)


def test_records_come_once_in_order_and_in_bounded_batches(folder: ReplicaFolder) -> None:
    put(folder, whole(1000))
    limits = SpoolLimits(bytes=1000, records=7)
    items = drain(spool_of(folder, limits))
    assert records_in(items) == {n: payload(n) for n in range(1, 1001)}
    for item in items:
        assert isinstance(item, Batch)
        assert len(item.records) <= 7
        assert sum(map(len, item.records)) <= 1000


def test_a_record_over_the_batch_limit_still_comes(folder: ReplicaFolder) -> None:
    big = b'"' + b"x" * (MAX_PAYLOAD - 2) + b'"'
    put(folder, MAGIC + frame(1, b"{}") + frame(2, big) + frame(3, b"{}"))
    items = drain(spool_of(folder, SpoolLimits(bytes=100)))
    assert records_in(items) == {1: b"{}", 2: big, 3: b"{}"}


def test_a_torn_tail_waits_and_comes_when_it_is_whole(folder: ReplicaFolder) -> None:
    content = whole(3)
    spool = spool_of(folder)
    for length in range(len(content) + 1):
        put(folder, content[:length])
        items = spool.read()
        assert all(isinstance(item, Batch) for item in items)
    assert spool.read() == []
    spool.rewind({})
    assert list(records_in(drain(spool))) == [1, 2, 3]


def test_a_torn_tail_of_a_dead_writer_is_no_gap(folder: ReplicaFolder) -> None:
    put(folder, whole(3)[:-4])
    items = drain(spool_of(folder))
    assert records_in(items) == {1: payload(1), 2: payload(2)}


def tell_lost(folder: ReplicaFolder, told: str, writer: int = 1) -> None:
    (folder.spool / f"{writer}.lost").write_text(told)


def test_what_a_dead_writer_counted_behind_its_last_record_is_a_gap(folder: ReplicaFolder) -> None:
    put(folder, whole(3))
    tell_lost(folder, '{"after": 3, "count": 2}' + " " * 40)
    spool = spool_of(folder)
    # While it lives it may say so itself.
    assert list(records_in(drain(spool, final=False))) == [1, 2, 3]
    [gap] = drain(spool)
    assert isinstance(gap, Gap)
    assert (gap.first, gap.last) == (4, 5)
    assert drain(spool) == []
    # What is acknowledged is not told again, by this agent or the next.
    assert drain(ReplicaSpool(REPLICA, folder, {metric(1): gap.cursor})) == []


@pytest.mark.parametrize("read_before", [True, False])
def test_a_writer_that_died_in_half_a_frame_has_counted_all_the_same(
    folder: ReplicaFolder, *, read_before: bool
) -> None:
    """Of a full disk there may be room for the beginning of a record, which is cut off again."""
    put(folder, whole(4)[:-4])
    tell_lost(folder, '{"after": 3, "count": 2}')
    spool = spool_of(folder)
    if read_before:
        assert list(records_in(drain(spool, final=False))) == [1, 2, 3]
    *batches, gap = chain.from_iterable(iter(lambda: spool.read(final=True), []))
    assert list(records_in(batches)) == ([] if read_before else [1, 2, 3])
    assert isinstance(gap, Gap)
    assert (gap.first, gap.last) == (4, 5)


@pytest.mark.parametrize("written", range(5))
def test_of_what_a_dead_writer_kept_waiting_some_may_have_been_written(
    folder: ReplicaFolder, written: int
) -> None:
    """Two wait, and go before what says that three more are lost: without that all five are."""
    put(folder, whole(3 + written))
    tell_lost(folder, '{"after": 3, "count": 5, "waiting": 2}')
    lost = [item.last + 1 - item.first for item in drain(spool_of(folder)) if isinstance(item, Gap)]
    assert lost == ([5 - written] if written <= 2 else [])


class Killed(BaseException):
    """Everything ends here, as it does by SIGKILL."""


@settings(max_examples=examples(400), deadline=None)
@given(
    done=st.lists(
        st.tuples(
            st.sampled_from(["report", "state", "drop"]),
            st.sampled_from([0, 100]),
            st.sampled_from([0, 70, 150, None]),
        ),
        max_size=8,
    ),
    killed_at=st.integers(0, 30),
)
# What waited finds room, and the count of what was dropped finds none; or that had no file yet.
@example(done=[("state", 30, 0), ("drop", 0, 100)], killed_at=99)
@example(done=[("drop", 0, 0)], killed_at=99)
def test_whenever_a_program_is_killed_on_a_full_disk_all_it_did_is_there_or_counted(
    done: list[tuple[str, int, int | None]], killed_at: int
) -> None:
    """Each call is made with so many bytes of room; what had not returned may be there or not."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    system, calls, returned = {"write": os.write, "ftruncate": os.ftruncate}, 0, 0

    def mortal(name: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            nonlocal calls
            calls += 1
            if calls > killed_at:
                raise Killed
            return system[name](*arguments)

        return call

    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        folder = new_folder(Path(place))
        writer = Spool(str(folder.spool))
        patch.setattr("nsml._spool.notice", lambda _: None)
        patch.setattr("nsml._spool._REOPEN_AFTER_S", 0.0)
        patch.setattr("atexit.register", lambda _: None)
        for name in system:
            patch.setattr(os, name, mortal(name))
        records = folder.spool / "1.records"
        try:
            for what, size, room in done:
                # Never less than the count's own file, whose room is taken.
                used = records.stat().st_size if records.exists() else LOST_BYTES
                limit = before[0] if room is None else max(used + room, LOST_BYTES)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
                if what == "drop":
                    writer.drop("too much of it")
                else:
                    data = json.dumps({"kind": "metric", "x": "x" * size}).encode()
                    writer.append(data, must_arrive=what == "state")
                returned += 1
        except Killed:
            pass
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            patch.undo()
        items = drain(spool_of(folder))
        told = sum(item.last + 1 - item.first for item in items if isinstance(item, Gap))
        for record in chain.from_iterable(i.records for i in items if isinstance(i, Batch)):
            kept = json.loads(record)
            told += kept["count"] if kept["kind"] == "dropped" else 1
    assert returned <= told <= returned + (1 if returned < len(done) else 0)


def test_a_writer_that_never_had_a_file_may_have_counted(folder: ReplicaFolder) -> None:
    lost = folder.spool / FIRST_LOST
    assert lost.stat().st_size == LOST_BYTES
    assert drain(spool_of(folder)) == []
    lost.write_text('{"after": 0, "count": 7}'.ljust(LOST_BYTES))
    assert drain(spool_of(folder), final=False) == []
    [gap] = drain(spool_of(folder))
    assert (gap.first, gap.last) == (1, 7)
    assert drain(ReplicaSpool(REPLICA, folder, {metric(1): gap.cursor})) == []


@pytest.mark.parametrize("written", [None, 7])
def test_a_start_that_found_the_disk_full_leaves_room_for_the_count_when_it_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int | None
) -> None:
    def no_room(descriptor: int, data: bytes) -> int:
        if written is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:written])

    write, folder = os.write, ReplicaFolder(tmp_path / "replica")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", no_room)
        with pytest.raises(OSError, match="No space"):
            folder.create()
    assert not folder.spool.exists()
    folder.create()
    assert [one.name for one in folder.spool.iterdir()] == [FIRST_LOST]
    assert (folder.spool / FIRST_LOST).stat().st_size == LOST_BYTES


@pytest.mark.parametrize(
    "told",
    [
        "", " " * 64, "[" * 5000, "7", "[]", '{"after": 3}',
        '{"after": 2, "count": 2}',  # a record followed, which says so
        '{"after": 3, "count": 0}', '{"after": 3, "count": -1}', '{"after": 3, "count": 1.5}',
        '{"after": 3, "count": true}', '{"after": 3, "count": 1e400}',
        '{"after": 3, "count": 99999999999999}', '{"after": "3", "count": 1}',
    ],
)  # fmt: skip
def test_a_count_that_says_nothing_is_none(folder: ReplicaFolder, told: str) -> None:
    put(folder, whole(3))
    tell_lost(folder, told)
    assert list(records_in(drain(spool_of(folder)))) == [1, 2, 3]


def test_a_link_in_place_of_a_count_is_not_followed(folder: ReplicaFolder) -> None:
    put(folder, whole(3))
    target = folder.path / "target"
    target.write_text('{"after": 3, "count": 2}')
    (folder.spool / FIRST_LOST).unlink()
    (folder.spool / FIRST_LOST).symlink_to(target)
    assert list(records_in(drain(spool_of(folder)))) == [1, 2, 3]


def test_a_flipped_bit_is_a_gap_of_one(folder: ReplicaFolder) -> None:
    content = bytearray(whole(5))
    content[content.index(payload(3))] ^= 1
    put(folder, bytes(content))
    items = drain(spool_of(folder), final=False)
    assert records_in(items) == {
        1: payload(1), 2: payload(2), 3: b"GAP", 4: payload(4), 5: payload(5),
    }  # fmt: skip


def test_damage_is_looked_at_twice(folder: ReplicaFolder) -> None:
    content = bytearray(whole(3))
    place = content.index(payload(2))
    content[place] ^= 1
    put(folder, bytes(content))
    spool = spool_of(folder)
    assert list(records_in(spool.read())) == [1]
    assert spool.read() == []
    content[place] ^= 1  # it was being cut and written anew
    put(folder, bytes(content))
    (batch,) = spool.read()
    assert isinstance(batch, Batch)
    assert (batch.first, batch.last) == (2, 3)


def test_a_damaged_last_record_is_a_gap_when_its_writer_is_dead(folder: ReplicaFolder) -> None:
    content = bytearray(whole(2))
    content[-1] ^= 1
    put(folder, bytes(content))
    spool = spool_of(folder)
    assert list(records_in(drain(spool, final=False))) == [1]
    (gap,) = drain(spool)
    assert isinstance(gap, Gap)
    assert (gap.first, gap.last) == (2, 2)


def test_missing_numbers_are_a_gap(folder: ReplicaFolder) -> None:
    put(folder, MAGIC + frame(1, payload(1)) + frame(5, payload(5)))
    items = drain(spool_of(folder))
    assert records_in(items) == {1: payload(1), 2: b"GAP", 3: b"GAP", 4: b"GAP", 5: payload(5)}


def test_repeated_numbers_are_left_out(folder: ReplicaFolder) -> None:
    again = b"".join(frame(n, payload(n)) for n in (1, 2, 2, 1, 2, 3))
    put(folder, MAGIC + again)
    assert records_in(drain(spool_of(folder))) == {n: payload(n) for n in (1, 2, 3)}


def test_a_wrong_magic_costs_nothing_behind_it(folder: ReplicaFolder) -> None:
    put(folder, b"X" + whole(3)[1:])
    assert list(records_in(drain(spool_of(folder)))) == [1, 2, 3]


@pytest.mark.parametrize("content", [b"", b"NSML", b"noise" * 1000, b"\0" * 100_000])
def test_files_without_records(folder: ReplicaFolder, content: bytes) -> None:
    put(folder, content)
    assert records_in(drain(spool_of(folder), final=False)) == {}
    assert drain(spool_of(folder))[1:] == []


def test_reading_goes_on_from_acknowledged_cursors(folder: ReplicaFolder) -> None:
    folder.output.write_bytes(b"0123456789")
    put(folder, whole(100))
    limits = SpoolLimits(bytes=200, records=10)
    spool = spool_of(folder, limits)
    cursors = {item.stream: item.cursor for item in spool.read()}
    spool.read()  # sent, and never acknowledged
    rest = drain(ReplicaSpool(REPLICA, folder, cursors, limits))
    first = next(item.first for item in rest if item.stream == metric(1))
    assert first == cursors[metric(1)].last + 1
    assert max(item.last for item in rest if item.stream == metric(1)) == 100
    assert text_in(rest) == b""


def test_many_writers_share_a_pass(folder: ReplicaFolder) -> None:
    for writer in range(1, 21):
        put(folder, whole(50), writer)
    spool = spool_of(folder, SpoolLimits(bytes=1000))
    first = spool.read()
    assert sum(len(r) for item in first if isinstance(item, Batch) for r in item.records) < 3000
    items = first + drain(spool)
    for writer in range(1, 21):
        assert list(records_in(items, writer)) == list(range(1, 51))


def test_a_folder_full_of_other_files_is_not_listed_to_its_end(folder: ReplicaFolder) -> None:
    for number in range(20_000):
        os.mknod(folder.spool / f"file-{number:020}")
    spool = spool_of(folder, SpoolLimits(files=10))
    assert peak_bytes(spool.read) < 1 << 20


def test_the_log_is_byte_exact_and_bounded(folder: ReplicaFolder) -> None:
    text = random.Random(1).randbytes(3_000_000)
    folder.output.write_bytes(text)
    items = drain(spool_of(folder))
    assert text_in(items) == text
    assert max(len(i.text) for i in items if isinstance(i, Batch)) <= SpoolLimits().bytes
    assert items[0].first == 0
    assert items[-1].last == len(text) - 1


def test_a_shortened_log_is_a_gap_and_goes_on(folder: ReplicaFolder) -> None:
    folder.output.write_bytes(b"long before")
    spool = spool_of(folder)
    before = spool.read()
    folder.output.write_bytes(b"new")
    after = drain(spool)
    assert isinstance(after[0], Gap)
    assert text_in(after) == b"new"
    positions = [(item.first, item.last) for item in [*before, *after]]
    assert positions == [(0, 10), (11, 11), (12, 14)]


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("number", [1 << 40, 1 << 63, (1 << 64) - 1])
def test_a_number_that_nobody_can_have_reached_is_damage(
    folder: ReplicaFolder, number: int, final: bool
) -> None:
    put(folder, whole(2) + frame(number, b"{}") + frame(4, payload(4)))
    items = drain(spool_of(folder), final=final)
    assert records_in(items) == {1: payload(1), 2: payload(2), 3: b"GAP", 4: payload(4)}


def test_numbers_that_leap_stay_within_what_is_stored(folder: ReplicaFolder) -> None:
    highest = Cursor(last=(1 << 53) - 5, offset=len(MAGIC))
    put(folder, MAGIC + frame((1 << 53) - 4, b"{}") + frame((1 << 53) + 1, b"{}"))
    items = drain(ReplicaSpool(REPLICA, folder, {metric(1): highest}))
    assert max(item.last for item in items) <= 1 << 53


def test_a_log_of_holes_is_not_sent(folder: ReplicaFolder) -> None:
    with folder.output.open("r+b") as log:
        log.write(b"before")
        log.truncate(1 << 40)
        log.seek(0, os.SEEK_END)
        log.write(b"after")
    items = drain(spool_of(folder))
    assert sum(len(item.text) for item in items if isinstance(item, Batch)) < 1 << 20
    assert text_in(items).strip(b"\0").startswith(b"before")
    assert text_in(items).endswith(b"after")
    assert any(isinstance(item, Gap) for item in items)
    positions = [(item.first, item.last) for item in items]
    assert [first for first, _ in positions[1:]] == [last + 1 for _, last in positions[:-1]]


def test_zeros_that_were_written_are_sent(folder: ReplicaFolder) -> None:
    folder.output.write_bytes(bytes(1_000_000) + b"end")
    assert text_in(drain(spool_of(folder))) == bytes(1_000_000) + b"end"


@pytest.mark.parametrize("what", ["link", "pipe", "folder", "nothing"])
def test_a_log_that_is_no_file_has_nothing(
    folder: ReplicaFolder, tmp_path: Path, what: str
) -> None:
    (tmp_path / "secret").write_text("secret")
    folder.output.unlink()
    match what:
        case "link":
            folder.output.symlink_to(tmp_path / "secret")
        case "pipe":
            os.mkfifo(folder.output)
        case "folder":
            folder.output.mkdir()
    put(folder, whole(1))
    assert text_in(drain(spool_of(folder))) == b""
    assert list(records_in(drain(spool_of(folder)))) == [1]


@pytest.mark.parametrize("spare", [0, 1])
def test_what_cannot_be_opened_now_is_not_taken_for_the_end(
    folder: ReplicaFolder, spare: int
) -> None:
    put(folder, whole(3))
    spool = spool_of(folder)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + spare, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            spool.read(final=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert list(records_in(drain(spool))) == [1, 2, 3]


@pytest.mark.parametrize("what", ["link", "folder link", "pipe", "device link", "folder"])
def test_nothing_but_regular_files_is_opened(
    folder: ReplicaFolder, tmp_path: Path, what: str
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "1.records").write_bytes(whole(3))
    target = folder.spool / "1.records"
    match what:
        case "link":
            target.symlink_to(secret / "1.records")
        case "folder link":
            shutil.rmtree(folder.spool)
            folder.spool.symlink_to(secret)
        case "pipe":
            os.mkfifo(target)
        case "device link":
            target.symlink_to("/dev/zero")
        case _:
            target.mkdir()
    assert drain(spool_of(folder)) == []


def test_a_missing_folder_is_an_empty_one(tmp_path: Path) -> None:
    assert spool_of(ReplicaFolder(tmp_path / "nothing")).read() == []


def test_feigned_frames_cost_a_bounded_search(folder: ReplicaFolder) -> None:
    # every position looks like a long frame with a number that may come
    feigned = (b"\0\0\x08\0" + b"\x02\0\0\0") * 40_000
    put(folder, MAGIC + frame(1, b"{}") + b"\xff" * 16 + feigned)
    spool = spool_of(folder)
    assert list(records_in(spool.read())) == [1]
    spool.read()
    assert spool.read() == []


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_any_damage_loses_only_what_it_touches(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = new_folder(tmp_path_factory.mktemp("spool"))
    count = data.draw(st.integers(1, 12))
    sizes = data.draw(st.lists(st.integers(0, 60), min_size=count, max_size=count))
    bodies = {n: bytes([n]) * size for n, size in enumerate(sizes, 1)}
    frames = {n: frame(n, body) for n, body in bodies.items()}
    content = bytearray(MAGIC + b"".join(frames.values()))
    damage = data.draw(st.integers(8, len(content) - 1))
    length = data.draw(st.integers(1, 30))
    noise = data.draw(st.binary(min_size=length, max_size=length))
    content[damage : damage + length] = noise[: len(content) - damage]
    put(folder, bytes(content))

    position, touched = len(MAGIC), set()
    for n, whole_frame in frames.items():
        end = position + len(whole_frame)
        if content[position:end] != whole_frame:
            touched.add(n)
        position = end
    found = records_in(drain(spool_of(folder)))
    for n, body in bodies.items():
        if n not in touched:
            assert found[n] == body
    assert all(body in (bodies.get(n), b"GAP") for n, body in found.items())
    if touched and max(touched) < count:
        assert {n for n, body in found.items() if body == b"GAP"} == touched


def test_room_that_was_taken_and_not_written_to_is_a_hole_of_the_log(
    folder: ReplicaFolder,
) -> None:
    """To send its zeros would take an hour, and for so long the disk would be as full."""
    size, limit = 256 << 20, 64 << 10
    spool = spool_of(folder, SpoolLimits(bytes=limit))
    with folder.output.open("wb") as file:
        file.write(b"begins\n")
        file.flush()
        items = drain(spool, final=False)  # to the middle of a page
        os.posix_fallocate(file.fileno(), 0, size)
        with folder.output.open("rb") as own:
            if os.lseek(own.fileno(), 0, os.SEEK_HOLE) > 1 << 20:
                pytest.skip("this file system writes what it is asked to allocate")
            # as the program may: what is read has the kernel read ahead, also for others
            own.read(8 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"ends\n")
    items += drain(spool)
    texts = [item.text for item in items if isinstance(item, Batch)]
    assert b"".join(texts).replace(b"\0", b"") == b"begins\nends\n"
    assert sum(map(len, texts)) < size // 16
    assert any(isinstance(item, Gap) for item in items)


@pytest.mark.parametrize("start", [b"", whole(3)])
def test_a_file_of_holes_is_not_read_for_days(folder: ReplicaFolder, start: bytes) -> None:
    for writer in (1, 2, 3):
        put(folder, start, writer)
        os.truncate(folder.spool / f"{writer}.records", 1 << 40)
    put(folder, whole(2), writer=4)
    spool = spool_of(folder)
    items = drain(spool, final=False)
    items += drain(spool)
    assert list(records_in(items, 4)) == [1, 2]
    told = [item for item in items if isinstance(item, Batch) and item.stream == metric(1)]
    assert sum(len(item.records) for item in told) == start.count(b'"kind"')
    assert spool.read(final=True) == []


def test_more_damage_than_may_be_searched_is_lost(folder: ReplicaFolder) -> None:
    put(folder, MAGIC + frame(1, b"{}") + b"\xff" * 2000 + frame(2, b"{}"))
    descriptor = os.open(folder.spool / "1.records", os.O_RDONLY)
    try:
        for left, found in ((1 << 20, [1, 2]), (0, [1])):
            file = RecordFile(metric(1), Cursor.start(Channel.METRIC), Search(left))
            items = [
                item for _ in range(4) for item in file.read(descriptor, SpoolLimits(), final=True)
            ]
            batches = [item for item in items if isinstance(item, Batch)]
            assert [item.first for item in batches] == found
            assert file.cursor.offset == os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_any_pace_of_writing_and_restarting_gives_each_once(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = new_folder(tmp_path_factory.mktemp("spool"))
    content = whole(data.draw(st.integers(0, 30)))
    text = bytes(range(256)) * 3
    limits = SpoolLimits(bytes=data.draw(st.integers(1, 400)), records=data.draw(st.integers(1, 9)))
    acknowledged: dict[StreamId, Cursor] = {}
    items: list[Item] = []
    spool = spool_of(folder, limits)
    written = 0
    while written < len(content):
        written += data.draw(st.integers(1, max(len(content) // 3, 1)))
        put(folder, content[:written])
        folder.output.write_bytes(text[:written])
        read = spool.read()
        if data.draw(st.booleans()):
            items += read
            acknowledged.update({item.stream: item.cursor for item in read})
        else:
            spool = ReplicaSpool(REPLICA, folder, acknowledged, limits)
    spool = ReplicaSpool(REPLICA, folder, acknowledged, limits)
    items += drain(spool)
    assert all(isinstance(item, Batch) for item in items)
    assert records_in(items) == {n: payload(n) for n in range(1, len(records_in(items)) + 1)}
    assert len(records_in(items)) == content.count(b'"kind"')
    assert text_in(items) == text[:written]


async def test_following_ends_with_the_replica(folder: ReplicaFolder) -> None:
    follower = SpoolFollower(spool_of(folder), inline, longest_s=1000, shortest_s=1000)
    got: list[Item] = []

    async def follow() -> None:
        async for items in follower:
            got.extend(items)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(follow())
        await asyncio.sleep(0)
        put(folder, whole(2))
        follower.poke()
        while not got:  # noqa: ASYNC110 - each turn of the loop lets the follower read
            await asyncio.sleep(0)
        folder.output.write_bytes(b"last words")
        put(folder, whole(3) + b"torn")
        follower.end()
    assert list(records_in(got)) == [1, 2, 3]
    assert text_in(got) == b"last words"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders to others")
def test_records_of_another_user_are_not_read(folder: ReplicaFolder, tmp_path: Path) -> None:
    """A hard link is no right to read what it names, whatever the kernel lets a program link to."""
    put(folder, whole(1), writer=1)
    folder.give(1_912_345_678, 1_912_345_678)
    theirs = tmp_path / "theirs"
    theirs.write_bytes(whole(2))
    os.link(theirs, folder.spool / "2.records")
    assert {item.stream for item in spool_of(folder).read(final=True)} == {metric(1)}


def test_a_file_full_of_gaps_is_few_chunks_and_all_of_it_comes(folder: ReplicaFolder) -> None:
    numbers = range(2, 20_001, 2)
    put(folder, MAGIC + b"".join(frame(n, payload(n)) for n in numbers))
    items = drain(spool_of(folder))
    assert len(items) < 100
    found = list(records_in(items).values())
    assert [body for body in found if body != b"GAP"] == [payload(n) for n in numbers]
    assert found.count(b"GAP") == 10_000


class Receiver:
    """What a control plane holds of one stream: what comes again must be what came before."""

    def __init__(self) -> None:
        self.held: dict[int, bytes] = {}

    def take(self, items: Sequence[Item]) -> None:
        for item in items:
            bodies = (
                item.records
                if isinstance(item, Batch)
                else (b"GAP",) * (item.last - item.first + 1)
            )
            for number, body in zip(range(item.first, item.last + 1), bodies, strict=True):
                assert self.held.setdefault(number, body) == body, "told anew as something else"


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_any_gaps_are_told_once_at_any_pace_of_writing_acknowledging_and_restarting(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = new_folder(tmp_path_factory.mktemp("spool"))
    steps = data.draw(st.lists(st.sampled_from([1, 1, 2, 7]), max_size=40))
    numbers = [sum(steps[: at + 1]) for at in range(len(steps))]
    content = MAGIC + b"".join(frame(n, payload(n)) for n in numbers)
    lost = data.draw(st.sampled_from([0, 3]))
    limits = SpoolLimits(bytes=data.draw(st.integers(1, 400)), records=data.draw(st.integers(1, 9)))
    start = Cursor(last=0, offset=0, gap_credit=data.draw(st.integers(0, 2 * GAP_COST)))
    acknowledged = {metric(1): start}
    receiver, spool, written = Receiver(), spool_of(folder), 0
    spool = ReplicaSpool(REPLICA, folder, acknowledged, limits)
    while written < len(content):
        written += data.draw(st.integers(1, max(len(content) // 3, 1)))
        put(folder, content[:written])
        for _ in range(data.draw(st.integers(1, 4))):
            read = spool.read()
            receiver.take(read)
            until = data.draw(st.integers(0, len(read)))
            acknowledged.update({item.stream: item.cursor for item in read[:until]})
            if until < len(read) or data.draw(st.booleans()):
                spool = ReplicaSpool(REPLICA, folder, acknowledged, limits)
    last = max(numbers, default=0)
    tell_lost(folder, json.dumps({"after": last, "count": lost}))
    if data.draw(st.booleans()):
        receiver.take(drain(spool))
        spool = ReplicaSpool(REPLICA, folder, acknowledged, limits)
    receiver.take(drain(spool))
    told = [receiver.held[position] for position in sorted(receiver.held)]
    assert len(told) == last + lost == max(receiver.held, default=0)
    assert [body for body in told if body != b"GAP"] == [payload(n) for n in numbers]


def test_what_is_missing_of_a_removed_file_is_told_and_its_number_not_read_again(
    folder: ReplicaFolder,
) -> None:
    spool = ReplicaSpool(REPLICA, folder, {metric(1): Cursor(last=0, offset=0, gap_credit=0)})
    put(folder, MAGIC + frame(3, payload(3)))
    (folder.spool / FIRST_LOST).unlink()
    items = drain(spool, final=False)
    assert list(records_in(items).values()) == [payload(3)]
    (folder.spool / "1.records").unlink()
    items += spool.read()
    assert list(records_in(items).values()) == [payload(3), b"GAP", b"GAP"]
    assert not spool.gone, "not before what is missing is on its way"
    assert spool.read() == []
    assert spool.gone == {metric(1)}
    spool.forget(metric(1))
    put(folder, whole(9))
    spool.rewind({})
    assert drain(spool) == []
    put(folder, whole(2), writer=2)
    assert list(records_in(drain(spool), 2)) == [1, 2]


def test_what_is_missing_is_told_when_the_folder_is_removed(folder: ReplicaFolder) -> None:
    spool = ReplicaSpool(REPLICA, folder, {metric(1): Cursor(last=0, offset=0, gap_credit=0)})
    put(folder, MAGIC + frame(3, payload(3)))
    items = drain(spool, final=False)
    shutil.rmtree(folder.spool)
    items += drain(spool)
    assert list(records_in(items).values()) == [payload(3), b"GAP", b"GAP"]


def test_files_with_higher_numbers_than_are_read_are_one_gap_told_once(
    folder: ReplicaFolder,
) -> None:
    cursors: dict[StreamId, Cursor] = {}
    limits = SpoolLimits(files=5)
    told = []
    for start in (6, 100, 1000):
        spool = ReplicaSpool(REPLICA, folder, cursors, limits)
        for writer in range(start, start + 5):
            put(folder, whole(1), writer)
        items = drain(spool, final=False)
        told += items
        cursors |= {item.stream: item.cursor for item in items}
    (gap,) = told
    assert isinstance(gap, Gap)
    assert (gap.stream, gap.first, gap.last) == (metric(6), 1, 1)
