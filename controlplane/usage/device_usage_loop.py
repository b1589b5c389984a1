"""Measures sessions' use of devices, on every control plane; the leader records the total of all devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import structlog

from controlplane.domain.errors import NsmlError
from controlplane.usage.usage import LOOK_EVERY_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.history.sql.history import History
    from controlplane.usage.usage import Usages
    from nsml.common.clock import Clock

_log = structlog.get_logger()


class Measuring:
    """The loop.

    Args:
        leads: whether this control plane leads: one of them is enough for the platform's total.
    """

    def __init__(
        self, usages: Usages, history: History, *, leads: Callable[[], bool], clock: Clock
    ) -> None:
        self._usages = usages
        self._history = history
        self._leads = leads
        self._clock = clock

    async def run(self) -> NoReturn:
        """Measure every few seconds, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_EVERY_S)
            try:
                await self._usages.look()
                if self._leads() and (load := await self._usages.load()).devices:
                    await self._history.telemetry.note(load)
            except NsmlError as error:
                _log.warning("measuring.failed", reason=error.message)
