"""Leader loop: counts the stored bytes of each user and project, on request and every few hours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.errors import NsmlError

if TYPE_CHECKING:
    from controlplane.content.object_gc import Collector
    from controlplane.limits.user_storage import Kept
    from nsml.common.clock import Clock

LOOK_EVERY_S: Final = 5.0
COUNT_EVERY_S: Final = 6 * 3600.0
"""Max age of a count without requests."""
LEAST_REST_S: Final = 60.0
FAILED_REST_S: Final = 300.0
"""Pause after a failed count: unreadable data may be lost."""
REST: Final = 10.0
"""Pause after a count, as a multiple of its duration, at least `LEAST_REST_S`: it reads everything."""


class CountingKept:
    """Counts storage; runs on the leader."""

    def __init__(
        self,
        *,
        collector: Collector,
        kept: Kept,
        clock: Clock,
        project_kept: Kept | None = None,
    ) -> None:
        self._collector = collector
        self._kept = kept
        self._all_kept = [kept] if project_kept is None else [kept, project_kept]
        self._clock = clock
        self._counted_at: float | None = None
        self._log = structlog.get_logger()

    async def run(self) -> NoReturn:
        """Count when it is due, until cancelled."""
        while True:
            rest_s = LOOK_EVERY_S
            if self.is_due():
                begun = self._clock.monotonic()
                try:
                    await self._collector.count()
                    self._counted_at = begun
                    for one in self._all_kept:
                        await one.look()
                except NsmlError as error:
                    self._log.warning("kept.not_counted", reason=f"{error.message}: {error.why}")
                took_s = self._clock.monotonic() - begun
                has_counted = self._counted_at == begun
                if has_counted:
                    self._log.info("kept.counted", seconds=round(took_s, 1))
                rest_s = max(LEAST_REST_S if has_counted else FAILED_REST_S, REST * took_s)
            await self._clock.sleep(rest_s)

    def is_due(self) -> bool:
        """Whether a count was requested, or the last one is old."""
        if any(one.is_count_wanted for one in self._all_kept):
            return True
        last = self._counted_at
        if last is not None and self._clock.monotonic() - last < COUNT_EVERY_S:
            return False  # an empty store keeps no count
        # By another leader's clock, which may be ahead.
        return abs(self._clock.time() - self._kept.counted_at) >= COUNT_EVERY_S
