"""`nsml.report`: what a training loop hands over becomes a JSON record, or several if it is long."""

from __future__ import annotations

import operator
import re
import time
from json import encoder as json_encoder
from math import isfinite, isinf, isnan

from nsml._frames import MAX_PAYLOAD
from nsml._notice import notice
from nsml._spool import Spool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

    _Texts = Dict[str, str]
else:
    _Texts = dict


_MOST_NAME_CHARS = 512
_MOST_NAMES = 10_000
"""Of one program that are listed: the history counts no more of a session."""
_MOST_DEPTH = 15
"""Of lists and objects in a value: readers know no more."""
_MOST_NOTICES = 20
_SHOWN_CHARS = 80
_MOST_WHY_CHARS = 200
"""Of the words of another library: those of torch go on for a page."""
_CONTAINERS = (dict, list, tuple)
_BY_NAME = "give values by name: report(loss=...), or report(**values) of a dict"
_NO_VALUES = frozenset(("step", "walltime"))
_LARGEST_INTEGER = 1 << 1023
"""Larger ones no float holds, and so no reader of the record."""
_DIGITS = 308
_LONGEST_VALUE = MAX_PAYLOAD - 4096
_PIECE_BYTES = 256 << 10


class _NotPlainError(TypeError):
    """A value is none of Python's own, and may be one of numpy's or torch's."""


class _Names(_Texts):
    """Names as they are recorded, by names as they are given; "" for what is recorded elsewhere.

    One look-up a value is all that a name costs once it is known.
    """

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        super().__init__(step="", walltime="")
        self._warn = warn

    def __missing__(self, given: str) -> str:
        name = given.replace("__", "/")
        if not name:
            self._warn("no name", "a value is not recorded: its metric has no name")
            return ""
        if len(name) > _MOST_NAME_CHARS:
            self._warn(
                "long name",
                f"{_shown(name)} is not recorded: a metric's name has {_MOST_NAME_CHARS} characters "
                f"at most, and this one has {len(name):,}",
            )
            return ""
        if len(self) < _MOST_NAMES + 2:
            self[given] = name
        else:
            self._warn(
                "many names",
                f"more than {_MOST_NAMES:,} metrics have names of their own, and those beyond, "
                f"from {_shown(name)} on, are recorded but not listed; report a list of numbers "
                "as NAME@vector instead",
            )
        return name


