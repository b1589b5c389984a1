"""What one replica wrote on its way over connections that break."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest
from structlog.testing import capture_logs

from nodeagent.collect.ingest import Collection, Ingest
from nodeagent.collect.send_window import MESSAGE_CHUNKS, MESSAGES_AHEAD, SendQueue
from nodeagent.collect.streams import Channel, Cursor, StreamId
from nodeagent.folders import ReplicaFolder, ReplicaId
from nodeagent.storage import checkpoints
from nodeagent.storage.checkpoints import SavedCheckpoint, Uploads
from nsml._frames import MAGIC, frame
from nsml.client.errors import Unavailable
from nsml.common.clock import SystemClock, inline
from nsml.v1 import agents_pb2 as pb

REPLICA = ReplicaId(session_id="s" + "a" * 16, attempt=1, rank=0)
LOG = StreamId(replica_id=REPLICA, channel=Channel.LOG, writer=0)
PIECE = 256 * 1024


class HandClock:
    """Passes by being slept; `free` lets those go on who sleep."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept = 0.0
        self.free = asyncio.Event()
        self.waited = asyncio.Event()

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.waited.set()
        await self.free.wait()
        self.now += seconds
        self.slept += seconds


class Outgoing(SendQueue):
    """One without bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: asyncio.Queue[pb.Chunk] = asyncio.Queue()

    async def put(self, _: ReplicaId, chunk: pb.Chunk) -> None:
        self.sent.put_nowait(chunk)


class Bench:
    """One replica's folder and its collection; `told` is what its program said of pauses."""

    def __init__(self, path: Path, replica_id: ReplicaId = REPLICA) -> None:
        self.folder = ReplicaFolder(path)
        self.folder.create()
        self.told: list[bool] = []
        self.clock = HandClock()
        self.uploads = Uploads(
            replica_id, self.folder, rpc=_unreachable, run=inline, pause=_no_pause, clock=self.clock
        )
        self.collection = Collection(
            replica_id,
            self.folder,
            {},
            uploads=self.uploads,
            paused=self.told.append,
            run=inline,
            clock=self.clock,
        )

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Outgoing]:
        """What is sent over one connection; it is broken at the end."""
        outgoing = Outgoing()
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            pumping = group.create_task(self.collection.pump(outgoing))
            yield outgoing
            pumping.cancel()


def _unreachable() -> NoReturn:
    raise AssertionError("nothing is to be sent")


async def _no_pause() -> None:
    return


async def chunk(outgoing: Outgoing) -> pb.Chunk:
    return await outgoing.sent.get()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / str(REPLICA))


async def test_a_piece_is_acknowledged_when_all_of_it_is(bench: Bench) -> None:
    bench.folder.output.write_bytes(b"x" * (PIECE + 1000))
    async with bench.connection() as outgoing:
        first, second = await chunk(outgoing), await chunk(outgoing)
        assert (first.first, first.last, second.last) == (0, PIECE - 1, PIECE + 999)
        assert bench.collection.acknowledge(LOG, PIECE - 1) is None
        moved = bench.collection.acknowledge(LOG, second.last)
        assert moved == Cursor(last=PIECE - 1, offset=PIECE)
        moved = bench.collection.acknowledge(LOG, second.last + 1)
        assert moved == Cursor(last=PIECE + 999, offset=PIECE + 1000)


async def test_the_next_connection_begins_behind_what_is_acknowledged(bench: Bench) -> None:
    bench.folder.output.write_bytes(b"x" * (PIECE + 1000))
    async with bench.connection() as outgoing:
        await chunk(outgoing)
        await chunk(outgoing)
        bench.collection.acknowledge(LOG, PIECE)
    async with bench.connection() as outgoing:
        assert (await chunk(outgoing)).first == PIECE


async def test_what_is_sent_twice_is_acted_on_once(bench: Bench) -> None:
    paused = frame(1, b'{"kind":"state","time":1.0,"state":"PAUSED"}')
    (bench.folder.spool / "1.records").write_bytes(MAGIC + paused)
    for _ in range(2):
        async with bench.connection() as outgoing:
            assert len((await chunk(outgoing)).records) == 1
    assert bench.told == [True]


async def test_one_replica_has_no_more_than_its_share_on_the_way(bench: Bench) -> None:
    bench.folder.output.write_bytes(b"x" * (10 << 20))
    async with bench.connection() as outgoing:
        sent = 0
        while sent < 4 << 20:
            sent = (await chunk(outgoing)).last + 1
        for _ in range(100):
            await asyncio.sleep(0)
        assert outgoing.sent.empty()
        bench.collection.acknowledge(LOG, sent)
        assert (await chunk(outgoing)).first == sent


@pytest.mark.parametrize("leap", [1, 2])
async def test_records_with_nothing_in_them_have_a_share_too(bench: Bench, leap: int) -> None:
    numbers = range(1, 400_000 * leap, leap)
    content = MAGIC + b"".join(frame(number, b"") for number in numbers)
    (bench.folder.spool / "1.records").write_bytes(content)
    with capture_logs() as said:
        sent = await sent_unacknowledged(bench)
    assert 0 < sent < numbers[-1] / 2
    assert len(said) < leap


