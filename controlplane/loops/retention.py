"""Lets go of what sessions reported that ended long ago: of points, then of the finest levels of series."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.errors import NsmlError
from controlplane.history.errors import HistoryUnavailable
from controlplane.history.values import Ages

if TYPE_CHECKING:
    from controlplane.history.interface import History
    from nsml.clock import Clock

LOOK_EVERY_S: Final = 300.0
"""How often we look for sessions that are old enough."""
RETRY_S: Final = 60.0
"""Pause after the history did not answer."""
REST: Final = 2.0
"""So many times as long as a turn took nothing is let go after it: reports that come in go first."""
AVOIDED_S: Final = 3600.0
"""How long a session is left alone with which it failed."""
_AT_ONCE: Final = 16


class Thinning:
    """The leader's. Two at a time would do no harm: see Series.thin.

    Args:
        points_s: how long after its end a session keeps its points; 0: for good.
        levels_s: how long after its end it keeps the finest levels of its series; 0: for good.
    """

    def __init__(self, *, history: History, clock: Clock, points_s: float, levels_s: float) -> None:
        self._history = history
        self._clock = clock
        self._points_s = points_s
        self._levels_s = levels_s
        self._avoided: dict[str, float] = {}
        """Until when, by session."""
        self._log = structlog.get_logger("loops.retention")

    async def run(self) -> NoReturn:
        """Let go of whatever is due, until cancelled."""
        while True:
            try:
                while self._points_s and await self._round():
                    pass
            except HistoryUnavailable as error:
                self._log.warning("thinning.waits", reason=error.message)
                await self._clock.sleep(RETRY_S)
            else:
                await self._clock.sleep(LOOK_EVERY_S)

    async def _round(self) -> bool:
        """Thin some; False when none was left with which it could be done."""
        now = self._clock.monotonic()
        self._avoided = {one: until for one, until in self._avoided.items() if until > now}
        due = await self._history.series.to_thin(self._ages(), limit=_AT_ONCE + len(self._avoided))
        rest = [session_id for session_id in due if session_id not in self._avoided]
        for session_id in rest:
            try:
                await self._thin(session_id)
            except HistoryUnavailable:
                raise
            except NsmlError as error:
                # What is damaged of one must not keep the others waiting.
                self._log.error("thinning.failed", session=session_id, reason=str(error))
                self._avoided[session_id] = now + AVOIDED_S
        return bool(rest)

    async def _thin(self, session_id: str) -> None:
        is_more = True
        while is_more:
            began = self._clock.monotonic()
            is_more = await self._history.series.thin(session_id, self._ages())
            await self._clock.sleep(REST * (self._clock.monotonic() - began))
        self._log.info("thinning.thinned", session=session_id)

    def _ages(self) -> Ages:
        now = self._clock.time()
        return Ages(
            points_before=now - self._points_s,
            levels_before=now - self._levels_s if self._levels_s else -math.inf,
        )
