"""Leader loop: marks overdue uploads as lost, so that they are not shown as pending for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.errors import NsmlError
from controlplane.store.interface import StoreError

if TYPE_CHECKING:
    from controlplane.checkpoints.lost_uploads import Overdue
    from nsml.common.clock import Clock

LOOK_EVERY_S: Final = 60.0


class Settling:
    """On the leader: one is enough, and a second one would change nothing."""

    def __init__(self, *, overdue: Overdue, clock: Clock) -> None:
        self._overdue = overdue
        self._clock = clock
        self._log = structlog.get_logger()

    async def run(self) -> NoReturn:
        """Settle every LOOK_EVERY_S, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_EVERY_S)
            try:
                await self._overdue.settle()
            except (NsmlError, StoreError) as error:
                self._log.warning("settling.waits", reason=str(error))