async def sent_unacknowledged(bench: Bench) -> int:
    """The last position that is sent while nothing is acknowledged."""
    async with bench.connection() as outgoing:
        sent = 0
        for _ in range(100_000):
            await asyncio.sleep(0)
            if not outgoing.sent.empty():
                sent = (await chunk(outgoing)).last
    return sent


async def test_the_log_of_a_flood_is_paced_and_records_are_not(tmp_path: Path) -> None:
    waited: list[int] = []

    class Pace:
        async def wait(self, size: int) -> None:
            waited.append(size)

    bench = Bench(tmp_path / "replica")
    bench.collection._pace = Pace()  # type: ignore[assignment]
    bench.folder.output.write_bytes(b"x" * 1_000)
    async with bench.connection() as outgoing:
        assert (await chunk(outgoing)).data == b"x" * 1_000
    assert waited == [1_000]


def write_records(bench: Bench, *records: dict[str, object]) -> None:
    frames = [frame(n, json.dumps(one).encode()) for n, one in enumerate(records, start=1)]
    (bench.folder.spool / "1.records").write_bytes(MAGIC + b"".join(frames))


def saved(name: str, number: int = 1) -> dict[str, object]:
    return {"kind": "checkpoint", "name": name, "folder": f"{number}-x", "time": 1.0, "files": []}


def save(bench: Bench, *records: dict[str, object]) -> None:
    """Checkpoints with their folders."""
    for record in records:
        (bench.folder.checkpoints / str(record["folder"])).mkdir(parents=True)
    write_records(bench, *records)


async def last_sent(outgoing: Outgoing, last: int) -> None:
    while (await chunk(outgoing)).last < last:
        pass


