"""Retention of reports of sessions that ended long ago: deletes points, then the finest levels of series."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from controlplane.history.values import Ages
from controlplane.records.rounds import Rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controlplane.history.sql.history import History
    from nsml.common.clock import Clock


class Thinning(Rounds[str]):
    """Runs on the leader. Two at a time would be harmless: see SqlSeries.thin.

    Args:
        points_s: how long after its end a session keeps its points; 0: for good.
        levels_s: how long after its end it keeps the finest levels of its series; 0: for good.
    """

    name = "thinning"
    look_every_s = 300.0
    retry_s = 60.0
    avoided_s = 3600.0

    def __init__(self, *, history: History, clock: Clock, points_s: float, levels_s: float) -> None:
        super().__init__(clock)
        self._history = history
        self._points_s = points_s
        self._levels_s = levels_s

    async def _due(self, limit: int) -> Sequence[str]:
        return (
            await self._history.series.to_thin(self._ages(), limit=limit) if self._points_s else ()
        )

    async def _turn(self, key: str) -> bool:
        is_more = await self._history.series.thin(key, self._ages())
        if not is_more:
            self._log.info("thinning.thinned", session=key)
        return is_more

    def _ages(self) -> Ages:
        now = self._clock.time()
        return Ages(
            points_before=now - self._points_s,
            levels_before=now - self._levels_s if self._levels_s else -math.inf,
        )
