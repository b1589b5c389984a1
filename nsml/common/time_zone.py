"""The time zone for input and output of times for people: the process's own (`TZ`), or UTC on request.

Programs always get UTC (`nsml.common.units.moment`).
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from datetime import UTC, datetime

_IS_UTC: ContextVar[bool] = ContextVar("is_utc", default=False)


def use_utc() -> None:
    """Read and show times in UTC from now on, in this context (see contextvars)."""
    _IS_UTC.set(True)


def local(seconds: float) -> datetime:
    """Convert Unix seconds to an aware time in the reader's zone."""
    at = datetime.fromtimestamp(seconds, tz=UTC)
    return at if _IS_UTC.get() else at.astimezone()


def on_clock(naive: datetime) -> datetime:
    """Convert a date and time without a zone to a moment.

    An ambiguous hour means the first one; a skipped time is moved forward by the gap.
    """
    # Not by astimezone(), which moves a skipped time backward.
    return naive.replace(tzinfo=UTC) if _IS_UTC.get() else local(naive.timestamp())


def typed(text: str, *, now: float | None = None) -> datetime:
    """Parse `2026-12-01`, `2026-12-01T09:30` or `2026-12-01T09:30+09:00`; raises ValueError.

    `now`: Unix seconds; if set, `09:30` is a time of that day, even a future one, as for journalctl.
    """
    text = text.strip()
    if now is not None and re.fullmatch(r"\d{2}:\d{2}(:\d{2})?", text, re.ASCII):
        text = f"{local(now).date().isoformat()}T{text}"
    at = datetime.fromisoformat(text)
    try:
        return at if at.tzinfo else on_clock(at)
    except OverflowError as error:
        raise ValueError(f"{text!r} is out of range") from error


def zone_name(seconds: float) -> str:
    """Return the zone's name at a moment: `UTC`, `KST`, `CEST`, `+0330`."""
    return local(seconds).strftime("%Z")


def suffix(seconds: float) -> str:
    """Return the suffix of a time of day: `Z` in UTC; ` CEST` in an ambiguous hour; else ""."""
    name = zone_name(seconds)
    if name == "UTC":
        return "Z"
    shown = local(seconds).replace(tzinfo=None)
    return f" {name}" if shown.timestamp() != shown.replace(fold=1).timestamp() else ""
