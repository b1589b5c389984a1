"""Keeps the audit trail within its size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.errors import NsmlError

if TYPE_CHECKING:
    from controlplane.history.sql.ledger import SqlLedger
    from nsml.common.clock import Clock

LOOK_EVERY_S: Final = 3600.0


class Trimming:
    """Runs on the leader.

    Args:
        most_rows: rows to keep; 0: no limit.
        most_bytes: approximate size limit; 0: no limit.
    """

    def __init__(self, *, ledger: SqlLedger, clock: Clock, most_rows: int, most_bytes: int) -> None:
        self._ledger = ledger
        self._clock = clock
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._log = structlog.get_logger()

    async def run(self) -> NoReturn:
        """Trim it every LOOK_EVERY_S, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_EVERY_S)
            try:
                removed = await self._ledger.trim_audit(
                    most_rows=self._most_rows, most_bytes=self._most_bytes
                )
            except NsmlError as error:
                self._log.warning("audit.not_trimmed", reason=error.message)
                continue
            if removed:
                self._log.warning("audit.trimmed", rows=removed)
