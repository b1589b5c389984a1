"""Histograms of many numbers, by numpy if the program has loaded it, else in plain Python."""

from __future__ import annotations

import sys

from nsml._arrays import finite, is_array, unwrapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

_MOST_BINS = 4096


def histogram(value: Any, bins: int, edges: Any) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return edges and counts of `value`, and its statistics; with `edges` the value is the counts.

    Raises:
        TypeError: it has no numbers, or edges do not fit.
    """
    if edges is not None:
        given, borders = finite(unwrapped(value))[0], finite(unwrapped(edges))[0]
        if not 1 <= len(given) <= _MOST_BINS or len(borders) != len(given) + 1:
            raise TypeError(f"1 to {_MOST_BINS} counts have one edge more")
        if any(low > high for low, high in zip(borders, borders[1:])):
            raise TypeError("edges go up")
        facts = {"min": borders[0], "max": borders[-1], "count": sum(given)}
        return {"edges": borders, "counts": given}, facts
    if isinstance(bins, bool) or not isinstance(bins, int) or not 1 <= bins <= _MOST_BINS:
        raise TypeError(f"bins is a whole number from 1 to {_MOST_BINS}, not {bins!r}")
    value = unwrapped(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and is_array(value):
        return _by_numpy(numpy, value, bins)
    numbers, others = finite(value)
    if not numbers:
        return _nothing(others)
    low, high = min(numbers), max(numbers)
    borders = _borders(low, high, bins)
    counts = [0] * bins
    start, width = _halves(borders)
    for number in numbers:
        counts[min(int((number / 2 - start) / width * bins), bins - 1)] += 1
    return _made(borders, counts, low, high, sum(numbers) / len(numbers), others)


def _by_numpy(numpy: Any, value: Any, bins: int) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    if value.dtype.kind not in "biuf":
        raise TypeError(f"an array of {value.dtype} holds no numbers to count")
    value = numpy.asarray(value).reshape(-1).astype("float64")  # a matrix stays one
    kept = value[numpy.isfinite(value)]
    others = int(value.size - kept.size)
    if not kept.size:
        return _nothing(others)
    low, high = float(kept.min()), float(kept.max())
    borders = _borders(low, high, bins)
    start, width = _halves(borders)
    places = ((kept / 2 - start) / width * bins).astype("int64").clip(0, bins - 1)
    counted = numpy.bincount(places, minlength=bins)
    return _made(borders, counted.tolist(), low, high, float(kept.mean()), others)


def _borders(low: float, high: float, bins: int) -> List[float]:
    if low == high:  # one value: a bin around it
        reach = abs(low) / 2 or 0.5
        most = sys.float_info.max
        low, high = max(low - reach, -most), min(high + reach, most)
    if high - low > sys.float_info.max:  # the range overflows, its halves do not
        width = high / 2 / bins - low / 2 / bins
        inner = [2 * (low / 2 + number * width) for number in range(1, bins)]
    else:
        width = high / bins - low / bins
        inner = [low + number * width for number in range(1, bins)]
    return [low, *(min(edge, high) for edge in inner), high]


def _halves(borders: List[float]) -> Tuple[float, float]:
    """Return half of the lowest edge and half of the range, which may overflow."""
    return borders[0] / 2, (borders[-1] / 2 - borders[0] / 2) or 1.0


def _made(  # noqa: PLR0917 - what there is to say, in its order
    borders: List[float], counts: List[int], low: float, high: float, mean: float, others: int
) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    facts = {"count": sum(counts), "min": low, "max": high, "mean": mean, "not_finite": others}
    return {"edges": borders, "counts": counts}, facts


def _nothing(others: int) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    return {"edges": [], "counts": []}, {"count": 0, "not_finite": others}
