"""Moves sessions that have ended out of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.domain.changes import SessionChanged

if TYPE_CHECKING:
    from controlplane.domain.values import Session
    from controlplane.sessions.export import Exporter
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Clock

AT_ONCE: Final = 64
"""Sessions that are exported together."""

GATHER_S: Final = 0.05
"""Pause between rounds: nobody waits for an export, and batches are cheaper."""

RETRY_S: Final = 1.0


class Exporting:
    """The export loop."""

    def __init__(self, *, state: LiveState, exporter: Exporter, clock: Clock) -> None:
        self._state = state
        self._exporter = exporter
        self._clock = clock

    async def run(self) -> None:
        """Export ended sessions until cancelled."""
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
        """Export some; return the rest."""
        tried = dict(list(ended.items())[:AT_ONCE])
        if not tried:
            return ended
        done = await self._exporter.export(list(tried.values()))
        if len(done) < len(tried):
            await self._clock.sleep(RETRY_S)
        # Failed ones move to the end, so that one cannot block the others.
        later = {key: one for key, one in ended.items() if key not in tried}
        return later | {key: one for key, one in tried.items() if key not in done}
