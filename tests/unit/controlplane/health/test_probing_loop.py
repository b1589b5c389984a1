"""The parts that nobody asks are asked, each by itself."""

from __future__ import annotations

import asyncio

from controlplane.core.store_health import (
    HISTORY_KINDS,
    OBJECTS_KINDS,
    Gauge,
    Kinds,
    ProbedStore,
)
from controlplane.domain.conditions import ConditionName
from controlplane.health.probing_loop import Probing
from controlplane.history.errors import HistoryUnavailable
from controlplane.objects.errors import ObjectsUnavailable
from controlplane.state.conditions import Conditions
from nsml.common.clock import SystemClock
from nsml.common.concurrency import to_its_end
from tests.unit.controlplane.rig import until


class Hurried(SystemClock):
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))


CLOCK = Hurried()


class Scene:
    """Two parts that fail to write: the one hangs then, whatever is done about it, the other works."""

    def __init__(self) -> None:
        self.conditions = Conditions(CLOCK)
        self.looks = 0
        self.is_hanging = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.hanging = self._gauge("objects", OBJECTS_KINDS)
        self.working = self._gauge("history", HISTORY_KINDS)

    def _gauge(self, subject: str, kinds: Kinds) -> Gauge:
        return Gauge(self.conditions, CLOCK, subject=subject, kinds=kinds)

    def probing(self) -> Probing:
        parts = [
            ProbedStore(name="objects", gauge=self.hanging, read=self._hang, write=self._hang),
            ProbedStore(name="history", gauge=self.working, read=self._work, write=self._work),
        ]
        return Probing(parts, clock=CLOCK, looks=[self._look])

    async def _hang(self) -> None:
        self.is_hanging.set()
        await to_its_end(self._wait())  # as a put into a folder, which cannot be broken off
        self.hanging.worked(wrote=True)

    async def _wait(self) -> None:
        await self.goes_on.wait()

    async def _work(self) -> None:
        self.working.worked(wrote=True)

    def _look(self) -> None:
        self.looks += 1


async def test_a_part_that_hangs_holds_up_nothing_else() -> None:
    scene = Scene()
    scene.hanging.failed(ObjectsUnavailable("gone"), writing=True)
    probing = asyncio.create_task(scene.probing().run())
    try:
        async with asyncio.timeout(60):
            await scene.is_hanging.wait()
        scene.working.failed(HistoryUnavailable("gone"), writing=True)
        before = scene.looks

        async def others_go_on() -> bool:
            stands = scene.conditions.stands(ConditionName.HISTORY_GONE)
            return not stands and scene.looks > before + 1

        await until(others_go_on, "the other part is asked, and who leads is looked at")
        assert scene.conditions.stands(ConditionName.OBJECTS_GONE)
        scene.goes_on.set()

        async def is_over() -> bool:
            return not scene.conditions.standing()

        await until(is_over, "what hung is asked again")
        assert not probing.done()
    finally:
        scene.goes_on.set()
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
