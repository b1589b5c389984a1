"""Metrics out of a log: live, once each, whatever agent dies when, and bounded."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.collect import log_metrics
from nodeagent.collect.log_metrics import LOG_WRITER, LogMetrics
from nodeagent.collect.spool import ReplicaSpool, SpoolFollower, SpoolLimits
from nodeagent.collect.streams import Batch, Channel, Cursor, StreamId
from nodeagent.folders import ReplicaFolder, ReplicaId
from nsml._frames import MAGIC, frame, parse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

REPLICA = ReplicaId(session_id="s" + "a" * 16, attempt=1, rank=0)
STREAM = StreamId(replica_id=REPLICA, channel=Channel.METRIC, writer=LOG_WRITER)
TWO_STEPS = (r"a=a(\d) s(?P<step>\d)", r"b=b(\d) t(?P<step>\d)", "auto")


class Clock:
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Agent:
    """What one agent process knows of a replica; `cursors` outlive it."""

    def __init__(
        self,
        folder: ReplicaFolder,
        requests: Sequence[str] = ("auto",),
        cursors: Mapping[StreamId, Cursor] | None = None,
        *,
        piece: int = 256 * 1024,
    ) -> None:
        self.clock = Clock()
        self.metrics = LogMetrics(folder, requests, self.clock)
        self.spool = ReplicaSpool(
            REPLICA,
            folder,
            cursors or {},
            SpoolLimits(bytes=piece),
            log_metrics=self.metrics,
        )
        self.cursors = dict(cursors or {})

    def look(self, *, final: bool = False) -> dict[int, bytes]:
        """Look until there is nothing more; return the records by position, and acknowledge them."""
        found: dict[int, bytes] = {}
        while True:
            items = self.spool.read(final=final)
            for item in items:
                self.cursors[item.stream] = item.cursor
                if item.stream == STREAM:
                    assert isinstance(item, Batch)
                    found |= dict(enumerate(item.records, start=item.first))
            if not items and not self.spool.is_searching:
                return found


@pytest.fixture
def folder(tmp_path: Path) -> ReplicaFolder:
    made = ReplicaFolder(tmp_path / str(REPLICA))
    made.create()
    return made


def points(records: Mapping[int, bytes]) -> list[tuple[Any, dict[str, Any]]]:
    """Steps and values of records in order; no position is missing."""
    assert sorted(records) == list(
        range(min(records, default=1), min(records, default=1) + len(records))
    )
    read = [json.loads(records[n]) for n in sorted(records)]
    return [(one["step"], one["values"]) for one in read if one["kind"] == "metric"]


def write(folder: ReplicaFolder, text: bytes) -> None:
    with folder.output.open("ab") as output:
        output.write(text)


def test_a_line_becomes_a_record_of_the_log(folder: ReplicaFolder) -> None:
    agent = Agent(folder)
    write(folder, b"hello\nstep 3 loss: 0.5\nstep 4 loss: na")
    records = agent.look()
    assert points(records) == [(3.0, {"loss": 0.5})]
    record = json.loads(records[1])
    assert records[1].startswith(b'{"kind":"metric",')
    assert records[1].endswith(b'"origin":"log"}')
    assert record["time"] == 1_000.0
    assert record["log"][:2] == [6, 23]
    agent.clock.now = 1_001.0
    write(folder, b"n\n")
    records = agent.look()
    assert points(records) == [(4.0, {"loss": "NaN"})]
    assert json.loads(records[2])["time"] == 1_001.0


def test_losses_and_accuracies_are_for_the_summary(folder: ReplicaFolder) -> None:
    agent = Agent(folder)
    write(folder, b"step 3 - loss: 0.5 - lr: 0.1 - val_acc: 0.8\nstep 4: loss: 0.4\n")
    records = agent.look()
    read = [json.loads(records[n]) for n in sorted(records)]
    assert [(one["values"], one.get("summary")) for one in read] == [
        ({"lr": 0.1}, None),
        ({"loss": 0.5, "val_acc": 0.8}, True),
        ({"loss": 0.4}, True),
    ]
    # The next agent goes on behind the last record of a line, not between two.
    assert [one["log"][1] for one in read] == [None, 44, 62]
    assert Agent(folder, cursors=agent.cursors).look() == {}


def test_the_last_line_counts_without_its_end(folder: ReplicaFolder) -> None:
    agent = Agent(folder)
    write(folder, b"loss=1\nloss=2")
    assert points(agent.look()) == [(None, {"loss": 1.0})]
    assert points(agent.look(final=True)) == [(None, {"loss": 2.0})]
    assert agent.look(final=True) == {}
    assert Agent(folder, cursors=agent.cursors).look(final=True) == {}


def test_without_requests_there_is_no_file(folder: ReplicaFolder) -> None:
    write(folder, b"loss=1\n")
    spool = ReplicaSpool(REPLICA, folder, {})
    assert [item.stream.channel for item in spool.read()] == [Channel.LOG]
    assert not folder.log_records.exists()


def test_an_agent_that_forgot_its_cursors_sends_the_same_again(folder: ReplicaFolder) -> None:
    write(folder, b"loss=1\nloss=2\n")
    first = Agent(folder).look()
    write(folder, b"loss=3\n")
    second = Agent(folder).look()
    assert first.items() <= second.items()
    assert points(second) == [(None, {"loss": n}) for n in (1.0, 2.0, 3.0)]


def test_an_agent_that_died_while_it_wrote_repeats_and_loses_nothing(
    folder: ReplicaFolder,
) -> None:
    """Its file ends anywhere: between two records, within one, between those of one line."""
    log = (
        b"Epoch 1/3\na1 s2 b3 t4 5/9 - loss: 0.5\nplain\nEpoch 2/3\na5 s6 b7 t8\n1/9 - loss: 0.25\n"
    )
    write(folder, log)
    whole = Agent(folder, TWO_STEPS).look(final=True)
    assert len(points(whole)) == 6
    file = folder.log_records.read_bytes()
    for size in range(len(file) + 1):
        folder.log_records.write_bytes(file[:size])
        again = Agent(folder, TWO_STEPS).look(final=True)
        assert again == whole, size
        assert folder.log_records.read_bytes() == file


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_agents_that_die_at_any_time_together_send_each_point_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The log grows, agents look, are killed with or without their newest cursors, and their file is torn."""
    folder = ReplicaFolder(tmp_path_factory.mktemp("replica") / str(REPLICA))
    folder.create()
    lines = data.draw(
        st.lists(
            st.sampled_from(
                [
                    "Epoch 1/9\n",
                    "Epoch 2/9\n",
                    "1/5 - loss: 1\n",
                    "a1 s2 b3 t4 loss=5\n",
                    "no\n",
                    "loss=1\r",
                ]
            ),
            max_size=20,
        )
    )
    log = "".join(lines).encode()
    edges = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=8)))
    stored: dict[int, bytes] = {}
    cursors: dict[StreamId, Cursor] = {}
    at = 0
    for edge in [*edges, len(log)]:
        write(folder, log[at:edge])
        at = edge
        agent = Agent(folder, TWO_STEPS, cursors, piece=data.draw(st.sampled_from([7, 64, 4096])))
        for position, record in agent.look().items():
            assert (
                json.loads(stored.setdefault(position, record))["log"] == json.loads(record)["log"]
            )
        if data.draw(st.booleans()):
            cursors = agent.cursors
        elif stored and data.draw(st.booleans()):
            # The next one dies while it writes what this one has not read yet.
            write(folder, b"")
            with folder.log_records.open("ab") as file:
                file.write(
                    frame(len(stored) + 1, b'{"kind":"metric","log":[0,null]}')[
                        : data.draw(st.integers(0, 40))
                    ]
                )
    agent = Agent(folder, TWO_STEPS, cursors)
    for position, record in agent.look(final=True).items():
        stored.setdefault(position, record)
    other = ReplicaFolder(tmp_path_factory.mktemp("other") / str(REPLICA))
    other.create()
    write(other, log)
    assert points(stored) == points(Agent(other, TWO_STEPS).look(final=True))


