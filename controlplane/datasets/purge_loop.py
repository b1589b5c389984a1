"""Deletes removed versions of datasets once they can no longer be restored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.content.observed_clock import MOST_APART_S
from controlplane.domain.errors import NsmlError

if TYPE_CHECKING:
    from controlplane.content.observed_clock import ObservedClock
    from controlplane.datasets.datasets import Datasets
    from nsml.common.clock import Clock

LOOK_EVERY_S: Final = 3600.0


class Purging:
    """Runs on the leader; a clock set ahead never purges early."""

    def __init__(self, *, datasets: Datasets, observed: ObservedClock, clock: Clock) -> None:
        self._datasets = datasets
        self._observed = observed
        self._clock = clock
        self._log = structlog.get_logger()

    async def run(self) -> NoReturn:
        """Purge every LOOK_EVERY_S, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_EVERY_S)
            try:
                # Removal times come from control planes' clocks, which may differ from the observed clock.
                before = await self._observed.cutoff() - MOST_APART_S
                purged = await self._datasets.purge(before)
            except NsmlError as error:
                self._log.warning("datasets.not_purged", reason=error.message)
            else:
                if purged:
                    self._log.info("datasets.purged", versions=purged)