async def test_records_of_checkpoints_are_acted_on_at_a_pace(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is noted on disk and looked for, by an agent that all sessions of the node need."""
    notes: list[int] = []
    monkeypatch.setattr(checkpoints, "_write_note", lambda _, pending: notes.append(len(pending)))
    save(bench, *(saved(f"{number}", number) for number in range(1, 6_001)))
    async with bench.connection() as outgoing:
        await bench.clock.waited.wait()
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert outgoing.sent.empty()
        assert sum(notes) == 0  # what is over a burst waits, and is noted nowhere yet
        bench.clock.free.set()
        await last_sent(outgoing, 6_000)
    assert bench.clock.slept >= 500
    assert notes[-1] == 6_000
    assert len(notes) < 100


async def test_checkpoints_of_one_name_wait_for_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that saved all night while the platform was away is not kept for hours."""
    notes: list[str] = []

    def note(_: Path, pending: Sequence[SavedCheckpoint]) -> None:
        notes.extend(one.folder for one in pending)

    monkeypatch.setattr(checkpoints, "_write_note", note)
    save(bench, *(saved("last", number) for number in range(1, 6_001)))
    async with bench.connection() as outgoing:
        await last_sent(outgoing, 6_000)
    assert bench.clock.slept == 0
    assert notes[-1] == "6000-x"
    assert len(notes) < 100


@pytest.mark.parametrize("folder", ["none", "../../etc", "link", ""])
async def test_false_reports_of_checkpoints_cost_no_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Names without a folder are dropped at once; one folder is one checkpoint, whatever names it is given."""
    notes: list[int] = []
    lost: list[str] = []

    async def report_loss(_: object, checkpoint: SavedCheckpoint, __: Exception) -> None:
        lost.append(checkpoint.name)

    monkeypatch.setattr(checkpoints.Uploads, "_report_loss", report_loss)
    monkeypatch.setattr(checkpoints, "_write_note", lambda _, pending: notes.append(len(pending)))
    bench.folder.checkpoints.mkdir(parents=True, exist_ok=True)
    (bench.folder.checkpoints / "link").symlink_to("/etc")
    (bench.folder.checkpoints / "1-x").mkdir()
    false = [{**saved(f"f{number}"), "folder": folder} for number in range(3_000)]
    same = [saved(f"s{number}") for number in range(3_000)]
    write_records(bench, *false, *same)
    async with bench.connection() as outgoing:
        await last_sent(outgoing, 6_000)
    assert bench.clock.slept == 0
    assert sum(notes) < 100
    assert len(lost) < 100  # a few of those that came together
    assert all(name.startswith("f") for name in lost)


async def test_a_platform_that_is_away_is_waited_for_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    async def report_loss(_: object, checkpoint: SavedCheckpoint, __: Exception) -> None:
        tries.append(checkpoint.name)
        raise Unavailable("away")

    monkeypatch.setattr(checkpoints.Uploads, "_report_loss", report_loss)
    missing = [{**saved(f"f{number}"), "folder": f"{number}-none"} for number in range(8)]
    write_records(bench, *missing)
    async with bench.connection() as outgoing:
        await last_sent(outgoing, 8)
    assert len(tries) == 1


async def test_after_the_end_no_checkpoint_waits_for_its_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that waits already: all are noted, and sent as fast as they go."""
    notes: list[int] = []
    monkeypatch.setattr(checkpoints, "_write_note", lambda _, pending: notes.append(len(pending)))
    save(bench, *(saved(f"{number}", number) for number in range(1, 6_001)))
    async with bench.connection() as outgoing:
        await bench.clock.waited.wait()
        bench.collection.finish()
        await last_sent(outgoing, 6_000)
    assert notes[-1] == 6_000


async def test_a_state_that_changes_all_the_time_is_told_now_and_then(bench: Bench) -> None:
    states = [{"kind": "state", "state": ("PAUSED", "RUNNING")[n % 2]} for n in range(6_000)]
    write_records(bench, *states, {"kind": "state", "state": "PAUSED"})
    async with bench.connection() as outgoing:
        await last_sent(outgoing, 6_001)
    assert bench.told[-1] is True
    assert len(bench.told) < 50


OTHER = ReplicaId(session_id="s" + "b" * 16, attempt=1, rank=0)


class SlowPlane:
    """A control plane that answers a message when it is told to; its own link, ways and call."""

    now = "here"
    addresses = ("here",)

    def __init__(self) -> None:
        self.known = asyncio.Event()
        self.known.set()
        self.ways = self
        self.sent: list[pb.IngestRequest] = []
        self._answers: asyncio.Queue[pb.IngestResponse] = asyncio.Queue()
        self._answered = 0

    def open_any(self, *_: object) -> SlowPlane:
        return self

    async def write(self, message: pb.IngestRequest) -> None:
        self.sent.append(message)

    async def read(self) -> pb.IngestResponse:
        return await self._answers.get()

    def cancel(self) -> None:
        return

    def answer(self) -> None:
        """Say that the oldest message is on disk, where one is not answered yet."""
        if self._answered == len(self.sent):
            return
        wanted = {
            one.stream.SerializeToString(): pb.Cursor(stream=one.stream, next=one.last + 1)
            for one in self.sent[self._answered].chunks
        }
        self._answered += 1
        self._answers.put_nowait(pb.IngestResponse(acknowledged=wanted.values()))

    def chunks(self) -> list[pb.Chunk]:
        return [one for message in self.sent for one in message.chunks]


@asynccontextmanager
async def sending(plane: SlowPlane) -> AsyncIterator[Ingest]:
    async def remember(_: object) -> None:
        return

    ingest = Ingest(
        plane,  # type: ignore[arg-type]
        remember=remember,
        clock=SystemClock(),
        rng=random.Random(1),
        longest_backoff_s=1.0,
    )
    running = asyncio.create_task(ingest.run())
    async with asyncio.timeout(60):
        yield ingest
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def settled(plane: SlowPlane) -> None:
    """Return once nothing more is sent without an answer."""
    quiet, before = 0, -1
    while quiet < 50:
        quiet, before = (quiet + 1 if len(plane.sent) == before else 0), len(plane.sent)
        await asyncio.sleep(0)


async def test_no_replica_waits_for_what_another_has_written(tmp_path: Path) -> None:
    """However many chunks these are, and however slowly they are taken."""
    flood, other = Bench(tmp_path / "flood"), Bench(tmp_path / "other", OTHER)
    for writer in range(1, 2_001):
        (flood.folder.spool / f"{writer}.records").write_bytes(MAGIC + frame(1, b"{}"))
    plane = SlowPlane()
    async with sending(plane) as ingest, ingest.collecting(flood.collection):
        await settled(plane)
        other.folder.output.write_bytes(b"here I am")
        async with ingest.collecting(other.collection):
            ahead = 0
            while not any(one.data for one in plane.chunks()):
                plane.answer()
                await settled(plane)
            ahead = [bool(one.data) for one in plane.chunks()].index(True)
    assert ahead <= MESSAGE_CHUNKS * (MESSAGES_AHEAD + 1)


async def test_streams_of_removed_files_are_forgotten_once_acknowledged(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "replica")
    for writer in (1, 2):
        (bench.folder.spool / f"{writer}.records").write_bytes(MAGIC + frame(1, b"{}"))
    (bench.folder.spool / "1.lost").unlink()
    first, second = (
        StreamId(replica_id=REPLICA, channel=Channel.METRIC, writer=writer) for writer in (1, 2)
    )
    async with bench.connection() as outgoing:
        await chunk(outgoing)
        await chunk(outgoing)
        (bench.folder.spool / "1.records").unlink()
        (bench.folder.spool / "2.records").open("ab").write(frame(2, b"{}"))
        await chunk(outgoing)  # the pass that found the file removed
        assert bench.collection.forget_removed() == []
        bench.collection.acknowledge(second, 3)
        assert bench.collection.forget_removed() == []
        bench.collection.acknowledge(first, 2)
        assert bench.collection.forget_removed() == [first]
        assert bench.collection.forget_removed() == []
