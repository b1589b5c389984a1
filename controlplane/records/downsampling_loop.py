"""Folds committed reports into coarser levels in the background, so that plots are fast to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.records.rounds import Rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controlplane.history.sql.history import History
    from nsml.common.clock import Clock


class Folding(Rounds[str]):
    """Runs on every control plane. Two folding one session are harmless: see History.series."""

    name = "folding"
    look_every_s = 2.0
    retry_s = 5.0
    avoided_s = 600.0
    most_turns = 8
    enough = Rounds.at_once

    def __init__(self, *, history: History, clock: Clock) -> None:
        super().__init__(clock)
        self._history = history

    async def _due(self, limit: int) -> Sequence[str]:
        return await self._history.series.unfolded(limit=limit)

    async def _turn(self, key: str) -> bool:
        return await self._history.series.fold(key)
