"""Telemetry over time, on every history: levels of blocks, and what is answered from them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from controlplane.history.postgresql import open_postgresql
from controlplane.history.postgresql.history import PostgresHistory
from controlplane.history.sql import telemetry as sql
from controlplane.history.sqlite import open_history
from controlplane.history.telemetry_rollup import CLUSTER, replica_key
from controlplane.history.values import DeviceSample, NodeSample, ReplicaSample
from nsml.common.clock import SystemClock, in_thread, inline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from controlplane.history.sql.history import History
    from controlplane.history.sql.telemetry import SqlTelemetry
    from controlplane.history.telemetry_rollup import Cells

BEGIN = 1_800_000_000.0


class MovedClock(SystemClock):
    """Stands until it is moved; what is done every so often is done `slower` times as rarely."""

    now = BEGIN
    slower = 1.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return (self.now - BEGIN) / self.slower


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture(params=["memory", "file in threads", "postgresql"])
async def history(
    request: pytest.FixtureRequest, tmp_path: Path, clock: MovedClock
) -> AsyncIterator[History]:
    opened: History
    if request.param == "postgresql":
        opened = await open_postgresql(request.getfixturevalue("emptied_database"), clock=clock)
    elif request.param == "memory":
        opened = await open_history(":memory:", clock=clock, run=inline)
    else:
        opened = await open_history(tmp_path / "history.sqlite", clock=clock, run=in_thread)
    yield opened
    await opened.close()


def reading(at: float, *loads: float, node: str = "n1", boot: str = "b1") -> NodeSample:
    devices = tuple(
        DeviceSample(
            uuid=f"GPU-{number}",
            utilization_percent=load,
            memory_used_bytes=int(load) << 20,
            power_watts=100 + load,
            temperature_celsius=40.0,
        )
        for number, load in enumerate(loads)
    )
    return NodeSample(
        node=node, boot_id=boot, sequence=int(at * 10), at=at, devices=devices, cpu_percent=5.0
    )


async def goes_by(
    clock: MovedClock,
    telemetry: SqlTelemetry,
    seconds: float,
    *,
    every: float = 1.0,
    load: float = 50,
) -> None:
    until = clock.now + seconds
    while clock.now < until:
        clock.now += 3 * every
        await telemetry.record([reading(clock.now - every * ago, load) for ago in (2, 1, 0)])


def ends(cells: Cells, key: str = "GPU-0", figure: int = 0) -> tuple[float, float, float]:
    """Least, most and mean of all cells."""
    column = cells.columns[key]
    one = column.figures[figure]
    return min(one.least), max(one.most), math.fsum(one.total) / math.fsum(column.counts)


async def test_the_newest_is_known_and_nothing_older_is_taken(
    history: History, clock: MovedClock
) -> None:
    telemetry = history.telemetry
    one, other = reading(clock.now + 1, 10), reading(clock.now + 1, 20, node="n2")
    assert await telemetry.record([one, other]) == 2
    assert await telemetry.record([one, reading(clock.now, 5)]) == 0
    assert await telemetry.newest() == {"n1": one, "n2": other}
    again = reading(clock.now, 30, boot="b2")
    assert await telemetry.record([again]) == 1
    assert (await telemetry.newest())["n1"] == again
    # By when it came: a node's clock may be off by hours, and a silent node is not as it was.
    clock.now += sql.LATELY_S / 2
    behind = replace(reading(clock.now - 7200, 40, node="n2"), sequence=other.sequence + 1)
    assert await telemetry.record([behind]) == 1
    clock.now += sql.LATELY_S / 2 + 1
    assert await telemetry.newest() == {"n2": behind}
    span = {"since": clock.now - 60, "until": clock.now + 60, "width": 10}
    assert len(await telemetry.read("n3", **span)) == 0
    assert len(await telemetry.read("n1", **{**span, "until": clock.now - 60})) == 0


async def test_a_span_of_any_length_is_answered_in_its_width_and_no_peak_is_lost(
    history: History, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second at 99 % within a day and a half, of which the seconds and the minutes are gone."""
    monkeypatch.setattr(sql, "LATEST_S", 600.0)
    # Either is written every 200 s then.
    clock.slower = 200 / (1 if isinstance(history, PostgresHistory) else sql.FLUSH_AFTER_S)
    telemetry = history.telemetry
    await goes_by(clock, telemetry, 99)
    clock.now += 1
    await telemetry.record([reading(clock.now, 99)])
    await goes_by(clock, telemetry, 27.5 * 3600, every=10)
    for width in (100, 7, 1):
        cells = await telemetry.read("n1", since=BEGIN - 60, until=clock.now, width=width)
        assert 1 <= len(cells) <= width + 1
        least, most, mean = ends(cells)
        assert (least, most) == (50, 99)
        assert mean == pytest.approx(50, abs=0.1)
        assert math.fsum(cells.seconds) == pytest.approx(clock.now - BEGIN, rel=0.02)
        assert ends(cells, figure=2)[1] == 199
        assert ends(cells, "")[:2] == (5, 5)
    # The last minutes are there to the second.
    cells = await telemetry.read("n1", since=clock.now - 60, until=clock.now, width=60)
    assert cells.end == pytest.approx(clock.now)
    # What is kept of it is little.
    counts = dict.fromkeys(range(len(sql.LEVELS)), 0)
    async for batch in history.dump():
        if batch.table == "telemetry_blocks":
            for row in batch.rows:
                counts[row[0]] += 1
    assert counts[0] <= (3600 + 1800) / 20
    assert 140 <= counts[1] <= 165
    assert 13 <= counts[2] <= 14
    assert counts[3] == 1


