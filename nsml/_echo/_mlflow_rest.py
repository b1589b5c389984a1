"""What requests to MLflow contain, from any client: missing, wrong and endless values."""

from __future__ import annotations

import time
from math import isnan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Tuple

    Facts = Dict[str, Any]

MOST_NAMES = 20_000
"""Most metrics, parameters or tags of a run."""
_MOST_TEXT = 100_000


class Refusal(Exception):
    """A request that MLflow's own server refuses, too, with one of its codes."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def now() -> int:
    return int(time.time() * 1000)


def text(given: Facts, name: str) -> str:
    value = given.get(name)
    return "" if value is None else str(value)[:_MOST_TEXT]


def entries(given: Facts, name: str) -> List[Any]:
    value = given.get(name)
    return value if isinstance(value, list) else []


def pairs(given: Facts, name: str) -> Iterable[Tuple[str, str]]:
    for one in entries(given, name):
        if not isinstance(one, dict):
            raise Refusal("INVALID_PARAMETER_VALUE", f"{name} is no list of keys and values")
        yield text(one, "key"), text(one, "value")


def pairs_json(values: Dict[str, str]) -> List[Facts]:
    return [{"key": key, "value": value} for key, value in values.items()]


def put(values: Dict[str, str], key: str, value: str) -> None:
    if key in values or len(values) < MOST_NAMES:
        values[key] = value


def integer(value: Any) -> int:
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        raise Refusal("INVALID_PARAMETER_VALUE", f"{str(value)[:50]!r} is no integer") from None
    if not -(1 << 63) <= found < 1 << 63:
        raise Refusal("INVALID_PARAMETER_VALUE", "an integer is beyond 64 bits")
    return found


def number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise Refusal("INVALID_PARAMETER_VALUE", f"{str(value)[:50]!r} is no number") from None


def number_json(value: float) -> Any:
    if isnan(value):
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value
