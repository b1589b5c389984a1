"""The audit trail: who changed what, and what was refused. Rows are only ever added.

Every method that changes something says so in the access table, and the interceptor writes a row for each of its calls. A call
that only the leader could answer has its row there.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.errors import NsmlError
from controlplane.history.values import AuditRow
from nsml.concurrency import to_its_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controlplane.history.interface import Ledger
    from nsml.clock import Clock

OK: Final = "OK"
UNKNOWN: Final = "UNKNOWN"
"""Nobody could say whether it happened: the store did not answer, or the caller did not wait."""
LEFT_OUT: Final = "LEFT_OUT"
"""Stands for further refusals of the same actor; the target says how many."""

MOST_REFUSALS: Final = 60
"""Rows of one actor's refused calls a minute: the trail keeps them for good, and refusals are cheap to provoke."""
WINDOW_S: Final = 60.0
MOST_ACTORS: Final = 4096
MOST_WAITING: Final = 10_000
"""Rows that wait to be written; with more, calls wait for theirs."""
LONGEST_TARGET: Final = 256
LONGEST_REQUEST_ID: Final = 64
_EVERY_S: Final = 0.1

_log = structlog.get_logger("operations.auditing")


@dataclass(slots=True)
class _Refusals:
    since: float
    written: int = 0
    left_out: int = 0


class Audit:
    """Writes the trail.

    Args:
        clock: that people's clocks show.
    """

    def __init__(self, *, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._waiting: list[AuditRow] = []
        self._has_waiting = asyncio.Event()
        self._writing = asyncio.Lock()
        self._refusals: OrderedDict[str, _Refusals] = OrderedDict()

    async def record(self, row: AuditRow, *, at_once: bool) -> None:
        """Add a row, with the time of now and a target that any database takes.

        A history that is away stops nobody: what it could not take is in the log.

        Args:
            row: of a call that has ended.
            at_once: whether it is written when this returns; else it is soon.
        """
        row = replace(
            row,
            at=self._clock.time(),
            target=_clean(row.target, LONGEST_TARGET),
            request_id=_clean(row.request_id, LONGEST_REQUEST_ID),
        )
        rows = [row] if row.outcome == OK else self._within_budget(row)
        if not rows:
            return
        if at_once or len(self._waiting) >= MOST_WAITING:
            await to_its_end(self._write(rows))
            return
        self._waiting += rows
        self._has_waiting.set()

    async def run(self) -> None:
        """Write what waits, until cancelled; nothing waits then."""
        try:
            while True:
                await self._has_waiting.wait()
                await self.flush()
                await self._clock.sleep(_EVERY_S)  # what comes meanwhile goes together
        finally:
            await to_its_end(self.flush())

    async def flush(self) -> None:
        """Write what waits now; what is being written is there, too, when this returns."""
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

    def _within_budget(self, row: AuditRow) -> list[AuditRow]:
        """The rows to write for a call that may have done nothing: none once the actor has had many of them.

        How many those were is written later.
        """
        now, rows = self._clock.monotonic(), [row]
        known = self._refusals.get(row.actor)
        if known is None or now - known.since >= WINDOW_S:
            if known is not None and known.left_out:
                words = f"{known.left_out} further refusals"
                rows.insert(0, replace(row, method="*", target=words, outcome=LEFT_OUT))
            known = self._refusals[row.actor] = _Refusals(now)
        self._refusals.move_to_end(row.actor)
        if len(self._refusals) > MOST_ACTORS:
            self._refusals.popitem(last=False)
        if known.written >= MOST_REFUSALS:
            known.left_out += 1
            return []
        known.written += 1
        return rows


def _clean(text: str, longest: int) -> str:
    """Return `text` without what a database or a terminal does not take, cut to `longest` characters."""
    printable = "".join(one if one.isprintable() else "?" for one in text[:longest])
    return printable + ("..." if len(text) > longest else "")
