"""Asks the parts that nobody asks, in every control plane, so that what is wrong is known and what ended ends.

A part that works and is used costs nothing here. One that fails is asked every second: by a read, or, where
it was a write that failed, by a write of a few bytes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from nsml.common.concurrency import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from controlplane.core.store_health import ProbedStore
    from nsml.common.clock import Clock

QUIET_S: Final = 5.0
"""What was not asked for so long is asked."""

AGAIN_S: Final = 1.0
"""Between two rounds while something fails, and between two looks at who leads."""

WITHIN_S: Final = 5.0
"""What does not answer within this does not answer."""

_log = structlog.get_logger()


class Probing:
    """The loop.

    Args:
        looks: what else is looked at in each round; must not block.
    """

    def __init__(
        self,
        parts: Sequence[ProbedStore],
        *,
        clock: Clock,
        looks: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._parts = tuple(parts)
        self._looks = tuple(looks)
        self._clock = clock

    async def run(self) -> NoReturn:
        """Look until cancelled.

        Each part has a loop of its own: one whose call cannot be broken off holds up nothing else.
        """
        async with TaskGroup() as group:
            for part in self._parts:
                group.create_task(self._keep_asking(part), name=f"probing.{part.name}")
            while True:
                await self._clock.sleep(AGAIN_S)
                for look in self._looks:
                    look()

    async def _keep_asking(self, part: ProbedStore) -> NoReturn:
        while True:
            await self._clock.sleep(AGAIN_S)
            await self._ask(part)

    async def _ask(self, part: ProbedStore) -> None:
        gauge = part.gauge
        if not gauge.is_failing and gauge.quiet_s < QUIET_S:
            return
        writing = gauge.fails_writing
        try:
            async with asyncio.timeout(WITHIN_S):
                await (part.write() if writing else part.read())
        except TimeoutError as error:
            gauge.failed(error, writing=writing)
        except Exception as error:  # noqa: BLE001 - the gauge has seen it; asking must go on
            _log.debug("probe.failed", part=part.name, error=repr(error))
