"""Moves sessions that have ended out of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.errors import NsmlError
from controlplane.domain.snapshot import SessionChanged

if TYPE_CHECKING:
    from controlplane.domain.values import Session
    from controlplane.operations.export import Exporter
    from controlplane.operations.state import LiveState
    from nsml.clock import Clock

AT_ONCE: Final = 64
"""Sessions that are exported together."""

GATHER_S: Final = 0.05
"""Pause between two rounds: nobody waits for an export, and many together cost less."""

RETRY_S: Final = 1.0


class Exporting:
    """The export loop."""

    def __init__(self, *, state: LiveState, exporter: Exporter, clock: Clock) -> None:
        self._state = state
        self._exporter = exporter
        self._clock = clock
        self._log = structlog.get_logger("loops.export")

    async def run(self) -> None:
        """Export what has ended, until cancelled."""
        with self._state.subscribed() as changes:
            ended = {
                stored.value.id: stored.value
                for stored in self._state.sessions.values()
                if stored.value.state.is_ended
            }
            while True:
                for change in changes.drain() if ended else await changes.take():
                    if isinstance(change, SessionChanged) and change.session.state.is_ended:
                        ended[change.session.id] = change.session
                ended = await self._round(ended)
                await self._clock.sleep(GATHER_S)

    async def _round(self, ended: dict[str, Session]) -> dict[str, Session]:
        """Export some; what is left."""
        now = list(ended.values())[:AT_ONCE]
        if not now:
            return ended
        try:
            await self._exporter.export(now)
        except NsmlError as error:
            self._log.warning("export.failed", reason=error.message, sessions=len(now))
            await self._clock.sleep(RETRY_S)
            return ended
        done = {one.id for one in now}
        return {key: one for key, one in ended.items() if key not in done}
