"""Moves the logs of sessions that ended some time ago into the object store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.errors import NsmlError, Unavailable
from nsml.content.errors import ContentError

if TYPE_CHECKING:
    from controlplane.history.interface import History
    from controlplane.history.values import StreamKey
    from controlplane.operations.logs import Logs
    from nsml.clock import Clock

LOOK_EVERY_S: Final = 30.0
"""How often we look for logs to move."""
RETRY_S: Final = 60.0
"""Pause after the history or the object store did not answer."""
REST: Final = 2.0
"""So many times as long as a block took no other is moved: nobody waits for it."""
AVOIDED_S: Final = 3600.0
"""How long a log is left alone that could not be moved."""
_AT_ONCE: Final = 16


class Archiving:
    """The leader's. Two at a time would do no harm: see Streams.archive.

    Args:
        after_s: how long after its end a session's logs stay where they are.
    """

    def __init__(self, *, history: History, logs: Logs, clock: Clock, after_s: float) -> None:
        self._history = history
        self._logs = logs
        self._clock = clock
        self._after_s = after_s
        self._avoided: dict[StreamKey, float] = {}
        """Until when, by log."""
        self._log = structlog.get_logger("loops.archiving")

    async def run(self) -> NoReturn:
        """Move whatever is due, until cancelled."""
        while True:
            try:
                while await self._round():
                    pass
            except Unavailable as error:
                self._log.warning("archiving.waits", reason=error.message)
                await self._clock.sleep(RETRY_S)
            else:
                await self._clock.sleep(LOOK_EVERY_S)

    async def _round(self) -> bool:
        """Move some; False when there was nothing that could be moved."""
        now = self._clock.monotonic()
        self._avoided = {one: until for one, until in self._avoided.items() if until > now}
        due = await self._history.streams.unarchived(
            ended_before=self._clock.time() - self._after_s, limit=_AT_ONCE + len(self._avoided)
        )
        has_moved = False
        for log in due:
            if log in self._avoided:
                continue
            try:
                has_moved |= await self._move(log)
            except Unavailable:
                raise
            except (NsmlError, ContentError) as error:
                # What is damaged of one must not keep the others waiting.
                self._log.error("archiving.failed", session=log.session_id, reason=str(error))
                self._avoided[log] = now + AVOIDED_S
        return has_moved

    async def _move(self, log: StreamKey) -> bool:
        has_moved, is_more = False, True
        while is_more:
            began = self._clock.monotonic()
            is_more = await self._logs.archive(log)
            has_moved |= is_more
            await self._clock.sleep(REST * (self._clock.monotonic() - began))
        return has_moved
