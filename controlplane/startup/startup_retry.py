"""A start waits for unavailable backends, and ends at once if one refuses it.

After a power cut everything starts at once, in any order. Backends run by others may be unavailable
for a while: an etcd cluster by URLs, PostgreSQL, a shared object store. Those in the data folder
work or are broken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from controlplane.domain.errors import NsmlError
from controlplane.history.errors import HistoryDenied, HistoryUnavailable
from controlplane.objects.errors import ObjectsDenied, ObjectsUnavailable
from controlplane.store.interface import CommitUnknown, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from controlplane.startup.ownership import BackendSettings
    from nsml.common.clock import Clock

T = TypeVar("T")

PAUSE_S: Final = 0.5
"""Between two attempts; one takes some seconds if a host does not answer."""
TOLD_EVERY_S: Final = 60.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Absence:
    """An unavailable backend, and the reason in a sentence with its name and address."""

    part: str
    reason: str


def absence(error: Exception, standing: BackendSettings) -> Absence | None:
    """Return the unavailable backend after such an error; None if waiting would not help."""
    match error:
        case HistoryDenied() | ObjectsDenied():
            return None
        case StoreUnavailable() | CommitUnknown() if not standing.coordination.is_inside:
            return Absence("etcd", str(error))
        case HistoryUnavailable() if standing.history:
            return Absence("history", _sentence(error))
        case ObjectsUnavailable() if standing.objects:
            return Absence("objects", _sentence(error))
    return None


def _sentence(error: NsmlError) -> str:
    return f"{error.message} ({error.why})" if error.why else error.message


class Waiting:
    """The waiting of one start: without a timeout, until it is cancelled.

    Args:
        tell: is called with the reason at each change; "" after the wait.
    """

    def __init__(
        self, standing: BackendSettings, clock: Clock, tell: Callable[[str], None]
    ) -> None:
        self._standing = standing
        self._clock = clock
        self._tell = tell
        self._absence = Absence("", "")
        self._began_at = self._told_at = 0.0

    async def until_there(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of an attempt, repeated while a backend is unavailable.

        Each attempt must be safe after a failed one.
        """
        while True:
            try:
                found = await attempt()
            except (StoreError, NsmlError) as error:
                absent = absence(error, self._standing)
                if absent is None:
                    raise
                self._waits(absent)
            else:
                self._is_over()
                return found
            await self._clock.sleep(PAUSE_S)

    def _waits(self, absent: Absence) -> None:
        now, before = self._clock.monotonic(), self._absence
        if absent.part != before.part:
            self._is_over()
            self._began_at = now
        if absent.part != before.part or now >= self._told_at + TOLD_EVERY_S:
            self._told_at = now
            waited_s = round(now - self._began_at)
            _log.warning(
                "controlplane.waiting",
                part=absent.part,
                reason=absent.reason,
                waited_s=waited_s,
            )
        self._absence = absent
        if absent.reason != before.reason:
            self._tell(absent.reason)

    def _is_over(self) -> None:
        part, self._absence = self._absence.part, Absence("", "")
        if part:
            waited_s = round(self._clock.monotonic() - self._began_at)
            _log.info("controlplane.waited", part=part, waited_s=waited_s)
            self._tell("")