def test_a_damaged_file_is_begun_anew_behind_its_good_part(folder: ReplicaFolder) -> None:
    write(folder, b"loss=1\nloss=2\n")
    Agent(folder).look()
    file = bytearray(folder.log_records.read_bytes())
    file[-3] ^= 1
    folder.log_records.write_bytes(file)
    assert points(Agent(folder).look()) == [(None, {"loss": 1.0}), (None, {"loss": 2.0})]
    folder.log_records.write_bytes(b"garbage" * 9)
    assert points(Agent(folder).look()) == [(None, {"loss": 1.0}), (None, {"loss": 2.0})]


def test_a_large_file_is_read_in_parts(
    folder: ReplicaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_metrics, "_PIECE", 100)
    write(folder, b"".join(b"step %d loss=1\n" % n for n in range(300)))
    whole = Agent(folder).look()
    assert Agent(folder).look() == whole
    write(folder, b"step 300 loss=1\n")
    assert len(Agent(folder).look()) == 301


def test_a_log_that_the_program_shortens_is_read_from_its_new_beginning(
    folder: ReplicaFolder,
) -> None:
    agent = Agent(folder)
    write(folder, b"step 1 loss=1\n" * 3)
    assert len(agent.look()) == 3
    folder.output.write_bytes(b"loss=7\n")
    assert points(agent.look()) == [(None, {"loss": 7.0})]


