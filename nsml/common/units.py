"""Formatting and parsing of quantities for people."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nsml.common.time_zone import local, suffix, zone_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_SIZE = r"(\d{1,20})(?:\.(\d{1,20}))?\s*([KMGTP]?)(i?)B?"
_DURATION_PART = r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)"
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_COUNTS = {
    word: str(count)
    for count, words in enumerate(
        [
            "a an one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
        ],
        1,
    )
    for word in words.split()
} | {"half": "0.5"}
_LARGEST_WHOLE = 1e15
"""Whole numbers below it are written with all digits."""
_UNITS = {
    word: unit
    for unit, words in {
        "s": "s sec secs second seconds",
        "m": "m min mins minute minutes",
        "h": "h hr hrs hour hours",
        "d": "d day days",
        "w": "w wk wks week weeks",
    }.items()
    for word in words.split()
}
_MOST_WORDS = 80
_MOST_DIGITS = 17
"""Useful digits of a float."""
_NOW = 5
"""Seconds; shorter times are "just now"."""
_MINUTE, _HOUR, _DAY, _MONTH, _YEAR = 60, 3600, 86400, 2_629_800, 31_557_600


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count in words: `1 file`, `1,204 files`; `many`: an irregular plural."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def size_text(count: int) -> str:
    """Format bytes of data, on disks and in transfers, as `3.5 MB`: powers of 1000, as in NSML; for memory see `memory_text`."""
    if count == 1:
        return "1 Byte"
    value = float(count)
    for unit in ("Bytes", "kB", "MB", "GB", "TB"):
        if value < 1000:
            return f"{int(value)} {unit}" if unit == "Bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} PB"


def exact_size_text(count: int) -> str:
    """Format bytes exactly, as `2.5G` or `96Gi`, the shorter form: `parse_size` reads the same number."""
    decimal, binary = _decimal_size(count), _binary_size(count)
    return binary if binary and len(binary) < len(decimal) else decimal


def _binary_size(count: int) -> str:
    """Format bytes as a whole number of a unit in powers of 1024; "" if impossible."""
    for power, unit in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        whole, part = divmod(count, 1024**power)
        if whole and not part:
            return f"{whole}{unit}"
    return ""


def _decimal_size(count: int) -> str:
    for power, unit in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
        size = 1000**power
        if count >= size:
            whole, part = divmod(count, size)
            digits = f"{part:0{3 * power}}".rstrip("0")
            return f"{whole}.{digits}{unit}" if digits else f"{whole}{unit}"
    return str(count)


def memory_text(count: int) -> str:
    """Format bytes as `80.0 GiB`: powers of 1024, as memory is built."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{int(value)} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def parse_size(text: str) -> int:
    """Parse `24G` (powers of 1000), `24Gi` (powers of 1024) or `24000000000` to bytes; raises ValueError."""
    match = re.fullmatch(_SIZE, text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 24G, 512M or 24000000000")
    whole, part, unit, is_binary = match.groups(default="")
    size = (1024 if is_binary else 1000) ** " KMGTP".index(unit.upper() or " ")
    # In integers: 2.147483649G as a float is a byte less.
    return int(int(whole + part) * size // 10 ** len(part))


def lacks_unit(text: str) -> bool:
    """Return whether a text is a number alone, which `parse_duration` reads as seconds."""
    return re.fullmatch(r"\d+(\.\d+)?", text.strip()) is not None


def begins_as_number(text: str) -> bool:
    """Return whether a text starts like a number, which must not be cut: `1e-3`, `-.5`, `64x64`."""
    return re.match(r"[-+.]?\d", text) is not None


def parse_duration(text: str) -> float:
    """Parse `90`, `30s`, `15m`, `1h30m` or `2d` to seconds; raises ValueError."""
    text = text.strip().lower()
    if lacks_unit(text):
        return float(text)
    parts = re.findall(_DURATION_PART, text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration such as 30s, 15m, 1h30m or 2d")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def meant_duration(text: str) -> str:
    """Suggest a valid duration for words: `2h` for "two hours"; "" if unclear."""
    words = re.sub(r",|\band\b|\ban?(?= half)|(?<=half) an?\b", " ", text[:_MOST_WORDS].lower())
    words = words.strip().removeprefix("-")
    if clock := re.fullmatch(r"(\d{1,4}):([0-5]\d):([0-5]\d)", words, re.ASCII):
        parts = [(int(count), unit) for count, unit in zip(clock.groups(), "hms", strict=True)]
        return "".join(f"{count}{unit}" for count, unit in parts if count)
    meant = []
    for one in re.split(r"\s+(?=\d)|(?<=[a-z])(?=\d)", words):
        found = re.fullmatch(
            r"\s*(?:(\d+(?:\.\d+)?)[\s-]*|([a-z]+)[\s-]+)([a-z]+)\s*", one, re.ASCII
        )
        if found is None:
            return ""
        count, unit = found[1] or _COUNTS.get(found[2], ""), _UNITS.get(found[3], "")
        if not count or not unit:
            return ""
        meant.append(count + unit)
    return "".join(meant)


def duration_text(seconds: float) -> str:
    """Format seconds as `41s`, `41m`, `5h12m`, `2d3h`: two units at most."""
    total = int(max(seconds, 0))
    if total < _MINUTE:
        return f"{total}s"
    if total < _HOUR:
        minutes, rest = divmod(total, _MINUTE)
        return f"{minutes}m{rest}s" if rest and minutes < 10 else f"{minutes}m"
    if total < _DAY:
        hours, rest = divmod(total, _HOUR)
        return f"{hours}h{rest // _MINUTE}m" if rest >= _MINUTE else f"{hours}h"
    days, rest = divmod(total, _DAY)
    return f"{days}d{rest // _HOUR}h" if rest >= _HOUR else f"{days}d"


_AGES = (
    (_YEAR, "a year", "years", "y"),
    (_MONTH, "a month", "months", "mo"),
    (_DAY, "a day", "days", "d"),
    (_HOUR, "an hour", "hours", "h"),
    (_MINUTE, "a minute", "minutes", "m"),
)


def ago(seconds: float) -> str:
    """Format an age in NSML's words: `just now`, `40 seconds ago`, `2 minutes ago`, `an hour ago`."""
    if seconds < _NOW:
        return "just now"
    if seconds < _MINUTE:
        return f"{int(seconds)} seconds ago"
    for size, one, many, _ in _AGES:
        count = int(seconds // size)
        if count == 1:
            return f"{one} ago"
        if count > 1:
            return f"{count} {many} ago"
    return "just now"


def ago_within(seconds: float, cells: int) -> str:
    """Format an age to fit in `cells`: `2 minutes ago`, `2m ago`, `2m`."""
    told = ago(seconds)
    short = next(
        (f"{seconds // size:.0f}{unit}" for size, *_, unit in _AGES if seconds >= size),
        f"{int(seconds)}s" if seconds >= _NOW else "",
    )
    forms = (told, f"{short} ago", short) if short else (told, "now")
    return next((form for form in forms if len(form) <= cells), forms[-1])


def moment(seconds: float) -> str:
    """Format Unix seconds as RFC 3339 in UTC, to the millisecond: for programs."""
    text = datetime.fromtimestamp(seconds, tz=UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def local_moment(seconds: float) -> str:
    """Format Unix seconds as RFC 3339 with the offset of the reader's zone, to the millisecond: for people."""
    text = local(seconds).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z" if zone_name(seconds) == "UTC" else text


def short_moment(seconds: float, now: float, *, has_seconds: bool = False) -> str:
    """Format Unix seconds in the reader's zone as `11-23 05:20`; beyond half a year the date alone, as in `ls -l`.

    With a suffix `Z` in UTC, or the zone's name in an ambiguous hour. `has_seconds`: as `11-23 05:20:07`, to
    distinguish moments within a minute.
    """
    at = local(seconds)
    if not has_seconds and abs(now - seconds) >= _YEAR / 2:
        return f"{at:%Y-%m-%d}"
    return (
        f"{at:%m-%d %H:%M:%S}" + suffix(seconds)
        if has_seconds
        else f"{at:%m-%d %H:%M}" + suffix(seconds)
    )


def thousandths(count: int) -> str:
    """Format thousandths of a device or core as `2` or `0.5`."""
    return f"{count / 1000:g}"


def spans_apart(low: float, high: float) -> tuple[str, str]:
    """Format two spans in seconds, `low` and `high`, in units small enough to distinguish them: `10m`, `10m20s`."""
    span = high - low
    least = next((size for size in (_DAY, _HOUR, _MINUTE, 1) if span >= 10 * size), 0)
    digits = 0
    if not least and span > 0:
        digits = min(max(1 - math.floor(math.log10(span)), 1), 6)
    return _span(low, least, digits), _span(high, least, digits)


def _span(seconds: float, least: int, digits: int) -> str:
    """Round to `least` seconds, or to `digits` decimals if that is 0; zero units are left out."""
    rest = round(max(seconds, 0.0), digits)
    if least:
        rest = math.floor(seconds / least + 0.5) * least if seconds > 0 else 0
    text = ""
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if rest >= size:
            text += f"{int(rest // size)}{unit}"
            rest %= size
    part = f"{rest:.{digits}f}"
    part = part.rstrip("0").rstrip(".") if "." in part else part
    return text if text and part == "0" else f"{text}{part}s"


def apart(values: Sequence[float]) -> list[str]:
    """Format metrics' values or steps for people, with enough digits to distinguish them."""
    texts = [number_text(value) for value in values]
    is_whole = all(float(value).is_integer() and abs(value) < _LARGEST_WHOLE for value in values)
    for digits in range(5, 18):
        if len(set(texts)) >= len(set(values)):
            break
        texts = [f"{value:,.0f}" if is_whole else _rounded(value, digits) for value in values]
    return texts


def number_text(value: float) -> str:
    """Format a metric's value for people: short, never misleading about its size."""
    if value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124 - NaN
        return str(value)
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    return _rounded(value, 4)


def _rounded(value: float, digits: int) -> str:
    """Format a number with `digits` significant digits; also a JSON integer too large for a float."""
    try:
        return f"{value:.{digits}g}"
    except OverflowError:
        power = len(str(abs(value))) - 1
        return f"{value / 10**power:.{digits}g}e+{power}"


def exact_number_text(value: float) -> str:
    """Format a metric's value with all its digits: it parses as the same number."""
    is_whole = math.isfinite(value) and value == int(value) and abs(value) < _LARGEST_WHOLE
    return str(int(value)) if is_whole else repr(value)


def number_within(value: float, cells: int) -> str:
    """Round a number to fit in `cells`, its magnitude never cut off; the shortest form if none fits."""
    text = str(value)
    for digits in range(_MOST_DIGITS, 0, -1):
        if len(text) <= cells:
            break
        text = _rounded(value, digits)
    return text


def whole(value: float) -> float | int:
    """Return a number in its form for programs: 20 and not 20.0 if it is whole."""
    return int(value) if value.is_integer() else value
