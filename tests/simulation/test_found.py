"""What simulations have found, each kept as the situation that showed it.

Not as a seed alone: what a seed chooses changes with each kind of fault that is added.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from tests.simulation.cluster import Shape
from tests.simulation.scenario import play
from tests.simulation.situations import Situation
from tests.simulation.workload import brief


@dataclass(frozen=True, kw_only=True)
class Found:
    """A defect that was: what it was, and the faults that led to it."""

    what: str
    faults: tuple[str, ...]
    seed: int = 1
    control_planes: int = 1


FOUND = (
    Found(
        what="a full disk was an error of the agent, logged as a defect",
        faults=("disk full", "disk fails"),
    ),
    Found(
        what="a clock that was set made attempts free, or cost an hour",
        faults=("clock of a control plane steps",),
    ),
    Found(
        what="the same, when another control plane had placed it",
        faults=("clock of a control plane steps", "lease ends"),
        control_planes=3,
    ),
)


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.what)
def test_it_stays_mended(found: Found) -> None:
    wishes = brief(random.Random(f"{found.seed} found"), 8, largest=2, gang=2)
    situation = Situation(
        shape=Shape(nodes=2, devices=2, control_planes=found.control_planes),
        wishes=wishes,
        faults=dict.fromkeys(found.faults, 1.0),
        every_s=0.7,
        faults_for_s=30.0,
    )
    outcome = play(found.seed, situation, 600.0)
    assert set(outcome.faults) == set(found.faults)
