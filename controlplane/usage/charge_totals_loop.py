"""Keeps it known what accounts used: by which whoever leads obeys budgets, and orders the queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.changes import ProjectChanged
from controlplane.history.errors import HistoryUnavailable

if TYPE_CHECKING:
    from controlplane.domain.changes import Change
    from controlplane.history.sql.history import History
    from controlplane.history.values import AttemptCharge
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Clock

LOOK_EVERY_S: Final = 1.0
"""How often we look whether an account is to be read, and whether another period has begun: clocks are set."""
TOLD_EVERY_S: Final = 60.0
"""How often it is told anew what was held lately: little changes in less by time alone, at half-lives of hours and days."""
RETRY_S: Final = 2.0
"""Pause after the history did not answer. Meanwhile accounts are ordered by what is live, and projects of which it is
not known what they used of their budgets start nothing."""
ROWS_AT_ONCE: Final = 500
"""Rows, or accounts, or sessions, that are looked at before others have a turn."""


class Accounting:
    """Runs on every control plane, so that each can answer, and one that takes over knows already."""

    def __init__(self, *, state: LiveState, history: History, clock: Clock) -> None:
        self._state = state
        self._history = history
        self._clock = clock
        self._periods: dict[str, float | None] = {}
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Read what is not known, and tell what follows from it, until cancelled."""
        accounts, told_at = self._state.accounts, 0.0
        with self._state.subscribed(wants=_is_of_projects) as changes:
            while True:
                pause_s = LOOK_EVERY_S
                await self._settle()
                has_read = False
                while name := accounts.unread(self._clock.time(), self._clock.monotonic()):
                    if not await self._read(name):
                        pause_s = RETRY_S
                        break
                    has_read = True
                    self._tell_budget(name)
                for name in accounts.budgeted:
                    self._tell_budget(name)
                # On the minute: control planes that know the same tell the same.
                at = self._clock.time() // TOLD_EVERY_S * TOLD_EVERY_S
                if has_read or at != told_at:
                    await self._tell_shares(told_at := at)
                try:
                    async with asyncio.timeout(pause_s):
                        await changes.take()
                except TimeoutError:
                    continue

    async def _settle(self) -> None:
        for _ in range(self._state.accounts.placed // ROWS_AT_ONCE + 1):
            self._state.accounts.settle(self._clock.time(), ROWS_AT_ONCE)
            await asyncio.sleep(0)

    async def _read(self, name: str) -> bool:
        """Read the ledger for one account; False when the history is away."""
        last: AttemptCharge | None = None
        now, at = self._clock.time(), self._clock.monotonic()
        with self._state.accounts.reading(name, now, at) as reading:
            while True:
                try:
                    rows = await self._history.ledger.charges(
                        name, since=reading.since, behind=last, limit=ROWS_AT_ONCE
                    )
                except HistoryUnavailable as error:
                    self._log.warning("accounting.unknown", account=name, reason=error.message)
                    return False
                reading.take(rows)
                if len(rows) < ROWS_AT_ONCE:
                    break
                last = rows[-1]
            reading.finish()
        return True

    def _tell_budget(self, name: str) -> None:
        """Have a project looked at again that is counted since a moment ago, or in another period."""
        since = self._state.accounts.counted_since(name, self._clock.time())
        if since != self._periods.get(name):
            self._periods[name] = since
            self._state.retell_project(name)

    async def _tell_shares(self, at: float) -> None:
        """Tell what all accounts held lately, as of one instant."""
        accounts, lately = self._state.accounts, {}
        for count, name in enumerate(accounts.names(), 1):
            if gpus := accounts.lately(name, at):
                lately[name] = gpus
            if count % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._state.set_lately(lately)


def _is_of_projects(change: Change) -> bool:
    return isinstance(change, ProjectChanged)
