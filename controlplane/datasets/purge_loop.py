"""Removes versions of datasets for good, once they cannot be restored any more."""

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
    """The leader's: by a clock that is set ahead nothing is removed early."""

    def __init__(self, *, datasets: Datasets, observed: ObservedClock, clock: Clock) -> None:
        self._datasets = datasets
        self._observed = observed
        self._clock = clock
        self._log = structlog.get_logger()

    async def run(self) -> NoReturn:
        """Look now and then, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_EVERY_S)
            try:
                # Removals are stamped by control planes' clocks, from which the observed one may differ.
                before = await self._observed.cutoff() - MOST_APART_S
                purged = await self._datasets.purge(before)
            except NsmlError as error:
                self._log.warning("datasets.not_purged", reason=error.message)
            else:
                if purged:
                    self._log.info("datasets.purged", versions=purged)
