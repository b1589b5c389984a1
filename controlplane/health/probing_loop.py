"""Probes unused backends, on every control plane, to detect failures and their ends.

A backend that works and is used costs nothing here. A failing one is probed every second: by a read, or, if
a write failed, by a write of a few bytes.
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
"""A backend without calls for this long is probed."""

AGAIN_S: Final = 1.0
"""Between two rounds during a failure, and between two checks of the leader."""

WITHIN_S: Final = 5.0
"""Timeout of a probe."""

_log = structlog.get_logger()


class Probing:
    """The loop.

    Args:
        looks: further checks of each round; must not block.
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
        """Probe until cancelled.

        Each backend has a loop of its own: an uncancellable call must not delay others.
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
