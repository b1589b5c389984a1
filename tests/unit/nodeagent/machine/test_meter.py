"""What replicas take, as rates: bounded, forgotten with them, and looked at less often where a look is dear."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.folders import ReplicaFolder, ReplicaId
from nodeagent.machine.meter import MOST_REPLICAS, ReplicaMeter
from nodeagent.probes.processes import Enclosure, ReplicaUse
from nsml.common.clock import SystemClock

WHERE = Enclosure(shim=1, start_ticks=1, own=0, in_container=False, group=None)
ONE = ReplicaId(session_id="s" + "a" * 16, attempt=1, rank=0)
FOLDER = ReplicaFolder(Path("/nowhere"))


class Bench(SystemClock):
    """Stands until it is moved; a look costs `cost_s` of processor time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.cost_s = 0.0
        self.spent_s = 0.0
        self.looks = 0
        self.use: ReplicaUse | None = ReplicaUse(cpu_s=0.0, memory_bytes=1, processes=1)
        self.meter = ReplicaMeter(
            self, "b", cores=4, find=lambda *_: WHERE, use=self._used, spent=lambda: self.spent_s
        )

    def monotonic(self) -> float:
        return self.now

    def _used(self, _: Enclosure) -> ReplicaUse | None:
        self.looks += 1
        self.spent_s += self.cost_s
        return self.use

    def after(self, seconds: float, cpu_s: float) -> float | None:
        """The cores that are told after so long, when so much time was taken in all."""
        self.now += seconds
        self.use = ReplicaUse(cpu_s=cpu_s, memory_bytes=5, processes=2)
        told = self.meter.samples({ONE: FOLDER})
        assert all(one.replica.session_id == ONE.session_id for one in told)
        return told[0].cpu_cores if told else None


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_cores_are_the_time_taken_since_the_reading_before(bench: Bench) -> None:
    assert bench.after(1, 50.0) is None
    assert bench.after(2, 53.0) == 1.5
    assert bench.after(1, 53.0) == 0
    assert bench.after(0, 60.0) == 0
    assert bench.after(1, 1e9) == 4  # no more than there are


def test_what_falls_is_believed_the_second_time(bench: Bench) -> None:
    """Of a process that has just ended nobody has the time for a moment."""
    assert [bench.after(1, total) for total in (100.0, 101.0, 40.0, 103.0)] == [None, 1, 0, 1]
    assert [bench.after(1, total) for total in (40.0, 41.0, 42.0)] == [0, 0, 1]


def test_what_is_gone_is_forgotten(bench: Bench) -> None:
    assert [bench.after(1, total) for total in (1.0, 2.0)] == [None, 1]
    bench.use = None
    assert bench.meter.samples({ONE: FOLDER}) == []
    assert bench.after(1, 9.0) is None
    assert bench.after(1, 10.0) == 1
    assert bench.meter.samples({}) == []
    assert bench.after(1, 11.0) is None


def test_what_is_dear_to_look_at_is_looked_at_less_often(bench: Bench) -> None:
    bench.cost_s = 0.002
    told = [bench.after(1, float(total)) for total in range(20)]
    assert bench.looks == 1 + 5
    assert set(told[1:]) == {1.0}
    bench.cost_s = 100.0
    looks = bench.looks
    for total in range(20, 60):
        assert bench.after(1, float(total)) == 1
    assert bench.looks - looks >= 4


def test_of_too_many_the_first_are_told(bench: Bench) -> None:
    many = {
        ReplicaId(session_id=ONE.session_id, attempt=1, rank=rank): FOLDER
        for rank in range(MOST_REPLICAS + 10)
    }
    bench.meter.samples(many)
    bench.now += 1
    assert len(bench.meter.samples(many)) == MOST_REPLICAS
