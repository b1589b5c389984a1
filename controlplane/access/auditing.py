"""The audit trail: who changed what, and refused calls. Rows are never changed.

Calls are cheap, and rows are kept: so each actor has a quota of rows, and calls over it are summed up in a few. The
access table marks every method that changes something, and the interceptor writes a row for each of its calls. A call
answered by the leader has its row there.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.errors import NsmlError
from controlplane.history.values import AuditRow
from controlplane.limits.allowances import Allowance
from nsml.common.concurrency import TaskGroup, to_its_end

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from controlplane.history.sql.ledger import SqlLedger
    from nsml.common.clock import Clock

OK: Final = "OK"
UNKNOWN: Final = "UNKNOWN"
"""It is unknown whether it was done: the store did not answer, or the caller did not wait."""
LEFT_OUT: Final = "LEFT_OUT"
"""Stands for calls without a row of their own; `calls` is their number."""

ROWS_AT_ONCE: Final = 1_000
ROWS_BACK_S: Final = 2_000.0
"""Burst of one actor's successful calls with rows of their own, and its refill time: 43,000 a day, 13 MB."""
MOST_REFUSALS: Final = 60
REFUSALS_BACK_S: Final = 360.0
"""The same for refused calls, which are cheap to provoke."""
WINDOW_S: Final = 60.0
"""Further calls are counted for this time, in seconds: one row per actor, method and outcome."""
MOST_COUNTED: Final = 10_000
"""Maximum number of counters by actor, method and outcome; further ones share one."""
MOST_WAITING: Final = 10_000
"""Rows waiting to be written; with more, calls wait for theirs."""
LONGEST_TARGET: Final = 256
LONGEST_REQUEST_ID: Final = 64
_EVERY_S: Final = 0.1

_log = structlog.get_logger()


class Audit:
    """Writes the trail.

    Args:
        clock: the wall clock.
        is_low: whether the history is at its floor: then only calls of administrators are written at once, all others
            are counted until there is room.
    """

    def __init__(
        self, *, ledger: SqlLedger, clock: Clock, is_low: Callable[[], bool] = lambda: False
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._is_low = is_low
        self._waiting: list[AuditRow] = []
        self._has_waiting = asyncio.Event()
        self._writing = asyncio.Lock()
        self._done = Allowance(ROWS_AT_ONCE, ROWS_BACK_S, clock.monotonic)
        self._refused = Allowance(MOST_REFUSALS, REFUSALS_BACK_S, clock.monotonic)
        self._counted: dict[tuple[str, str, str], AuditRow] = {}

    async def record(self, row: AuditRow, *, at_once: bool, is_admin: bool = False) -> None:
        """Add a row, with the current time and a sanitized target.

        An unavailable history blocks no call: its missing rows are in the log. Once an actor has used up its rows, calls
        are counted.

        Args:
            row: of a call that has ended.
            at_once: whether it is written when this returns, or soon.
            is_admin: whether an administrator made the call.
        """
        row = replace(
            row,
            at=self._clock.time(),
            target=_clean(row.target, LONGEST_TARGET),
            request_id=_clean(row.request_id, LONGEST_REQUEST_ID),
        )
        budget = self._done if row.outcome == OK else self._refused
        if (self._is_low() and not is_admin) or not budget.has_room(row.actor, 1):
            self._count(row)
            return
        budget.use(row.actor, 1)
        if at_once or len(self._waiting) >= MOST_WAITING:
            await to_its_end(self._write([row]))
            return
        self._waiting.append(row)
        self._has_waiting.set()

    def _count(self, row: AuditRow) -> None:
        key = (row.actor, row.method, row.outcome)
        if key not in self._counted and len(self._counted) >= MOST_COUNTED:
            row = AuditRow(at=row.at, actor="", method="*", outcome=LEFT_OUT)
            key = ("", row.method, row.outcome)
        known = self._counted.get(key)
        self._counted[key] = row if known is None else replace(row, calls=known.calls + 1)

    async def run(self) -> None:
        """Write waiting rows, until cancelled; then write all."""
        try:
            async with TaskGroup() as group:
                group.create_task(self._write_soon(), name="audit.rows")
                group.create_task(self._write_counts(), name="audit.counts")
        finally:
            self._end_counting()
            await to_its_end(self.flush())

    async def _write_soon(self) -> NoReturn:
        while True:
            await self._has_waiting.wait()
            await self.flush()
            await self._clock.sleep(_EVERY_S)  # rows of this time are written together

    async def _write_counts(self) -> NoReturn:
        while True:
            await self._clock.sleep(WINDOW_S)
            if not self._is_low():
                self._end_counting()

    def _end_counting(self) -> None:
        if self._counted:
            self._waiting += self._counted.values()
            self._counted = {}
            self._has_waiting.set()

    async def flush(self) -> None:
        """Write all waiting rows; rows already being written are complete, too, when this returns."""
        async with self._writing:
            rows, self._waiting = self._waiting, []
            self._has_waiting.clear()
            if rows:
                await self._write(rows)

    async def _write(self, rows: Sequence[AuditRow]) -> None:
        try:
            await self._ledger.audit(rows)
        except NsmlError as error:
            for row in rows:
                _log.warning("audit.unwritten", reason=error.message, **asdict(row))


def _clean(text: str, longest: int) -> str:
    """Replace unprintable characters in `text`, which databases and terminals may refuse; cut it to `longest`."""
    if text.isprintable() and len(text) <= longest:
        return text
    printable = "".join(one if one.isprintable() else "?" for one in text[:longest])
    return printable + ("..." if len(text) > longest else "")