class Reporter:
    """Turns reports into records of `spool`, and remembers the last one."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._names = _Names(self._warn)
        self._warned: Set[str] = set()
        self._last: Dict[str, Any] = {}
        self._last_step: Any = None
        self.scope: Optional[Dict[str, Any]] = None
        self.safe_point: Optional[Callable[[float], None]] = None
        """Called at the end of each report with its time; may end the program."""

    def report(
        self,
        /,
        summary: Optional[bool] = False,
        scope: Optional[Dict[str, Any]] = None,
        **kwargs: Any,
    ) -> None:
        """Record the named values; never waits and never fails for want of an agent or of disk.

        What is too long to be recorded (a name of over 512 characters, one value of over 1 MiB) is
        left out, and the log says so; so it does of a step that is no number, and of a call without
        values, which records nothing.

        Args:
            summary: show these values in `nsml ps`.
            scope: variables that `nsml exec` may read, usually `locals()`.
            **kwargs: numbers, or whatever JSON can carry; scalars and arrays of one dimension of
                numpy, torch and others become numbers and lists. `step` is the x axis; `__` in a
                name means `/`; `walltime` is always the time of the call.

        Raises:
            TypeError: a value is none of these, or it is an integer beyond all floats; or values
                are given without names, as `report({"loss": 0.5})`.
        """
        now = time.time()
        step = kwargs.get("step")
        if type(step) is not int or not -_LARGEST_INTEGER < step < _LARGEST_INTEGER:
            given, step = step, _step(step)
            if step is None and given is not None:
                self._warn("step", _no_step(given))
        names = self._names
        values = {names[name]: value for name, value in kwargs.items()}
        values.pop("", None)
        if summary is not True and summary is not False:
            _check_summary(summary, values)
        if scope is not None:
            self.scope = scope
        if values:
            self._add(now, step, values, summary, kwargs)
        elif scope is None and kwargs.keys() <= _NO_VALUES:
            self._warn("no values", f"no value is recorded: {_BY_NAME}")
        if self.safe_point is not None:
            self.safe_point(now)

    def _add(
        self,
        now: float,
        step: Any,
        values: Dict[str, Any],
        summary: Optional[bool],
        kwargs: Dict[str, Any],
    ) -> None:
        names = self._names
        try:
            text = _encoded(values)
        except TypeError:
            # Again, value by value: what is remembered must not keep a tensor, or change with it.
            kwargs = {name: _plain_value(name, value, names) for name, value in kwargs.items()}
            values.update((names[name], value) for name, value in kwargs.items() if names[name])
            text = _encoded(values)
        if text.count("{") + text.count("[") > _MOST_DEPTH:
            _check_depth(values)
        payload = _record(now, step, text, summary)
        if len(payload) <= MAX_PAYLOAD:
            self._spool.append(payload)
        else:
            for piece in self._pieces(values):
                self._spool.append(_record(now, step, piece, summary))
        self._last = kwargs
        self._last_step = step

    def last(self) -> Dict[str, Any]:
        """The last report with its step, names as recorded: what a checkpoint carries along."""
        return {
            name.replace("__", "/"): self._last_step if name == "step" else value
            for name, value in self._last.items()
            if name != "walltime"
        }

    def _pieces(self, values: Dict[str, Any]) -> Iterator[str]:
        """What is too long for one record, as several."""
        held: List[str] = []
        size = 0
        for name, value in values.items():
            text = _encoded({name: value})[1:-1]
            length = len(text.encode("utf-8", "replace"))
            if length > _LONGEST_VALUE:
                said = (
                    f"{_shown(name)} is not recorded: one value has {_LONGEST_VALUE:,} bytes at "
                    f"most, and this one {length:,}; report fewer numbers at a time"
                )
                self._warn("long value " + name, said)
                self._spool.drop(said, is_told=True)
                continue
            if held and size + length > _PIECE_BYTES:
                yield "{" + ",".join(held) + "}"
                held, size = [], 0
            held.append(text)
            size += length
        if held:
            yield "{" + ",".join(held) + "}"

    def _warn(self, topic: str, text: str) -> None:
        """Say it in the log, once for each topic and not for ever."""
        if topic not in self._warned and len(self._warned) < _MOST_NOTICES:
            self._warned.add(topic)
            notice("nsml.report: " + text)


def encode(record: Dict[str, Any]) -> bytes:
    """`record` as strict JSON in UTF-8; numbers that JSON lacks become strings ("NaN").

    Raises:
        TypeError: something in it is not JSON serializable.
    """
    return _encoded(record).encode("utf-8", "replace")


def _encoded(record: Dict[str, Any]) -> str:
    try:
        try:
            text = _dumps(record)
        except ValueError:
            text = _dumps(_without_special_numbers(record))
    except (ValueError, RecursionError) as error:
        raise TypeError(f"the value is not JSON serializable: {error}") from error
    if len(text) > _DIGITS and re.search(r"[0-9]{%d}" % _DIGITS, text) and _has_huge(record):
        raise TypeError("the value is not JSON serializable: an integer beyond all floats")
    return text


def _record(now: float, step: Any, values: str, summary: Any) -> bytes:
    """A report; put together by hand, which takes half the time of an encoder's."""
    told = "null" if step is None else repr(step)
    kept = "true" if summary else "false"
    text = f'{{"kind":"metric","time":{now!r},"step":{told},"values":{values},"summary":{kept}}}'
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
    """`step` as a number, None when it is none; whatever counts as a number is welcome.

    Raises:
        TypeError: it is not even JSON serializable.
    """
    if step is None:
        return None
    if not isinstance(step, (int, float, str)):
        try:
            step = operator.index(step)
        except Exception:  # whatever a tensor raises that is no integer
            step = _plain_value("step", step, {})
    if isinstance(step, int):
        number = int(step)
        return number if -_LARGEST_INTEGER < number < _LARGEST_INTEGER else None
    try:
        step = float(step)
    except (TypeError, ValueError, OverflowError):
        return None
    return step if isfinite(step) else None


