"""Limits on the logs of the platform's programs, so that users cannot fill a disk: a structlog processor."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nsml.common.without_rich import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

LINES_A_MINUTE: Final = 120
"""Most lines per event and minute."""
MOST_CHARS: Final = 2_048
"""Longest text of one value; tracebacks, which come from our code, may be ten times as long."""
_MINUTE_S: Final = 60.0
_LONG_VALUES: Final = {"exception": 10 * MOST_CHARS}


@dataclass(slots=True)
class _Minute:
    began_at: float
    lines: int = 0


class LogLimits:
    """Drops lines of an event beyond LINES_A_MINUTE, and truncates long values.

    The next line written has the number of dropped ones (`dropped`).

    Args:
        monotonic: seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        # Bounded: events are named in the code.
        self._minutes: dict[str, _Minute] = {}

    def __call__(
        self, _logger: Any, _method: str, line: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """Return the line, or raise structlog.DropEvent."""
        now = self._monotonic()
        minute = self._minutes.setdefault(str(line.get("event")), _Minute(now))
        if now - minute.began_at >= _MINUTE_S:
            if minute.lines > LINES_A_MINUTE:
                line["dropped"] = minute.lines - LINES_A_MINUTE
            minute.began_at, minute.lines = now, 0
        minute.lines += 1
        if minute.lines > LINES_A_MINUTE:
            raise structlog.DropEvent
        for name, value in line.items():
            most = _LONG_VALUES.get(name, MOST_CHARS)
            if isinstance(value, str) and len(value) > most:
                line[name] = f"{value[:most]}... ({len(value):,} characters)"
        return line
