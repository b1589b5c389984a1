"""`nsml.report`: what a training loop hands over becomes one JSON record."""

from __future__ import annotations

import re
import time
from json import encoder as json_encoder
from math import isfinite, isinf, isnan

from nsml._spool import Spool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional


_NOT_VALUES = frozenset(("step", "walltime"))
_LARGEST_INTEGER = 1 << 1023
"""Larger ones no float holds, and so no reader of the record."""
_DIGITS = 308


class Reporter:
    """Turns reports into records of `spool`, and remembers the last one."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._last: Dict[str, Any] = {}
        self._last_step: Any = None
        self.scope: Optional[Dict[str, Any]] = None
        self.safe_point: Optional[Callable[[float], None]] = None
        """Called at the end of each report with its time; may end the program."""

    def report(
        self, /, summary: bool = False, scope: Optional[Dict[str, Any]] = None, **kwargs: Any
    ) -> None:
        """Record the named values; never waits and never fails for want of an agent or of disk.

        Args:
            summary: show these values in `nsml ps`.
            scope: variables that `nsml exec` may read, usually `locals()`.
            **kwargs: values that JSON can carry. `step` is the x axis; `__` in a name means `/`;
                `walltime` is always the time of the call.

        Raises:
            TypeError: a value is not JSON serializable (a tensor, numpy.float32): use float(); or
                it is an integer beyond all floats.
        """
        now = time.time()
        record = {
            "kind": "metric",
            "time": now,
            "step": _step(kwargs.get("step")),
            "values": {
                name.replace("__", "/") if "__" in name else name: value
                for name, value in kwargs.items()
                if name not in _NOT_VALUES
            },
            "summary": bool(summary),
        }
        self._spool.append(encode(record))
        self._last = kwargs
        self._last_step = record["step"]
        if scope is not None:
            self.scope = scope
        if self.safe_point is not None:
            self.safe_point(now)

    def last(self) -> Dict[str, Any]:
        """The last report with its step, names as recorded: what a checkpoint carries along."""
        return {
            name.replace("__", "/"): self._last_step if name == "step" else value
            for name, value in self._last.items()
            if name != "walltime"
        }


def encode(record: Dict[str, Any]) -> bytes:
    """`record` as strict JSON in UTF-8; numbers that JSON lacks become strings ("NaN").

    Raises:
        TypeError: something in it is not JSON serializable.
    """
    try:
        try:
            text = _dumps(record)
        except ValueError:
            text = _dumps(_without_special_numbers(record))
    except (ValueError, RecursionError) as error:
        raise TypeError(f"the value is not JSON serializable: {error}") from error
    if len(text) > _DIGITS and re.search(r"[0-9]{%d}" % _DIGITS, text) and _has_huge(record):
        raise TypeError("the value is not JSON serializable: an integer beyond all floats")
    return text.encode("utf-8", "replace")


def _has_huge(value: Any) -> bool:
    """Whether an integer is in it that is beyond all floats."""
    if isinstance(value, int):
        return not -_LARGEST_INTEGER < value < _LARGEST_INTEGER
    if isinstance(value, dict):
        return any(_has_huge(entry) for entry in value.values())
    if isinstance(value, (list, tuple)):
        return any(_has_huge(entry) for entry in value)
    return False


def _step(step: Any) -> Any:
    """`step` as a number, None when it is none; numpy's integers are welcome.

    Raises:
        TypeError: it is not even JSON serializable.
    """
    if step is None or (type(step) is int and -_LARGEST_INTEGER < step < _LARGEST_INTEGER):
        return step
    if hasattr(type(step), "__index__"):
        number = int(step)
        return number if -_LARGEST_INTEGER < number < _LARGEST_INTEGER else None
    if not isinstance(step, float):
        encode({"step": step})
        try:
            step = float(step)
        except (TypeError, ValueError):
            return None
    return step if isfinite(step) else None


def _without_special_numbers(value: Any) -> Any:
    if isinstance(value, float):
        if isnan(value):
            return "NaN"
        if isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
    elif isinstance(value, dict):
        return {
            _without_special_numbers(key): _without_special_numbers(entry)
            for key, entry in value.items()
        }
    elif isinstance(value, (list, tuple)):
        return [_without_special_numbers(entry) for entry in value]
    return value


def _refuse(value: Any) -> Any:
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _build_dumps() -> Callable[[Any], str]:
    """`json.dumps` without building an encoder for each call, which would cost half of a report.

    It checks no circles: one in a user's value ends in a RecursionError.
    """
    make = getattr(json_encoder, "c_make_encoder", None)
    if make is not None:
        try:
            no_sorting = no_skipping = no_special_numbers = False
            chunks = make(
                None,
                _refuse,
                json_encoder.encode_basestring,
                None,
                ":",
                ",",
                no_sorting,
                no_skipping,
                no_special_numbers,
            )
            if "".join(chunks({"a": [1, 0.5]}, 0)) == '{"a":[1,0.5]}':
                return lambda value: "".join(chunks(value, 0))
        except (TypeError, ValueError):
            pass  # an interpreter whose encoder is built in another way
    return json_encoder.JSONEncoder(
        ensure_ascii=False,
        check_circular=False,
        allow_nan=False,
        separators=(",", ":"),
        default=_refuse,
    ).encode


_dumps = _build_dumps()
