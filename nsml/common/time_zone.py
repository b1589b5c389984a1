"""The time zone in which people type and read times: the process's own (`TZ`), or UTC where that is asked for.

Programs get UTC, always (`nsml.common.units.moment`).
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from datetime import UTC, datetime

_IS_UTC: ContextVar[bool] = ContextVar("is_utc", default=False)


def use_utc() -> None:
    """Type and show times in UTC from now on, in this context (see contextvars)."""
    _IS_UTC.set(True)


def local(seconds: float) -> datetime:
    """Unix seconds on the reader's clock; it knows its offset."""
    at = datetime.fromtimestamp(seconds, tz=UTC)
    return at if _IS_UTC.get() else at.astimezone()


def on_clock(naive: datetime) -> datetime:
    """The moment of a date and a time without a zone.

    Of an hour that a clock shows twice the first; one that it skips is as much later as it skips.
    """
    # Not by astimezone(), which takes a time that is skipped for one before it.
    return naive.replace(tzinfo=UTC) if _IS_UTC.get() else local(naive.timestamp())


def typed(text: str, *, now: float | None = None) -> datetime:
    """The moment of `2026-12-01`, `2026-12-01T09:30` or `2026-12-01T09:30+09:00`; or ValueError.

    `now`: Unix seconds; given, `09:30` is a time of that day, also one that is still to come, as for journalctl.
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
    """What the zone is called at a moment: `UTC`, `KST`, `CEST`, `+0330`."""
    return local(seconds).strftime("%Z")


def suffix(seconds: float) -> str:
    """What is behind a time of the day: `Z` where that is UTC; ` CEST` in an hour that the clock shows twice; else nothing."""
    name = zone_name(seconds)
    if name == "UTC":
        return "Z"
    shown = local(seconds).replace(tzinfo=None)
    return f" {name}" if shown.timestamp() != shown.replace(fold=1).timestamp() else ""
