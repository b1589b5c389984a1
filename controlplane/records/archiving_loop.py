"""Moves logs into the object store some time after their session ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.history.values import StreamKey
from controlplane.records.rounds import Rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controlplane.history.sql.history import History
    from controlplane.records.logs import Logs
    from nsml.common.clock import Clock


class Archiving(Rounds[StreamKey]):
    """Runs on the leader. Two at a time would be harmless: see SqlStreams.archive.

    Args:
        after_s: how long after its end a session's logs stay in the history.
    """

    name = "archiving"
    look_every_s = 30.0
    retry_s = 60.0
    avoided_s = 3600.0

    def __init__(self, *, history: History, logs: Logs, clock: Clock, after_s: float) -> None:
        super().__init__(clock)
        self._history = history
        self._logs = logs
        self._after_s = after_s

    async def _due(self, limit: int) -> Sequence[StreamKey]:
        ended_before = self._clock.time() - self._after_s
        return await self._history.streams.unarchived(ended_before=ended_before, limit=limit)

    async def _turn(self, key: StreamKey) -> bool:
        return await self._logs.archive(key)

    def _session(self, key: StreamKey) -> str:
        return key.session_id
