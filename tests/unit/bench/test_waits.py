from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.scheduler.arrivals import limit_for, read_cluster, read_muri
from bench.scheduler.backfilling import Easy
from bench.scheduler.indexed import EPOCH, Indexed, replicas_of
from bench.scheduler.references import (
    Repacking,
    Skipping,
    attained_service,
    by_submission,
    drawn,
    falls_at,
    remaining_service,
    remaining_time,
    widest,
)
from bench.scheduler.simulator import Arrival, Cluster, Floor, replay
from bench.scheduler.traces import TRACES, BadTrace
from bench.scheduler.waits import PREEMPTION_S, PUBLISHED, measure_file
from controlplane.domain.lifecycle import SessionState
from controlplane.scheduler import QueueQueries, session_rank
from controlplane.scheduler.preemption_policy import MIN_RUN_S
from controlplane.scheduler.reservations import STARTING_S
from tests.support.examples import examples
from tests.unit.controlplane.snapshot import whole_free_devices

if TYPE_CHECKING:
    from bench.scheduler.simulator import Live, Policy, Spots

HOUR = 3_600.0
NODES, WIDTH = 3, 4


@st.composite
def streams(draw: st.DrawFn) -> list[Arrival]:
    ones = draw(
        st.lists(
            st.tuples(
                st.integers(0, 40),
                st.sampled_from([1, 1, 2, 3, 4, 6, 8, 12]),
                st.integers(1, 30),
                st.sampled_from([0, 1, 2]),
                st.booleans(),
            ),
            min_size=1,
            max_size=25,
        )
    )
    return sorted(
        Arrival(at * 1_000.0, gpus, length * 1_000.0, length * 1_000.0 * limit, resumable)
        for at, gpus, length, limit, resumable in ones
    )


class Watched(Cluster):
    """Looks at every start and every preemption."""

    def __init__(self) -> None:
        super().__init__(Floor(NODES, WIDTH), preemption_s=PREEMPTION_S)
        self.log: list[tuple[float, str, int]] = []
        self.started: dict[int, float] = {}

    def start(self, live: Live, spots: Spots) -> None:
        assert sum(part for _, part in spots) == live.gpus
        assert len({node for node, _ in spots}) == len(spots)
        super().start(live, spots)
        assert min(self.floor.free) >= 0
        held = sum(one.gpus for one in self.running.values())
        assert held + sum(self.floor.free) == NODES * WIDTH
        self.started.setdefault(live.number, self.now)
        self.log.append((self.now, "start", live.number))

    def preempt(self, live: Live) -> None:
        self.log.append((self.now, "preempt", live.number))
        super().preempt(live)


class Patient(Watched):
    """Checks that ours never stops what must not be stopped."""

    def preempt(self, live: Live) -> None:
        assert live.arrival.is_resumable
        assert self.now - live.started_at >= MIN_RUN_S - 1e-3
        super().preempt(live)


class Told(Indexed):
    """Checks after each pass that the index knows the cluster as it is, and says of each why it waits."""

    def decide(self, cluster: Cluster) -> float:
        due = super().decide(cluster)
        assert due > cluster.now
        records, now = self.records, EPOCH + cluster.now
        assert [whole_free_devices(one) for one in records.capacities()] == cluster.floor.free
        states = {session.id: session.state for session in records.sessions.values()}
        assert set(states.values()) <= {SessionState.QUEUED, SessionState.RUNNING}
        waiting = {one for one, state in states.items() if state is SessionState.QUEUED}
        deferrals = QueueQueries(records.index).deferrals(now)
        assert {one.session_id for one in deferrals} == waiting
        assert [one.place for one in deferrals] == list(range(1, len(waiting) + 1))
        assert all(one.explanation.can_ever_fit for one in deferrals)
        assert all(one.explanation.reason for one in deferrals)
        return due


@settings(max_examples=examples(60), deadline=None)
@given(streams())
def test_ours_runs_everything_whole_and_never_loops(arrivals: list[Arrival]) -> None:
    cluster = Patient()
    waits = replay(arrivals, cluster, Told())
    starts = [number for _, what, number in cluster.log if what == "start"]
    assert set(starts) == set(range(len(arrivals)))
    # each preemption costs PREEMPTION_S of an attempt that had MIN_RUN_S at least
    assert waits.lost_gpu_pct <= 100 * PREEMPTION_S / MIN_RUN_S
    # one gives way at most once for each level of each of those that pass it
    levels = 1 + session_rank.level_of(session_rank.Demand(12, attained_s=40_000.0))
    stops = [number for _, what, number in cluster.log if what == "preempt"]
    assert all(stops.count(number) <= levels * len(arrivals) for number in set(stops))


@settings(max_examples=examples(20), deadline=None)
@given(streams())
def test_same_in_same_out(arrivals: list[Arrival]) -> None:
    first, second = Watched(), Watched()
    assert replay(arrivals, first, Indexed()) == replay(arrivals, second, Indexed())
    assert first.log == second.log


def test_gangs_are_asked_for_in_equal_replicas_that_fill_nodes() -> None:
    asked = {gpus: replicas_of(gpus, 8) for gpus in (1, 3, 8, 12, 16, 17)}
    assert asked == {1: (1, 1), 3: (1, 3), 8: (1, 8), 12: (3, 4), 16: (2, 8), 17: (17, 1)}


