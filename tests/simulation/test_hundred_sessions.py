"""Scenarios small and large end right whatever is killed, paused, cut, full or switched off meanwhile.

Many more of the small ones: `python -m tests.simulation`.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.scenario import simulate, simulate_situation
from tests.simulation.workload import patient


def seeds(first: int, *others: int) -> pytest.MarkDecorator:
    """One seed for each change; the others in turn."""
    turns = (pytest.param(seed, marks=pytest.mark.variant) for seed in others)
    return pytest.mark.parametrize("seed", [first, *turns])


@seeds(1, *range(2, 11))
def test_a_seed_holds(seed: int) -> None:
    print(f"python -m tests.simulation --seed {seed}")
    assert simulate_situation(seed).faults


@pytest.mark.every_time
def test_a_hundred_sessions_end_right() -> None:
    outcome = simulate(1)
    print(outcome)
    assert sum(outcome.faults.values()) > 20
    assert outcome.broken_calls > 0


@seeds(1, 3)
def test_a_platform_of_one_control_plane_does_it_too(seed: int) -> None:
    assert sum(simulate(seed, sessions=25, control_planes=1).faults.values()) > 10


def test_nothing_is_repeated_when_nothing_goes_wrong() -> None:
    outcome = simulate(1, sessions=25, faults={})
    assert outcome.broken_calls == 0
    assert {end.split()[1] for end in outcome.programs.split(", ")} == {"EXITED", "STOPPED"}


@seeds(1, 2)
def test_sessions_go_elsewhere_when_their_node_is_silent_for_too_long(seed: int) -> None:
    outcome = simulate(
        seed, sessions=8, workload=patient, faults={"long silence": 1.0}, fault_every_s=10.0
    )
    assert "LOST_AFTER" in outcome.programs


@seeds(1, 2)
def test_what_is_moved_from_drained_nodes_ends_right(seed: int) -> None:
    faults = {"drain": 3.0, "kill agent": 1.0, "kill control plane": 1.0, "cut agent": 1.0}
    assert simulate(seed, sessions=25, faults=faults, fault_every_s=1.0).moved > 5


@seeds(5, 6)
def test_a_seed_decides_everything(seed: int) -> None:
    """Also what a process chooses for itself: the hashes of its strings, where its objects lie."""
    program = (
        "from tests.simulation.scenario import simulate_situation as run; "
        f"print(run({seed}).digest, run({seed}).digest)"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    }
    assert len(printed) == 1
    first, again = printed.pop().split()
    assert first == again
    assert len(first) == 32
