"""Remove an ended session with all its recorded data."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import NotFound, StillLive, Unavailable
from controlplane.domain.lifecycle import SessionState
from controlplane.stored.etcd_codec import session_key

if TYPE_CHECKING:
    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.state.live_state import LiveState

EXPORT_WAIT_S: Final = 5.0
"""How long a just ended session may take to leave the store."""


class Remover:
    """Removes ended sessions; their charges stay."""

    def __init__(self, *, state: LiveState, history: History) -> None:
        self._state = state
        self._history = history

    async def remove(self, session: Session) -> None:
        """Remove it.

        Raises:
            StillLive: it has not ended.
            Unavailable: it ended just now and is not yet in the catalogue.
        """
        live = self._state.session(session.id)
        if live is not None and not live.state.is_ended:
            raise StillLive(
                f"{session.name} has not ended",
                why=f"it is {live.state.value}",
                attempt="again when its checkpoints are durable; nsml storage    shows whether there is room"
                if live.state is SessionState.FINALIZING
                else f"nsml stop {session.name}",
            )
        try:
            async with asyncio.timeout(EXPORT_WAIT_S):
                await self._exported(session.id)
        except TimeoutError:
            raise Unavailable(f"{session.name} is being recorded", attempt="again") from None
        roots = [session.spec.bundle_digest]
        if not await self._history.catalogue.delete_session(session.id, roots=roots):
            raise NotFound(f"there is no session {session.name}")

    async def _exported(self, session_id: str) -> None:
        with self._state.subscribed(session_key(session_id)) as changes:
            while self._state.session(session_id) is not None:
                await changes.take()