def _no_step(given: Any) -> str:
    """What the log says of a step that is none; an integer may be too long to be written out."""
    if isinstance(given, (str, float)):
        told = _shown(str(given))
    else:
        told = f"an object of type {type(given).__name__}"
    return f"{told} is no step, which is a finite number: it is recorded without a step"


def _check_summary(summary: Any, values: Dict[str, Any]) -> None:
    """Raise TypeError where a value stands in the place of `summary`.

    Programs hand over 0 and 1, and booleans of numpy: these count as such beside values alone.
    """
    try:
        is_one = summary is None or (bool(values) and bool(summary in (0, 1)))
    except Exception:  # whatever an array raises that is asked for one truth
        is_one = False
    if not is_one:
        kind = type(summary).__name__
        raise TypeError(
            f"nsml.report: summary is True or False, not an object of type {kind}; {_BY_NAME}"
        )


def _plain_value(given: str, value: Any, names: Dict[str, str]) -> Any:
    """`value` as JSON has it.

    Raises:
        TypeError: it has no such form; `given` is its name as the caller wrote it.
    """
    name = given.replace("__", "/")
    if names.get(given, name) == "" and given != "step":
        return None  # not recorded
    try:
        plain = _plain(value)
        encode({"": plain})
    except (TypeError, RecursionError) as error:
        raise TypeError(f"nsml.report: {_shown(name)}: {error}") from error
    return plain


def _plain(value: Any) -> Any:
    """`value` with what other libraries call numbers and arrays as Python's own."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return _plain(_of_another_library(value))


def _of_another_library(value: Any) -> Any:
    """What a scalar or array of numpy, torch, jax, tensorflow, pandas ... holds, none imported.

    Raises:
        TypeError: it is no number and no array of one dimension.
    """
    kind = type(value).__name__
    shape = _shape(value)
    if len(shape) > 1 and any(length != 1 for length in shape):
        raise TypeError(f"a {kind} of {len(shape)} dimensions is no metric; report its mean")
    is_one = bool(shape) and all(length == 1 for length in shape)
    for name in ("item", "tolist") if is_one else ("tolist", "item", "numpy", "__float__"):
        convert = None if isinstance(value, type) else getattr(value, name, None)
        if convert is None:
            continue
        try:
            plain = convert()
        except Exception as error:
            why = (str(error).splitlines() or [""])[0][:_MOST_WHY_CHARS]
            raise TypeError(f"a {kind} that gives no value: {why}") from error
        if type(plain) is not type(value):  # numpy.longdouble answers with itself
            return plain
    raise TypeError(
        f"an object of type {kind} is not JSON serializable; a metric is a number, or a list of them"
    )


def _shape(value: Any) -> Tuple[int, ...]:
    try:
        return tuple(int(length) for length in value.shape)
    except Exception:
        return ()


def _check_depth(values: Dict[str, Any]) -> None:
    for name, value in values.items():
        level = [value]
        for _ in range(_MOST_DEPTH):
            level = [
                entry
                for one in level
                if isinstance(one, _CONTAINERS)
                for entry in (one.values() if isinstance(one, dict) else one)
            ]
        if any(isinstance(one, _CONTAINERS) for one in level):
            raise TypeError(
                f"nsml.report: {_shown(name)}: lists in lists go {_MOST_DEPTH} levels deep at most"
            )


def _shown(name: str) -> str:
    """A name as a line of text has it: short, and nothing in it that a terminal obeys."""
    short = name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "..."
    return repr("".join(one if one.isprintable() else "?" for one in short))


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
    raise _NotPlainError(f"Object of type {type(value).__name__} is not JSON serializable")


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
