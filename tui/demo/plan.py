"""The plan of the demo: who submits what, and when it is placed. Played through once from a seed."""

from __future__ import annotations

import heapq
import math
import random
from typing import TYPE_CHECKING, Any, Final

from nsml.v1 import sessions_pb2 as pb
from tui.demo.programs import PROGRAMS
from tui.demo.scenery import GPUS, NODES, USERS
from tui.demo.scripted_session import ScriptedSession, in_order

if TYPE_CHECKING:
    from collections.abc import Sequence

SEED: Final = 2022
BEFORE_S: Final = 6 * 3_600.0
"""How much of it is before the start of the show."""
AFTER_S: Final = 24 * 3_600.0
_ARRIVES_EVERY_S: Final = 420.0


def played() -> list[ScriptedSession]:
    """All sessions, with their places, in order of submission."""
    return _placed(_written())


def _written() -> list[ScriptedSession]:
    """All plans, by time of submission."""
    chance = random.Random(SEED)  # noqa: S311 - a story, no secret
    plans: list[dict[str, Any]] = list(_SCENE)
    created = -BEFORE_S
    while created < AFTER_S:
        if not _STILL[0] < created < _STILL[1]:
            plans.append(_plan(chance, created))
        created += chance.uniform(0.5, 1.5) * _ARRIVES_EVERY_S
    plans.sort(key=lambda plan: plan["created"])
    return [ScriptedSession(number=number, **plan) for number, plan in enumerate(plans, 1)]


def _plan(chance: random.Random, created: float) -> dict[str, Any]:
    outcome = chance.choices(
        (pb.SESSION_STATE_SUCCEEDED, pb.SESSION_STATE_FAILED, pb.SESSION_STATE_STOPPED), (8, 2, 1)
    )[0]
    return {
        "created": created,
        "user": chance.choice(USERS),
        "program": chance.choice(PROGRAMS),
        "gpus": chance.choice((1, 1, 1, 2, 2, 4)),
        "runs_s": 60.0 * chance.randrange(25, 100),
        "outcome": outcome,
        "stopping_s": 12.0 if outcome == pb.SESSION_STATE_STOPPED else 0.0,
    }


_STILL: Final = (-1_500.0, 240.0)
"""Meanwhile only sessions of the scene are submitted."""
_LEAVES, _TALES, _WAVES, _MAZE = PROGRAMS
_DONE: Final = pb.SESSION_STATE_SUCCEEDED
_SCENE: Final[tuple[dict[str, Any], ...]] = (
    # At the start of the show: sessions in all states, and a queue with something to wait for. Sessions
    # with places get them at once: no others do before.
    {
        "created": -19_000.0,
        "user": "cleo",
        "program": _TALES,
        "gpus": 8,
        "replicas": 2,
        "runs_s": 27_000.0,
        "outcome": _DONE,
        "priority": pb.PRIORITY_HIGH,
        "memo": "24 layers, the whole corpus",
    },
    {
        "created": -6_000.0,
        "user": "dev",
        "program": _MAZE,
        "gpus": 2,
        "runs_s": 16_000.0,
        "outcome": _DONE,
        "idle_from": -2_460.0,
        "memo": "over lunch",
        "places": [(4, (4, 5))],
    },
    {
        "created": -4_200.0,
        "user": "eun",
        "program": _WAVES,
        "gpus": 1,
        "runs_s": 9_000.0,
        "outcome": _DONE,
        "pause": (-700.0, 500.0),
        "memo": "paused to look at it",
        "places": [(4, (0,))],
    },
    {
        "created": -3_000.0,
        "user": "bo",
        "program": _LEAVES,
        "gpus": 1,
        "runs_s": 6.0,
        "outcome": pb.SESSION_STATE_HELD,
        "memo": "with fern 9",
        "places": [(4, (1,))],
    },
    {
        "created": -2_700.0,
        "user": "bo",
        "program": _LEAVES,
        "gpus": 1,
        "runs_s": 2_650.0,
        "outcome": pb.SESSION_STATE_STOPPED,
        "stopping_s": 55.0,
        "memo": "too high a rate",
        "places": [(4, (2,))],
    },
    {
        "created": -2_400.0,
        "user": "eun",
        "program": _WAVES,
        "gpus": 1,
        "runs_s": 2_350.0,
        "outcome": _DONE,
        "saved_s": 45.0,
        "places": [(4, (3,))],
    },
    {
        "created": -2_900.0,
        "user": "ada",
        "program": _LEAVES,
        "gpus": 4,
        "priority": pb.PRIORITY_HIGH,
        "runs_s": 5_900.0,
        "outcome": _DONE,
        "memo": "baseline, warm-up 5 %",
    },
    {
        "created": -1_300.0,
        "user": "bo",
        "program": _TALES,
        "gpus": 8,
        "replicas": 2,
        "runs_s": 7_000.0,
        "outcome": _DONE,
        "memo": "two nodes",
    },
    {
        "created": -900.0,
        "user": "cleo",
        "program": _TALES,
        "gpus": 8,
        "runs_s": 3_000.0,
        "outcome": _DONE,
    },
    {
        "created": -420.0,
        "user": "ada",
        "program": _LEAVES,
        "gpus": 8,
        "runs_s": 2_400.0,
        "outcome": _DONE,
        "priority": pb.PRIORITY_HIGH,
        "memo": "batch 4096",
    },
    {
        "created": -200.0,
        "user": "dev",
        "program": _WAVES,
        "gpus": 8,
        "runs_s": 2_000.0,
        "outcome": _DONE,
        "priority": pb.PRIORITY_LOW,
    },
    {
        "created": -20.0,
        "user": "eun",
        "program": _MAZE,
        "gpus": 1,
        "runs_s": 5_000.0,
        "outcome": _DONE,
        "prepared_s": 90.0,
        "places": [(4, (6,))],
    },
)


def _placed(parts: list[ScriptedSession]) -> list[ScriptedSession]:
    """Place them in turn, once enough is free; devices are not shared."""
    waiting: list[ScriptedSession] = []
    ends: list[tuple[float, int]] = []
    arrivals = sorted(parts, key=lambda part: part.created)
    free = [set(range(GPUS)) for _ in NODES]
    for part in parts:
        for node, devices in part.places:
            free[node] -= set(devices)
    while arrivals or ends:
        arrives = arrivals[0].created if arrivals else math.inf
        if ends and ends[0][0] <= arrives:
            now, number = heapq.heappop(ends)
            for node, devices in parts[number - 1].places:
                free[node] |= set(devices)
        else:
            now = arrives
            waiting.append(arrivals.pop(0))
        for part in in_order(waiting):
            places = part.places or _room(part, free)
            if places is None:
                continue
            waiting.remove(part)
            part.placed, part.places = now, places
            for node, devices in places:
                free[node] -= set(devices)
            heapq.heappush(ends, (part.stopped, part.number))
    return parts


def _room(
    part: ScriptedSession, free: Sequence[set[int]]
) -> list[tuple[int, tuple[int, ...]]] | None:
    """Find nodes with room: the fullest ones."""
    fits = sorted(
        (len(devices), node) for node, devices in enumerate(free) if len(devices) >= part.gpus
    )
    if len(fits) < part.replicas:
        return None
    return [(node, tuple(sorted(free[node])[: part.gpus])) for _, node in fits[: part.replicas]]