async def test_what_was_held_back_or_not_made_coarser_is_there_after_a_start(
    tmp_path: Path, clock: MovedClock
) -> None:
    path = tmp_path / "h.sqlite"
    for _ in range(3):
        history = await open_history(path, clock=clock, run=inline)
        await goes_by(clock, history.telemetry, 408, every=4, load=70)
        await history.close()
        clock.now += 7200  # nobody was there: longer than seconds are kept
    history = await open_history(path, clock=clock, run=inline)
    await goes_by(clock, history.telemetry, 60, load=70)
    cells = await history.telemetry.read("n1", since=BEGIN, until=clock.now, width=50)
    assert sum(cells.columns["GPU-0"].counts) == 3 * 102 + 60
    await history.close()


async def test_what_is_written_while_it_is_read_is_told(
    history: History, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry = history.telemetry
    await goes_by(clock, telemetry, 9)
    database = telemetry._database  # type: ignore[attr-defined]
    plain = database.read

    async def overtaken(work: Callable[[Any], Any]) -> Any:
        found = await plain(work)
        monkeypatch.undo()
        await telemetry.flush()
        return found

    monkeypatch.setattr(database, "read", overtaken)
    for _ in range(2):
        cells = await telemetry.read("n1", since=BEGIN - 1, until=clock.now, width=100)
        assert math.fsum(cells.columns["GPU-0"].counts) == 9


async def test_what_a_device_did_is_measured_between_any_two_moments(
    history: History, clock: MovedClock
) -> None:
    """100 W idle; 99 s at 100 W more: the joules are right to the second, and later to a step."""
    telemetry = history.telemetry
    await goes_by(clock, telemetry, 48, load=0)
    placed = clock.now
    await goes_by(clock, telemetry, 99, load=100)
    ended = clock.now
    await goes_by(clock, telemetry, 50, load=0)
    told = (await telemetry.used("n1", ["GPU-0", "GPU-9"], since=placed, until=ended))["GPU-0"]
    assert told.joules == pytest.approx(99 * 200, rel=1e-4)
    assert told.seconds == pytest.approx(99, rel=1e-4)
    assert told.utilization == pytest.approx(100)
    assert (told.utilization_peak, told.memory_peak) == (100, 100 << 20)
    half = (await telemetry.used("n1", ["GPU-0"], since=placed - 10, until=placed + 0.5))["GPU-0"]
    assert half.joules == pytest.approx(10 * 100 + 0.5 * 200, rel=1e-3)
    clock.now += 3 * 3600
    await goes_by(clock, telemetry, 300, every=5, load=0)
    told = (await telemetry.used("n1", ["GPU-0"], since=placed, until=ended))["GPU-0"]
    assert told.joules == pytest.approx(99 * 200, abs=2 * 10 * 100)
    assert not await telemetry.used("n1", ["GPU-0"], since=ended, until=placed)


async def test_a_platform_as_a_whole_is_kept_like_a_node(
    history: History, clock: MovedClock
) -> None:
    for number in range(30):
        clock.now += 10
        await history.telemetry.note((8, 4, 3, number % 3, 55.5, 1000))
    cells = await history.telemetry.read(CLUSTER, since=BEGIN, until=clock.now, width=10)
    assert len(cells) == 10
    assert ends(cells, "", 3) == (0, 2, 1)
    assert ends(cells, "", 0) == (8, 8, 8)


async def test_what_processes_take_is_kept_by_replica_in_all_levels(
    history: History, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One long session, hundreds of short ones beside it, and a device that calls itself like one of them."""
    monkeypatch.setattr(sql, "LATEST_S", 600.0)
    clock.slower = 200 / (1 if isinstance(history, PostgresHistory) else sql.FLUSH_AFTER_S)
    telemetry = history.telemetry
    sequence = 0

    async def goes_on(seconds: float, *, short: str = "", every: float = 1.0) -> None:
        nonlocal sequence
        until = clock.now + seconds
        while clock.now < until:
            clock.now += every
            sequence += 1
            replicas = [ReplicaSample(session_id="long", attempt=1, rank=0, cpu_cores=2.0)]
            if short:
                replicas.append(
                    ReplicaSample(session_id=short, attempt=1, rank=1, cpu_cores=math.nan)
                )
            sample = NodeSample(
                node="n1",
                boot_id="b",
                sequence=sequence,
                at=clock.now,
                devices=(DeviceSample(uuid="G"), DeviceSample(uuid=replica_key("long", 1, 0))),
                replicas=tuple(replicas),
            )
            await telemetry.record([sample])

    began = clock.now
    for number in range(300):
        await goes_on(4, short=f"s{number}")
    until = clock.now
    shorts = [replica_key(short, 1, 1) for short in ("s0", "s299")]
    for key, short in zip(shorts, ("s0", "s299"), strict=True):
        cells = await telemetry.read_replica(
            "n1", short, 1, 1, since=began, until=until, width=10_000
        )
        assert ends(cells, key) == (0, 0, 0)
        assert math.fsum(cells.columns[key].counts) == 4
    await goes_on(3 * 3600, every=9)
    # Of the first minutes the seconds are gone.
    for width in (3, 100, 10_000):
        cells = await telemetry.read_replica(
            "n1", "long", 1, 0, since=began, until=clock.now, width=width
        )
        assert ends(cells, replica_key("long", 1, 0)) == (2, 2, 2)
        assert cells.starts[0] <= began + (clock.now - began) / width + 600
    cells = await telemetry.read_replica(
        "n1", "s299", 1, 1, since=began, until=clock.now, width=10_000
    )
    assert math.fsum(cells.columns[shorts[1]].counts) == 4
    for key in (("long", 2, 0), ("s1", 1, 0), ("n1", 0, 0)):
        cells = await telemetry.read_replica("n1", *key, since=began, until=until, width=5)
        assert not any(sum(column.counts) for column in cells.columns.values())
    whole = await telemetry.read("n1", since=began, until=clock.now, width=50)
    assert sorted(whole.columns) == ["", "G"]


async def test_what_makes_no_sense_does_no_harm(history: History, clock: MovedClock) -> None:
    telemetry = history.telemetry
    devices = tuple(
        DeviceSample(uuid=f"G{number}", utilization_percent=value, power_watts=-value)
        for number, value in enumerate([math.nan, math.inf, -math.inf, 1e300, -5.0])
    )
    many = tuple(DeviceSample(uuid=f"many-{number}") for number in range(500))
    clocks = [clock.now - 1e9, clock.now + 3600, 0.0, -1e18, 1e18, math.nan, math.inf]
    for number, at in enumerate(clocks):
        clock.now += 1
        await telemetry.record(
            [NodeSample(node="n", boot_id="b", sequence=number, at=at, devices=devices + many)]
        )
    cells = await telemetry.read("n", since=BEGIN, until=clock.now + 60, width=100)
    assert len(cells) == len(clocks)
    assert len(cells.columns) <= 128
    for key in ("G0", "G1", "G2", "G3", "G4"):
        assert ends(cells, key)[:2] == (0, 0)
    await telemetry.flush()
    again = await telemetry.read("n", since=BEGIN, until=clock.now + 60, width=100)
    assert again == cells
    for span in [(math.nan, 1.0), (0.0, math.inf), (5.0, 1.0)]:
        assert not len(await telemetry.read("n", since=span[0], until=span[1], width=3))


async def test_any_readings_are_told_again_as_they_were(
    history: History, clock: MovedClock
) -> None:
    """Irregular times, devices that come and go, gaps: sums, ends and counts over any span agree."""
    chance = random.Random(7)
    told: list[tuple[float, int, float]] = []
    for _ in range(300):
        clock.now += chance.choice([0.2, 1.0, 1.0, 1.3, 25.0])
        loads = [float(chance.randrange(101)) for _ in range(chance.randrange(3))]
        told += [(clock.now, number, load) for number, load in enumerate(loads)]
        await history.telemetry.record([reading(clock.now, *loads)])
        if chance.random() < 0.05:
            await history.telemetry.flush()
    for _ in range(20):
        since = BEGIN + chance.random() * (clock.now - BEGIN)
        width = chance.choice([1, 3, 50, 2000])
        cells = await history.telemetry.read(
            "n1", since=since - 30, until=clock.now + 1, width=width, keys=["GPU-1"]
        )
        assert set(cells.columns) <= {"GPU-1"}
        within = [load for at, number, load in told if number == 1 and at >= since]
        if not within or not cells.columns:
            continue
        least, most, _ = ends(cells, "GPU-1")
        assert least <= min(within)
        assert most >= max(within)
        assert sum(cells.columns["GPU-1"].counts) >= len(within)
