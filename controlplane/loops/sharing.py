"""Keeps it known what accounts held lately, by which whoever leads orders the queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.history.errors import HistoryUnavailable
from controlplane.operations.usage import charge_of

if TYPE_CHECKING:
    from controlplane.history.interface import History
    from controlplane.history.values import AttemptCharge
    from controlplane.operations.state import LiveState
    from nsml.clock import Clock

LOOK_EVERY_S: Final = 1.0
"""How often we look for accounts of which it is not known what they used."""
TOLD_EVERY_S: Final = 60.0
"""How often it is told anew: little changes in less by time alone, at half-lives of hours and days."""
RETRY_S: Final = 2.0
"""Pause after the history did not answer. Meanwhile accounts are ordered by what is live."""
ROWS_AT_ONCE: Final = 500
"""Rows, or accounts, or sessions, that are looked at before others have a turn."""


class Sharing:
    """Runs on every control plane, so that one that takes over knows already; nothing waits for it."""

    def __init__(self, *, state: LiveState, history: History, clock: Clock) -> None:
        self._state = state
        self._history = history
        self._clock = clock
        self._log = structlog.get_logger("loops.sharing")

    async def run(self) -> None:
        """Read what is not known, and tell what follows from it, until cancelled."""
        if not self._state.pasts.half_life_s:
            return
        told_at = 0.0
        while True:
            pause_s = LOOK_EVERY_S
            await self._settle()
            has_read = False
            while (name := self._state.pasts.unread(self._clock.monotonic())) is not None:
                if not await self._read(name):
                    pause_s = RETRY_S
                    break
                has_read = True
            # On the minute: control planes that know the same tell the same.
            at = self._clock.time() // TOLD_EVERY_S * TOLD_EVERY_S
            if has_read or at != told_at:
                await self._tell(told_at := at)
            await self._clock.sleep(pause_s)

    async def _settle(self) -> None:
        for _ in range(self._state.pasts.placed // ROWS_AT_ONCE + 1):
            self._state.pasts.settle(self._clock.time(), ROWS_AT_ONCE)
            await asyncio.sleep(0)

    async def _read(self, name: str) -> bool:
        """Read the ledger for one account; False when the history is away."""
        pasts = self._state.pasts
        since = pasts.since(self._clock.time())
        last: AttemptCharge | None = None
        with pasts.reading(name) as reading:
            while True:
                try:
                    rows = await self._history.ledger.charges(
                        name, since=since, behind=last, limit=ROWS_AT_ONCE
                    )
                except HistoryUnavailable as error:
                    self._log.warning("sharing.unknown", account=name, reason=error.message)
                    return False
                reading.take((row.session_id, charge_of(row)) for row in rows)
                if len(rows) < ROWS_AT_ONCE:
                    break
                last = rows[-1]
            reading.finish()
        pasts.was_read(name, self._clock.monotonic())
        return True

    async def _tell(self, at: float) -> None:
        """Tell what all accounts held lately, as of one instant."""
        pasts, lately = self._state.pasts, {}
        for count, name in enumerate(pasts.accounts(), 1):
            if gpus := pasts.lately(name, at):
                lately[name] = gpus
            if count % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._state.set_lately(lately)
