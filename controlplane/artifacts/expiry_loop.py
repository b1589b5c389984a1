"""Leader loop: removes the files that sessions left in their working folders, when their retention ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.errors import NsmlError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from controlplane.history.sql.history import History
    from nsml.common.clock import Clock

LOOK_EVERY_S: Final = 3600.0
_AT_ONCE: Final = 100


class KeptFilesExpiry:
    """Expires kept files; on the leader. `kept_for_s`: retention in seconds, by the folder of the artifact."""

    def __init__(self, *, history: History, clock: Clock, kept_for_s: Mapping[str, float]) -> None:
        self._history = history
        self._clock = clock
        self._kept_for_s = kept_for_s
        self._log = structlog.get_logger()

    async def run(self) -> NoReturn:
        """Expire every LOOK_EVERY_S, until cancelled."""
        while True:
            try:
                if count := await self.expire():
                    self._log.info("kept_files.expired", versions=count)
            except NsmlError as error:
                self._log.warning("kept_files.not_expired", reason=error.message)
            await self._clock.sleep(LOOK_EVERY_S)

    async def expire(self) -> int:
        """Remove expired versions; return how many."""
        now, total = self._clock.time(), 0
        for folder, kept_s in self._kept_for_s.items():
            while count := await self._history.artifacts.expire(
                folder, before=now - kept_s, limit=_AT_ONCE
            ):
                total += count
        return total
