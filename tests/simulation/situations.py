"""What a seed chooses: how large the cluster is, what users want, and what goes wrong.

Each seed has a few kinds of faults out of all: with all of them at once, each hides what another would
have shown. Small scenarios find as much as large ones, and many more of them are tried.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from tests.simulation.cluster import Shape
from tests.simulation.faults import FAULTS
from tests.simulation.workload import Wish, brief

PROFILES: Mapping[str, frozenset[str]] = {
    "all": frozenset(FAULTS),
    "leaders": frozenset(
        {
            "kill control plane",
            "stop control plane",
            "take-overs in a row",
            "pause control plane",
            "crash of a control plane at a point",
            "cut store",
            "cut store one way",
            "freeze store",
            "lease ends",
            "deposed",
            "clock of a control plane steps",
        }
    ),
    "store": frozenset(
        {
            "cut store",
            "cut store one way",
            "freeze store",
            "store gone",
            "store full",
            "lease ends",
            "lost watch events",
            "slow network",
        }
    ),
    "data": frozenset(
        {
            "history gone",
            "history fails",
            "history slow",
            "objects gone",
            "objects fail",
            "disk full",
            "disk fails",
            "disk slow",
            "crash of a control plane at a point",
            "crash of an agent at a point",
        }
    ),
    "agents": frozenset(
        {
            "kill agent",
            "pause agent",
            "crash of an agent at a point",
            "cut agent",
            "cut agent one way",
            "freeze agent",
            "orders come again",
            "clock of a node steps",
            "shim dies",
            "reboot",
            "long silence",
            "drain",
        }
    ),
}
"""Kinds of faults by what they are about."""
TEAM_SHARE = 0.25
"""Of the seeds, in which all sessions are those of one team with a limit."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What a simulation begins with.

    Attributes:
        faults: kinds with weights.
        every_s: how often one begins on average.
        faults_for_s: how long faults go on at most while something is unfinished.
    """

    shape: Shape
    wishes: Mapping[str, Wish]
    faults: Mapping[str, float]
    every_s: float
    faults_for_s: float


def situation(seed: int, profile: str = "all") -> Situation:
    """What a seed chooses."""
    rng = random.Random(f"{seed} situation")
    nodes, devices = rng.choice((1, 2, 2, 3, 4)), rng.choice((1, 2, 4))
    kinds = sorted(PROFILES[profile])
    chosen = rng.sample(kinds, min(rng.randint(2, 8), len(kinds)))
    wishes = brief(rng, rng.randint(2, 8), largest=devices, gang=min(nodes, 3))
    widest = max(one.gpu_thousandths * one.replicas for one in wishes.values())
    has_team = random.Random(f"{seed} team").random() < TEAM_SHARE
    return Situation(
        shape=Shape(
            nodes=nodes,
            devices=devices,
            control_planes=rng.choice((1, 2, 2, 3, 3)),
            latency_s=rng.choice(((0.0002, 0.002), (0.0002, 0.002), (0.001, 0.05))),
            # More is refused, so that is the least that all of them can start with.
            team_gpus=widest if has_team else 0,
        ),
        wishes=wishes,
        faults={kind: FAULTS[kind] for kind in chosen},
        every_s=rng.choice((0.7, 1.5, 3.0)),
        faults_for_s=rng.choice((20.0, 40.0)),
    )
