"""Finds sessions that make nothing of their devices: the leader's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import structlog

from controlplane.operations.usage import LOOK_EVERY_S

if TYPE_CHECKING:
    from controlplane.operations.wasting import Wastes
    from nsml.clock import Clock

_log = structlog.get_logger("loops.wasting")


class Wasting:
    """The loop."""

    def __init__(self, wastes: Wastes, *, clock: Clock) -> None:
        self._wastes = wastes
        self._clock = clock

    async def run(self) -> NoReturn:
        """Look every few seconds, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_EVERY_S)
            for session, episode in await self._wastes.look():
                _log.info(
                    "session.wastes",
                    session=session.name,
                    kind=episode.kind.value,
                    reason=episode.reason,
                )
