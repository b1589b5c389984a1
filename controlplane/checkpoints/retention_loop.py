"""Loop: applies checkpoint retention soon after checkpoints became durable."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.checkpoints.retention import candidates, protected, removable
from controlplane.domain.errors import NsmlError
from controlplane.store.interface import StoreError
from nsml.spec.checkpoint_retention import KEEP_ALL, retention_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from controlplane.domain.values import Session
    from controlplane.history.sql.checkpoint_marks import Marks
    from controlplane.history.sql.history import History
    from controlplane.history.values import Checkpoint
    from controlplane.state.references import References
    from nsml.common.clock import Clock

LOOK_EVERY_S: Final = 2.0
LOOKED_AT_PER_S: Final = 200
"""Average checkpoints checked per second and session: many are kept if no rule can be applied."""
_SHOWN: Final = 20


class CheckpointRetention:
    """Runs on each control plane, for sessions with checkpoints reported to it.

    Work lost in a crash is done after the session's next checkpoint.
    """

    def __init__(self, *, history: History, references: References, clock: Clock) -> None:
        self._history = history
        self._references = references
        self._clock = clock
        self._due: dict[str, float] = {}
        """Earliest time of the next check (monotonic s), by session ID."""
        self._rests: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._log = structlog.get_logger()

    def changed(self, session_id: str) -> None:
        """Check a session's checkpoints soon."""
        self._due.setdefault(session_id, self._rests.get(session_id, 0.0))
        self._wake.set()

    async def run(self) -> NoReturn:
        """Check changed sessions, until cancelled."""
        while True:
            await self._wake.wait()
            await self._clock.sleep(LOOK_EVERY_S)  # several become durable together
            now = self._clock.monotonic()
            self._rests = {one: until for one, until in self._rests.items() if until > now}
            for session_id in [one for one, since in self._due.items() if since <= now]:
                del self._due[session_id]
                await self._look(session_id)
            if not self._due:
                self._wake.clear()

    async def _look(self, session_id: str) -> None:
        try:
            await self.apply(session_id)
        except (NsmlError, StoreError) as error:
            self._log.warning("checkpoints.retention_waits", reason=str(error))
            self.changed(session_id)

    async def apply(self, session_id: str) -> tuple[str, ...]:
        """Apply a session's rules; return the removed names, oldest first."""
        known = await self._references.by_id(session_id)
        rules = known and retention_of(known.spec.keep_checkpoints or KEEP_ALL)
        # The resume point and pending loads from the store: another control plane may have written them.
        session = await self._references.newest(session_id) if rules else None
        if session is None or not rules:
            return ()
        looked_at = 0

        def choose(found: Iterable[Checkpoint], marks: Marks) -> Collection[str]:
            nonlocal looked_at
            there = list(candidates(rules, found))
            looked_at = len(there)
            return removable(rules, there, protected(session, marks, now))

        now = self._clock.time()
        gone = await self._history.checkpoint_marks.retire(
            session.id, session.owner, choose, now=now
        )
        self._rests[session_id] = self._clock.monotonic() + looked_at / LOOKED_AT_PER_S
        if gone:
            self._tell(session, gone)
        return tuple(one.name for one in gone)

    def _tell(self, session: Session, gone: tuple[Checkpoint, ...]) -> None:
        self._log.info(
            "checkpoints.removed",
            session=session.name,
            keep=session.spec.keep_checkpoints,
            count=len(gone),
            size_bytes=sum(one.size_bytes for one in gone),
            checkpoints=[one.name for one in gone[:_SHOWN]],
        )
