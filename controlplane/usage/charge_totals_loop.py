"""Keeps totals of accounts' usage up to date: the leader applies budgets and orders the queue by them."""

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
"""Interval of checks for unread accounts and for new budget periods: clocks are set."""
TOLD_EVERY_S: Final = 60.0
"""Interval of publishing recent usage: at half-lives of hours and days, time alone changes little in less."""
RETRY_S: Final = 2.0
"""Pause after the history did not answer. Meanwhile accounts are ordered by their live sessions, and projects with an
unknown budget usage start nothing."""
ROWS_AT_ONCE: Final = 500
"""Rows, accounts or sessions per turn of the event loop."""


class Accounting:
    """Runs on every control plane, so that each can answer, and a new leader has the totals already."""

    def __init__(self, *, state: LiveState, history: History, clock: Clock) -> None:
        self._state = state
        self._history = history
        self._clock = clock
        self._periods: dict[str, float | None] = {}
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Read missing totals, and publish their effects, until cancelled."""
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
                # On the minute: control planes with the same totals publish the same.
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
        """Read an account's ledger; return False if the history is unavailable."""
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
        """Publish a project again if it was just counted, or has a new period."""
        since = self._state.accounts.counted_since(name, self._clock.time())
        if since != self._periods.get(name):
            self._periods[name] = since
            self._state.retell_project(name)

    async def _tell_shares(self, at: float) -> None:
        """Publish the recent usage of all accounts, as of one instant."""
        accounts, lately = self._state.accounts, {}
        for count, name in enumerate(accounts.names(), 1):
            if gpus := accounts.lately(name, at):
                lately[name] = gpus
            if count % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._state.set_lately(lately)


def _is_of_projects(change: Change) -> bool:
    return isinstance(change, ProjectChanged)
