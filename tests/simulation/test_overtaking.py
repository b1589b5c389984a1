"""Sessions of lower classes do not go round one of a higher class for ever, whatever it lacks."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from nsml.v1 import sessions_pb2
from tests.simulation.cluster import Shape, simulated
from tests.simulation.silence import LATE_S, Stage, Timed
from tests.simulation.virtual_time import run

SMALL_S = 40.0
"""For how long each small session runs: longer than it takes until the next one comes."""
EACH_S = 15.0
HELD_WITHIN_S = 30.0
"""Nodes are looked for every so often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores(Timed):
    """A session that asks for so many cores, in thousandths, on any number of devices."""

    cpu_thousandths: int

    def request(self) -> sessions_pb2.CreateSessionRequest:
        request = Timed.request(self)
        request.spec.resources.cpu_thousandths = self.cpu_thousandths
        return request


def test_a_stream_of_sessions_without_gpus_lets_a_high_one_have_the_whole_node() -> None:
    run(_play())


async def _play() -> None:
    facts = {"owner": "kim", "submit_at_s": 0.0}
    small = {
        f"small{number}": Cores(
            key=f"small{number}",
            gpu_thousandths=0,
            cpu_thousandths=4000,
            runs_for_s=SMALL_S,
            **facts,  # type: ignore[arg-type]
        )
        for number in range(40)
    }
    high = Cores(
        key="high",
        gpu_thousandths=2000,
        cpu_thousandths=16_000,
        runs_for_s=10.0,
        priority=sessions_pb2.PRIORITY_HIGH,
        **facts,  # type: ignore[arg-type]
    )
    shape = Shape(nodes=1, devices=2, control_planes=1)
    async with simulated(1, {**small, "high": high}, shape=shape) as cluster:
        stage = Stage(cluster, random.Random(1), {})
        await stage.submit("small0")
        await stage.runs("small0")
        await stage.submit("high")
        since = stage.now

        async def keep_coming() -> None:
            for key in list(small)[1:]:
                await asyncio.sleep(EACH_S)
                await stage.submit(key)

        coming = asyncio.create_task(keep_coming())
        try:
            began = await stage.runs("high", HELD_WITHIN_S + SMALL_S + LATE_S)
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        assert began - since <= HELD_WITHIN_S + SMALL_S + LATE_S
