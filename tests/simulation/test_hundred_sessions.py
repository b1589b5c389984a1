"""A hundred sessions on four nodes end right whatever is killed, cut, frozen or switched off meanwhile.

`NSML_SIM_SEED=17` runs that seed alone, `NSML_SIM_SEEDS=200` so many of them from the first on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.simulation.scenario import simulate
from tests.simulation.workload import patient

USUAL_SEEDS = 4


def chosen_seeds() -> Sequence[int]:
    """What the environment asks for, or few enough for every day."""
    if one := os.environ.get("NSML_SIM_SEED"):
        return [int(one)]
    return range(1, int(os.environ.get("NSML_SIM_SEEDS", str(USUAL_SEEDS))) + 1)


@pytest.mark.parametrize("seed", chosen_seeds())
def test_a_hundred_sessions_end_right(seed: int) -> None:
    print(f"NSML_SIM_SEED={seed}")
    outcome = simulate(seed)
    print(outcome)
    assert outcome.faults > 20
    assert outcome.broken_calls > 0


def test_a_platform_of_one_control_plane_does_it_too() -> None:
    assert simulate(1, sessions=50, control_planes=1).faults > 20


def test_nothing_is_repeated_when_nothing_goes_wrong() -> None:
    outcome = simulate(1, faults={})
    assert outcome.broken_calls == 0
    assert {end.split()[1] for end in outcome.programs.split(", ")} == {"EXITED", "STOPPED"}


@pytest.mark.parametrize("seed", [1, 2])
def test_sessions_go_elsewhere_when_their_node_is_silent_for_too_long(seed: int) -> None:
    outcome = simulate(
        seed, sessions=8, workload=patient, faults={"long silence": 1.0}, fault_every_s=10.0
    )
    assert "LOST_AFTER" in outcome.programs


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_moved_from_drained_nodes_ends_right(seed: int) -> None:
    faults = {"drain": 3.0, "kill agent": 1.0, "kill control plane": 1.0, "cut agent": 1.0}
    assert simulate(seed, sessions=50, faults=faults, fault_every_s=1.0).moved > 5


def test_a_seed_decides_everything() -> None:
    """Also what a process chooses for itself: the hashes of its strings, where its objects lie."""
    program = (
        "from tests.simulation.scenario import simulate; print(simulate(5, sessions=50).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 32