def test_what_cannot_be_written_waits(
    folder: ReplicaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(folder)
    write(folder, b"loss=1\n")
    assert len(agent.look()) == 1
    real = os.pwrite
    full = [True]

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if full[0]:
            full[0] = False
            return real(descriptor, data[: len(data) // 2], offset)
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(log_metrics.os, "pwrite", pwrite)
    write(folder, b"loss=2\nloss=3\n")
    assert agent.look() == {}
    assert agent.look() == {}
    monkeypatch.undo()
    assert points(agent.look()) == [(None, {"loss": 2.0}), (None, {"loss": 3.0})]
    assert len(parse(folder.log_records.read_bytes())[0]) == 3


def test_an_end_comes_with_a_full_disk_too(
    folder: ReplicaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pwrite(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    write(folder, b"loss=1\n")
    monkeypatch.setattr(log_metrics.os, "pwrite", pwrite)
    assert Agent(folder).look(final=True) == {}


def test_lines_beyond_the_rate_are_counted_and_reported(
    folder: ReplicaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_metrics, "BURST_LINES", 10)
    agent = Agent(folder)
    write(folder, b"nothing here\n" * 1000 + b"loss=1\n" * 25)
    records = agent.look()
    assert len(points(records)) == 10
    assert json.loads(records[11])["kind"] == "dropped"
    assert json.loads(records[11])["count"] == 15
    assert "a second" in json.loads(records[11])["reason"]
    agent.clock.now += 1.0
    write(folder, b"loss=2\n" * 12)
    assert len(points(agent.look())) == 10
    assert json.loads(agent.look(final=True)[22])["count"] == 2


def test_the_file_is_bounded(folder: ReplicaFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_metrics, "MOST_BYTES", 500)
    agent = Agent(folder, piece=64)
    write(folder, b"loss=1\n" * 1000)
    records = agent.look(final=True)
    last = json.loads(records[max(records)])
    assert last["kind"] == "dropped"
    assert (
        len(points(records)) + sum(json.loads(one).get("count", 0) for one in records.values())
        == 1000
    )
    assert folder.log_records.stat().st_size < 4096


@pytest.mark.parametrize(
    "text",
    [
        b"\x00" * (1 << 20),
        bytes(range(256)) * 8192,
        b"x" * (3 << 20),
        b"\r" * 100_000,
        b"=1" * 500_000,
    ],
    ids=["zeros", "binary", "a line", "returns", "signs"],
)
def test_hostile_output_is_passed_by(folder: ReplicaFolder, text: bytes) -> None:
    write(folder, text + b"\nloss=1\n")
    assert points(Agent(folder, ("auto", r"z=(?P<step>\d)z(\d)")).look())[-1] == (
        None,
        {"loss": 1.0},
    )


async def test_an_end_waits_for_the_last_metric_of_a_long_log(folder: ReplicaFolder) -> None:
    """Also where the log itself was sent by an earlier agent, and long parts of it have no metric."""
    write(folder, b"nothing here\n" * 200_000 + b"loss=1\n")
    agent = Agent(folder, cursors={})
    log = StreamId(replica_id=REPLICA, channel=Channel.LOG, writer=0)
    size = folder.output.stat().st_size
    agent.spool.rewind({log: Cursor(last=size - 1, offset=size)})

    async def run(work: Any) -> Any:
        return await asyncio.to_thread(work)

    follower = SpoolFollower(agent.spool, run)
    follower.end()
    found = [item async for items in follower for item in items]
    assert [item.stream for item in found] == [STREAM]


def test_a_program_cannot_write_to_the_stream(folder: ReplicaFolder) -> None:
    folder.spool.mkdir(parents=True, exist_ok=True)
    (folder.spool / f"{LOG_WRITER}.records").write_bytes(
        MAGIC + frame(1, b'{"kind":"metric","time":1,"values":{"forged":1}}')
    )
    write(folder, b"loss=1\n")
    assert points(Agent(folder).look()) == [(None, {"loss": 1.0})]
