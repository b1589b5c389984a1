"""Folds what programs report into coarser levels, behind its commit, so that plots are read at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.errors import NsmlError
from controlplane.history.errors import HistoryUnavailable
from nsml.content.errors import ContentError

if TYPE_CHECKING:
    from controlplane.history.interface import History
    from nsml.clock import Clock

LOOK_EVERY_S: Final = 2.0
"""How often we look for sessions to fold, when all that there were are."""
RETRY_S: Final = 5.0
"""Pause after the history did not answer."""
REST: Final = 2.0
"""So many times as long as a turn took nothing is folded after it: reports that come in go first."""
TURNS: Final = 8
"""Of one session before others have theirs."""
AVOIDED_S: Final = 600.0
"""How long a session is left alone that could not be folded."""
MOST_AVOIDED: Final = 1_000
_AT_ONCE: Final = 16


class Folding:
    """Runs on every control plane. Two that fold one session do no harm: see History.series."""

    def __init__(self, *, history: History, clock: Clock) -> None:
        self._history = history
        self._clock = clock
        self._avoided: dict[str, float] = {}
        """Until when, by session."""
        self._log = structlog.get_logger("loops.downsampling")

    async def run(self) -> NoReturn:
        """Fold whatever waits, until cancelled."""
        while True:
            try:
                while await self._round():
                    pass  # the rest after each turn is all that others wait for
            except HistoryUnavailable as error:
                self._log.warning("folding.waits", reason=error.message)
                await self._clock.sleep(RETRY_S)
            else:
                await self._clock.sleep(LOOK_EVERY_S)

    async def _round(self) -> bool:
        """Fold some sessions; whether more may be waiting."""
        folded, is_more = 0, False
        now = self._clock.monotonic()
        self._avoided = {one: until for one, until in self._avoided.items() if until > now}
        sessions = await self._history.series.unfolded(limit=_AT_ONCE + len(self._avoided))
        for session_id in sessions:
            if session_id in self._avoided:
                continue
            try:
                is_more |= await self._fold(session_id)
                folded += 1
            except HistoryUnavailable:
                raise
            except (NsmlError, ContentError) as error:
                # What is damaged of one must not keep the others waiting.
                self._log.error("folding.failed", session=session_id, reason=str(error))
                if len(self._avoided) < MOST_AVOIDED:
                    self._avoided[session_id] = now + AVOIDED_S
        return is_more or folded >= _AT_ONCE

    async def _fold(self, session_id: str) -> bool:
        for _ in range(TURNS):
            began = self._clock.monotonic()
            is_more = await self._history.series.fold(session_id)
            await self._clock.sleep(REST * (self._clock.monotonic() - began))
            if not is_more:
                return False
        return True