@settings(max_examples=examples(25), deadline=None)
@given(streams(), st.sampled_from(["easy", "srtf", "las", "random", "worstfit"]))
def test_rules_of_others_run_everything(arrivals: list[Arrival], name: str) -> None:
    policies: dict[str, Policy] = {
        "easy": Easy(),
        "srtf": Repacking(remaining_time),
        "las": Repacking(attained_service, falls_at),
        "random": Skipping(by_submission, drawn(1)),
        "worstfit": Skipping(by_submission, widest),
    }
    cluster = Watched()
    replay(arrivals, cluster, policies[name])
    assert set(cluster.started) == set(range(len(arrivals)))


@settings(max_examples=examples(40), deadline=None)
@given(streams())
def test_easy_starts_nobody_of_equal_width_out_of_turn(arrivals: list[Arrival]) -> None:
    """With one width and one limit nobody can run ahead."""
    alike = [one._replace(gpus=2, limit_s=30_000.0) for one in arrivals]
    cluster = Watched()
    replay(alike, cluster, Easy())
    starts = [cluster.started[number] for number in range(len(alike))]
    assert starts == sorted(starts)


class Begun(Exception):
    """It has begun: what comes after is not looked at."""


class Until(Watched):
    """Ends the replay at the first start of an arrival."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def start(self, live: Live, spots: Spots) -> None:
        super().start(live, spots)
        if live.number == self.number:
            raise Begun


@pytest.mark.parametrize("is_resumable", [False, True])
def test_a_wide_gang_starts_however_many_narrow_ones_keep_coming(is_resumable: bool) -> None:
    """Twice as much comes, for thirty days, as the cluster holds; each of it goes before the gang."""
    narrow = [
        Arrival(150.0 * k, 1, HOUR, HOUR, is_resumable) for k in range(int(30 * 24 * HOUR / 150))
    ]
    gang = Arrival(10 * HOUR, NODES * WIDTH, 100 * HOUR, 168 * HOUR, is_resumable)
    arrivals = sorted([*narrow, gang])
    cluster = Until(arrivals.index(gang))
    with pytest.raises(Begun):
        replay(arrivals, cluster, Indexed())
    waited = cluster.started[cluster.number] - gang.submitted_at
    # Nodes are held for it as soon as it is blocked: those that run there end within an hour, and nobody starts
    # there who would not have ended by then.
    assert waited <= HOUR + STARTING_S


def test_a_preemption_costs_its_seconds_once() -> None:
    long, short = Arrival(0.0, 12, 40_000.0, is_resumable=True), Arrival(20_000.0, 1, 100.0)
    cluster = Watched()
    waits = replay([long, short], cluster, Indexed())
    assert waits.preemptions == 1
    assert waits.max_wait_s == pytest.approx(100 + PREEMPTION_S)
    assert waits.lost_gpu_pct == pytest.approx(100 * 12 * 60 / (12 * 40_060 + 100))


@pytest.mark.parametrize(
    ("run_time_s", "limit_h"),
    [(1, 1), (3_600, 1), (3_601, 4), (86_400, 24), (604_800, 168), (604_801, 336)],
)
def test_limits_are_run_times_rounded_up(run_time_s: float, limit_h: float) -> None:
    assert limit_for(run_time_s) == limit_h * HOUR


@pytest.mark.parametrize("text", ["", "8", "0x8", "8x0", "-1x8", "8x8x8", "8 x 8", "9999999x9999"])
def test_a_cluster_is_nodes_and_gpus(text: str) -> None:
    assert read_cluster("20x8") == (20, 8)
    with pytest.raises(BadTrace, match="NODESxGPUS"):
        read_cluster(text)


MURI = "num_gpu,submit_time,iterations,iteration_time\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "neither"),
        ("a,b\n1,2\n", "neither"),
        (MURI, "no session"),
        (MURI + "0,0,1,1\n", "line 2: num_gpu is '0'"),
        (MURI + "1.5,0,1,1\n", "num_gpu"),
        (MURI + "1,-1,1,1\n", "submit_time"),
        (MURI + "1,0,nan,1\n", "iterations"),
        (MURI + "1,0,inf,1\n", "iterations"),
        (MURI + "1,0,1\n", "not as many values"),
        (MURI + "65,0,1,1\n", "65 GPUs at once"),
        (PHILLY + "yesterday,1,1,1,a\n", "timestamp"),
        (PHILLY + "2017-09-04 10:30:41,one,1,1,a\n", "duration"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(BadTrace, match=why):
        measure_file(path, (8, 8))


def test_other_traces_are_told_apart_by_their_header(tmp_path: Path) -> None:
    muri, philly = tmp_path / "mine.csv", tmp_path / "other.csv"
    muri.write_text(MURI + "8,0,100,1000\n16,1000,100,1000\n")
    philly.write_text(PHILLY + "2017-09-04 10:30:41,100,8,800,a\n")
    assert measure_file(muri, (2, 8)).figures["muri_mine_ours_mean_jct_s"] > 101
    found = measure_file(philly, (2, 8)).figures
    assert found["philly_easy_mean_wait_s"] == found["philly_ours_max_wait_s"] == 0
    assert all(math.isfinite(value) for value in found.values())


@pytest.mark.parametrize(("name", "rule"), [("srtf", remaining_time), ("srsf", remaining_service)])
def test_the_simulator_comes_to_the_published_figures(name: str, rule: object) -> None:
    path = TRACES / "muri" / "trace3.csv"
    if not path.exists():
        pytest.skip("the traces are not beside the project")
    found = replay(read_muri(path), Cluster(Floor(8, 8)), Repacking(rule))  # type: ignore[arg-type]
    assert found.mean_jct_s == pytest.approx(PUBLISHED[f"muri_trace3_{name}_mean_jct_s"], rel=0.02)
