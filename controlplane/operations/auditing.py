"""The audit trail: who changed what is not theirs alone, and when. Rows are only ever added.

In it are changes of projects and nodes, and what administrators do with sessions of others. What was refused changed nothing, and
has no row.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.errors import NotLeader, NsmlError, Unavailable
from controlplane.history.values import AuditRow
from nsml.concurrency import to_its_end

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from controlplane.domain.identity import UserCaller
    from controlplane.history.interface import Ledger
    from nsml.clock import Clock

OK: Final = "OK"
UNKNOWN: Final = "UNKNOWN"
"""Nobody could say whether it happened: the store did not answer, or the caller did not wait."""

_log = structlog.get_logger("operations.auditing")


class Audit:
    """Writes the trail.

    Args:
        clock: that people's clocks show.
    """

    def __init__(self, *, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    @contextlib.asynccontextmanager
    async def change(self, who: UserCaller, method: str, target: str) -> AsyncGenerator[None, None]:
        """Around what changes something: the row is there once it is left.

        A history that is away stops no administrator. What it could not take is in the log.

        Args:
            who: does it.
            method: of the contract: "NodeService/DrainNode".
            target: the name of what is changed.
        """
        outcome = UNKNOWN
        try:
            yield
            outcome = OK
        except NsmlError as error:
            if isinstance(error, NotLeader) or not isinstance(error, Unavailable):
                outcome = ""  # refused; or it is done elsewhere, and written there
            raise
        finally:
            if outcome:
                await to_its_end(self._write(who, method, target, outcome))

    async def _write(self, who: UserCaller, method: str, target: str, outcome: str) -> None:
        row = AuditRow(
            at=self._clock.time(),
            actor=who.user.name,
            method=method,
            target=target,
            outcome=outcome,
            token=who.token,
        )
        try:
            await self._ledger.audit([row])
        except NsmlError as error:
            _log.error("audit.unwritten", reason=error.message, **asdict(row))
