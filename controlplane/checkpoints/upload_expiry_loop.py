"""Settles what no node will say anything of any more, so that it is not shown as on its way for ever."""

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
    """The leader's: one is enough, and another's second word would change nothing."""

    def __init__(self, *, overdue: Overdue, clock: Clock) -> None:
        self._overdue = overdue
        self._clock = clock
        self._log = structlog.get_logger()

    async def run(self) -> NoReturn:
        """Look now and then, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_EVERY_S)
            try:
                await self._overdue.settle()
            except (NsmlError, StoreError) as error:
                self._log.warning("settling.waits", reason=str(error))
