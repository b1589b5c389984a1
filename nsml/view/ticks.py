"""Round places on an axis, and what stands at them."""

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
"""Seconds between moments that people call round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """Marks of an axis: `at` and `texts` belong together; `unit` is that of the texts, or empty."""

    at: tuple[float, ...]
    texts: tuple[str, ...]
    unit: str = ""


def value_ticks(low: float, high: float, *, most: int) -> Ticks:
    """At most about `most` multiples of 1, 2 or 5 times a power of ten from `low` to `high`."""
    step = _step(low, high, most)
    at = _multiples(low, high, step) or (low, high)
    return Ticks(at=at, texts=_texts(at, step))


def log_ticks(low: float, high: float, *, most: int) -> Ticks:
    """Powers of ten from `low` to `high`, which are above 0; of a short range also what is between."""
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
    """Marks of a horizontal axis."""
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
    # An end that is a multiple itself is one, however it was rounded.
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    if not 0 <= last - first < _MOST:
        return ()
    # By whole powers of ten, so that 3 steps of 0.1 are 0.3.
    return tuple(float(f"{number * step:.12g}") for number in range(first, last + 1))


def _texts(values: tuple[float, ...], step: float) -> tuple[str, ...]:
    """The values with as many digits as tell them apart, all in one unit."""
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
    """1e-05 as 1e-5."""
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
    # A clock that is changed in between has two names; that of the first is shown.
    name = zone_name(at[0])
    return Ticks(at=at, texts=texts, unit=f"{name}, {min(days)}" if "%d" not in form else name)


def _even_on_clock(low: float, high: float, step: int) -> tuple[float, ...]:
    """The moments at which the reader's clock shows a multiple of `step` seconds since midnight or of whole days."""
    first, last = sorted(map(_shown_seconds, (low, high)))
    shown = (datetime.fromtimestamp(one, tz=UTC) for one in _multiples(first, last, float(step)))
    at = {on_clock(one.replace(tzinfo=None)).timestamp() for one in shown}
    return tuple(sorted(value for value in at if low <= value <= high))


def _shown_seconds(seconds: float) -> float:
    """Unix seconds at which a clock in UTC shows what the reader's shows then."""
    return local(seconds).replace(tzinfo=UTC).timestamp()
