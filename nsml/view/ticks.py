"""Ticks of an axis at round values, with their labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from nsml.common.time_zone import local, on_clock, zone_name
from nsml.view.series import Axis

_MOST = 64
_MANTISSAS = (1.0, 2.0, 5.0, 10.0)
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))
_LARGEST, _SMALLEST = 1e15, 1e-4
_SPANS = ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172_800.0, 3600.0, "h"))
_DAY = 86_400
_MOMENTS = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200),
    *(days * _DAY for days in (1, 2, 7, 14, 30, 90, 365, 1825, 36_500)),
)
"""Round steps between times, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """Ticks of an axis: positions `at` and their labels `texts`; `unit` of the labels, or ""."""

    at: tuple[float, ...]
    texts: tuple[str, ...]
    unit: str = ""


def value_ticks(low: float, high: float, *, most: int) -> Ticks:
    """Return about `most` multiples of 1, 2 or 5 times a power of ten from `low` to `high`."""
    step = _step(low, high, most)
    at = _multiples(low, high, step) or (low, high)
    return Ticks(at=at, texts=_texts(at, step))


def log_ticks(low: float, high: float, *, most: int) -> Ticks:
    """Return powers of ten from `low` to `high`, which are above 0; for a short range also values between."""
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    count = last - first + 1
    if count < 2:
        return value_ticks(low, high, most=most)
    every = math.ceil(count / most)
    powers = [10.0**power for power in range(first, last + 1, every)]
    is_plain = powers[0] >= _SMALLEST and powers[-1] <= 1e4
    texts = (f"{value:g}" if is_plain or value == 1 else _short(f"{value:.0e}") for value in powers)
    return Ticks(at=tuple(powers), texts=tuple(texts))


def place_ticks(low: float, high: float, axis: Axis, *, most: int) -> Ticks:
    """Return ticks of a horizontal axis."""
    match axis:
        case Axis.STEP:
            return value_ticks(low, high, most=most)
        case Axis.RELATIVE:
            return _span_ticks(low, high, most=most)
        case Axis.WALL:
            return _moment_ticks(low, high, most=most)


def _step(low: float, high: float, most: int) -> float:
    # Divided first: the difference of two finite numbers may be infinite.
    rough = high / most - low / most
    if not rough > 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next((size * power for size in _MANTISSAS if size * power >= rough), rough)


def _multiples(low: float, high: float, step: float) -> tuple[float, ...]:
    if not step or not math.isfinite(low / step) or not math.isfinite(high / step):
        return ()
    # An end that is a multiple counts, despite rounding errors.
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    if not 0 <= last - first < _MOST:
        return ()
    # Rounded, so that 3 steps of 0.1 are 0.3.
    return tuple(float(f"{number * step:.12g}") for number in range(first, last + 1))


def _texts(values: tuple[float, ...], step: float) -> tuple[str, ...]:
    """Format values with enough digits to distinguish them, all in one format."""
    top = max(abs(value) for value in values)
    if not top or not step:
        return tuple(f"{value:.4g}" for value in values)
    if not _SMALLEST <= top < _LARGEST:
        digits = min(max(math.floor(math.log10(top)) - _power_of(step), 0), 3)
        return tuple(_short(f"{value:.{digits}e}") for value in values)
    size, unit = next(((size, unit) for size, unit in _UNITS if top >= size), (1.0, ""))
    if unit == "k":
        size = 1e3
    digits = max(-_power_of(step / size), 0)
    return tuple(f"{value / size:.{digits}f}{unit}" if value else "0" for value in values)


def _power_of(step: float) -> int:
    return math.floor(math.log10(step) + 1e-9)


def _short(text: str) -> str:
    """Shorten 1e-05 to 1e-5."""
    mantissa, _, power = text.partition("e")
    return "0" if not float(mantissa) else f"{mantissa}e{int(power)}"


def _span_ticks(low: float, high: float, *, most: int) -> Ticks:
    span = high - low
    size, unit = next(((size, unit) for top, size, unit in _SPANS if span < top), (86_400.0, "d"))
    plain = value_ticks(low / size, high / size, most=most)
    return Ticks(at=tuple(value * size for value in plain.at), texts=plain.texts, unit=unit)


def _moment_ticks(low: float, high: float, *, most: int) -> Ticks:
    step = next((size for size in _MOMENTS if (high - low) / size <= most), _MOMENTS[-1])
    at = _even_on_clock(low, high, step) or (low,)
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < _DAY else "%Y-%m-%d"
    days = {local(value).date() for value in at}
    if step < _DAY and len(days) > 1:
        form = f"%m-%d {form}"
    texts = tuple(f"{local(value):{form}}" for value in at)
    # The zone's name may change in between; the first one is shown.
    name = zone_name(at[0])
    return Ticks(at=at, texts=texts, unit=f"{name}, {min(days)}" if "%d" not in form else name)


def _even_on_clock(low: float, high: float, step: int) -> tuple[float, ...]:
    """Return the times at which the reader's clock shows a multiple of `step` seconds since midnight or of whole days."""
    first, last = sorted(map(_shown_seconds, (low, high)))
    shown = (datetime.fromtimestamp(one, tz=UTC) for one in _multiples(first, last, float(step)))
    at = {on_clock(one.replace(tzinfo=None)).timestamp() for one in shown}
    return tuple(sorted(value for value in at if low <= value <= high))


def _shown_seconds(seconds: float) -> float:
    """Return the Unix seconds at which UTC shows the reader's local time."""
    return local(seconds).replace(tzinfo=UTC).timestamp()
