"""Keeps it known what projects have used of their budgets, and says when a further period begins."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.snapshot import ProjectChanged
from controlplane.history.errors import HistoryUnavailable
from controlplane.operations.usage import charge_of

if TYPE_CHECKING:
    from controlplane.domain.snapshot import Change
    from controlplane.history.interface import History
    from controlplane.operations.state import LiveState
    from nsml.clock import Clock

AFRESH_EVERY_S: Final = 300.0
"""How often the ledger is read again, against an end that was not heard of."""
LOOK_EVERY_S: Final = 60.0
"""How often we look whether another period has begun: clocks are set."""
RETRY_S: Final = 2.0
"""Pause after the history did not answer. Meanwhile projects of which it is not known start nothing."""


class Accounting:
    """Runs on every control plane: each answers what was used, and whoever leads decides by it."""

    def __init__(self, *, state: LiveState, history: History, clock: Clock) -> None:
        self._state = state
        self._history = history
        self._clock = clock
        self._log = structlog.get_logger("loops.accounting")

    async def run(self) -> None:
        """Read what is not known, until cancelled."""
        told: dict[str, tuple[float, float]] = {}
        read_at = self._clock.monotonic()
        with self._state.subscribed(wants=_is_of_projects) as changes:
            while True:
                is_due = self._clock.monotonic() - read_at >= AFRESH_EVERY_S
                if is_due:
                    read_at = self._clock.monotonic()
                has_failed = not await self._read(everything=is_due)
                now = self._clock.time()
                periods = self._state.usage.periods(now)
                for name, period in periods.items():
                    if told.get(name) != period:
                        self._state.retell_project(name)
                told = periods
                left = min([until - now for _, until in periods.values()], default=LOOK_EVERY_S)
                try:
                    async with asyncio.timeout(min(left, RETRY_S if has_failed else LOOK_EVERY_S)):
                        await changes.take()
                except TimeoutError:
                    continue

    async def _read(self, *, everything: bool) -> bool:
        """Read of the ledger what is not known, or all of it; False when the history is away."""
        usage, now = self._state.usage, self._clock.time()
        unknown = usage.unknown(now)
        wanted = {name: since for name, (since, _) in usage.periods(now).items()}
        for name, since in (wanted if everything else unknown).items():
            try:
                rows = await self._history.ledger.charges(name, since=since)
            except HistoryUnavailable as error:
                self._log.warning("accounting.unknown", project=name, reason=error.message)
                return False
            charges = {(row.session_id, row.attempt): charge_of(row) for row in rows}
            usage.learn(name, since, charges)
            if name in unknown:
                self._state.retell_project(name)
        return True


def _is_of_projects(change: Change) -> bool:
    return isinstance(change, ProjectChanged)
