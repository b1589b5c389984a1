"""`nsml.report`: converts the values of a training loop to a JSON record, or to several if it is long."""

from __future__ import annotations

import re
import time
from json import encoder as json_encoder
from math import isfinite, isinf, isnan

from nsml._frames import MAX_PAYLOAD
from nsml._notice import notice
from nsml._path_text import name_text
from nsml._spool import Spool
from nsml._strict import Strictness, comes_from_signal, reason
from nsml._values import LARGEST_INTEGER, Flattened, is_mapping, named_entries, simple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

    _Texts = Dict[str, str]
    _Problem = Tuple[str, str]
    """Key of a once-only message, and the message."""
else:
    _Texts = dict


MOST_NAME_CHARS = 512
MOST_NAMES = 10_000
"""Most listed names of a program: the limit of the history for a session."""
_MOST_NOTICES = 200
_MOST_KINDS = 32
"""Most remembered types of numbers."""
_MOST_OF_A_CALL = 20
"""Most detailed messages of one call; further values are only named."""
_MOST_NAMED = 50
_SHOWN_CHARS = 80
_NONE: List[Tuple[str, str]] = []
_BY_NAME = "give values by name: report(loss=...), or report(**values) of a dict"
_NO_VALUES = frozenset(("step", "walltime"))
_DIGITS = 308
_LONGEST_VALUE = MAX_PAYLOAD - 4096
_LONGEST_NUMBER = 40
_SPECIAL = frozenset(("NaN", "Infinity", "-Infinity"))
_PIECE_BYTES = 256 << 10


class _NotPlainError(TypeError):
    """A value is not of one of Python's own types; it may be of numpy or torch."""


class _Names(_Texts):
    """Recorded names by given names; "" for names that are not recorded as values.

    A known name costs one look-up per value.
    """

    def __init__(self, hint: Callable[[str, str], None]) -> None:
        super().__init__(step="", walltime="")
        self._hint = hint
        self.recorded: Set[str] = set()
        self.added: Optional[Callable[[str], None]] = None

    def __missing__(self, given: str) -> str:
        name = _recorded(given)
        if not 0 < len(name) <= MOST_NAME_CHARS:
            return ""
        if len(self) < MOST_NAMES + 2:
            self[given] = name
            self.recorded.add(name)
            if self.added is not None:
                self.added(name)
        else:
            self._hint(
                "many names",
                f"more than {MOST_NAMES:,} metrics have names of their own, and those beyond, "
                f"from {_shown(name)} on, are recorded but not listed; report a list of numbers "
                "as NAME@vector instead",
            )
        return name


class Reporter:
    """Converts reports to records of `spool`, and remembers the last one."""

    def __init__(self, spool: Spool, strictness: Optional[Strictness] = None) -> None:
        self._spool = spool
        self._strictness = strictness or Strictness(is_on=False)
        self._names = _Names(self._hint)
        self._numbers: Set[type] = {float, int}
        """Types whose values the encoder writes directly, without their methods."""
        self._hinted: Set[str] = set()
        self._told: Set[str] = set()
        self._notices = 0
        self._last: Dict[str, Any] = {}
        self._last_step: Any = None
        self._step_named: Any = None
        self._too_deep = 0
        self.scope: Optional[Dict[str, Any]] = None
        self.safe_point: Optional[Callable[[float, Any], None]] = None
        """Called at the end of each report with its time and step; may end the program."""

    def report(
        self,
        values: Any = False,
        variables: Optional[Dict[str, Any]] = None,
        /,
        *unnamed: Any,
        summary: Optional[bool] = False,
        scope: Optional[Dict[str, Any]] = None,
        **kwargs: Any,
    ) -> None:
        """Record named values; never blocks, and never stops training.

        Values that cannot be recorded are skipped and logged once: name, type, what to report instead.
        Outside of a session, and after `nsml.strict()`, a TypeError is raised after recording the others.

        Args:
            values: the same as `summary`; or a dict of values, as if passed by name.
            variables: the same as `scope`.
            unnamed: never recorded.
            summary: show these values in `nsml ps`.
            scope: variables that `nsml exec` may read, usually `locals()`.
            **kwargs: numbers of any library, also as arrays of one element; booleans become 0 and 1,
                dicts NAME/KEY. Text, lists and one-dimensional arrays are recorded unchanged. `step` is
                the x axis; `__` in a name means `/`; `walltime` is always the time of the call.

        Raises:
            TypeError: a value is not recorded, outside of a session or after `nsml.strict()`.
        """
        try:
            self._report(values, variables, unnamed, summary, scope, kwargs)
        except RecursionError:
            if self._strictness.is_on:
                raise
            self._too_deep += 1  # too deep to log it: the next report does

    def _report(  # noqa: PLR0917 - as it was called
        self,
        values: Any,
        variables: Any,
        unnamed: Tuple[Any, ...],
        summary: Optional[bool],
        scope: Optional[Dict[str, Any]],
        kwargs: Dict[str, Any],
    ) -> None:
        now = time.time()
        problems: List[_Problem] = _NONE
        step: Any = None
        if self._too_deep:
            self._tell_too_deep()
        try:
            names = self._names
            found = {names[name]: value for name, value in kwargs.items()}
            step = found.pop("", None)
            is_quick = (
                found
                and self._numbers.issuperset(map(type, found.values()))
                and (summary is False or summary is True)
                and (
                    (type(step) is int and -LARGEST_INTEGER < step < LARGEST_INTEGER)
                    or step is None
                    or (type(step) is float and isfinite(step))
                )
                and len(found) + ("step" in kwargs) == len(kwargs)
                and values is False
                and variables is None
                and not unnamed
            )
            if is_quick:
                if scope is not None:
                    self.scope = scope
                try:
                    self._record(now, step, found, summary, last=kwargs)
                except TypeError:  # an integer too large for a float
                    is_quick = False
            if not is_quick:
                unnamed = (values, variables, *unnamed)
                self._step_named = None
                problems = self._any(now, unnamed, summary, scope, kwargs)
                step = self._step_named
        except Exception as error:
            if comes_from_signal(error):
                raise
            problems = [("", f"a report fails: {reason(error)}")]
        if self.safe_point is not None:
            self.safe_point(now, step)
        if problems:
            self._refuse(problems)

    def _tell_too_deep(self) -> None:
        count, self._too_deep = self._too_deep, 0
        self._spool.drop(
            f"{count} reports are not recorded: they were made as deep in calls as Python allows"
        )

    def _any(
        self,
        now: float,
        unnamed: Tuple[Any, ...],
        summary: Any,
        scope: Optional[Dict[str, Any]],
        kwargs: Dict[str, Any],
    ) -> List[_Problem]:
        """Record what is possible of any call; return problems as pairs of name and message."""
        problems: List[_Problem] = []
        first, variables, *others = unnamed
        if is_mapping(first):
            found, refused = named_entries(first)
            problems += [(key, f"{_shown(key)} is not recorded: {why}") for key, why in refused]
            kwargs = {**found, **kwargs}
            first = kwargs.pop("summary", False)
            variables = kwargs.pop("scope", variables)
        if scope is not None:
            self.scope = scope
        has_values = not kwargs.keys() <= _NO_VALUES
        for given in (first, summary):
            if not _may_be_summary(given, has_values):
                kind = type(given).__name__
                text = f"summary is True or False, not an object of type {kind}; {_BY_NAME}"
                problems.append(("summary", text))
            elif given is not None and given:
                summary = True
        if type(variables) is dict:
            self.scope = scope = variables
        elif variables is not None or others:
            problems.append(("no name", f"values without names are not recorded: {_BY_NAME}"))
        self._step_named = step = self._step(kwargs.get("step"), problems)
        values, last = self._flattened(kwargs, problems)
        if values:
            self._record(now, step, values, summary is True, last=last, problems=problems)
        elif not (has_values or problems or scope is not None):
            self._hint("no values", f"no value is recorded: {_BY_NAME}")
        return problems

    def _step(self, given: Any, problems: List[_Problem]) -> Any:
        step = step_of(given)
        if step is None and given is not None:
            problems.append(("step", no_step(given)))
        return step

    def _flattened(
        self, kwargs: Dict[str, Any], problems: List[_Problem]
    ) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """Return values by recorded names; and the same with `step` in its place."""
        values: Dict[str, Any] = {}
        last: Dict[str, Any] = {}
        for given, value in kwargs.items():
            if given in _NO_VALUES:
                if given == "step":
                    last["step"] = None
                continue
            found = Flattened(given, value)
            for nested, why in found.refused:
                shown = _recorded(nested)
                problems.append((shown, f"{_shown(shown)} is not recorded: {why}"))
            if issubclass(type(value), float) and len(self._numbers) < _MOST_KINDS:
                self._numbers.add(type(value))  # of numpy: encoded as a float from now on
            for nested, plain in found.values:
                name = self._names[nested]
                if not name:
                    problems.append(_no_name(nested))
                    continue
                if name in values:
                    text = f"{_shown(name)} has two values in one report: the last is recorded"
                    problems.append((name, text))
                values[name] = last[name] = plain
                if type(plain) is str:
                    self._look_at_text(name, plain)
        return values, last

    def _look_at_text(self, name: str, text: str) -> None:
        """Log that a number in a text is not drawn in charts."""
        if len(text) <= _LONGEST_NUMBER and text not in _SPECIAL and _is_number(text):
            self._hint(
                f"text {name}",
                f"{_shown(name)} is text ({text.strip()!r}): it is recorded, but not drawn; "
                "report a number",
            )

    def _record(
        self,
        now: float,
        step: Any,
        values: Dict[str, Any],
        summary: Optional[bool],
        *,
        last: Dict[str, Any],
        problems: Optional[List[_Problem]] = None,
    ) -> None:
        payload = metric_record(now, step, encoded(values), summary)
        if len(payload) <= MAX_PAYLOAD:
            self._spool.append(payload)
        else:
            for piece in self._pieces(values, [] if problems is None else problems):
                self._spool.append(metric_record(now, step, piece, summary))
        self._last = last
        self._last_step = step

    def has(self, name: str) -> bool:
        """Return whether a metric of this recorded name was reported."""
        return name in self._names.recorded

    def follow_names(self, added: Callable[[str], None]) -> None:
        """Call `added` with each recorded name, now and once it is first reported. It must not raise."""
        self._names.added = added
        for name in [*self._names.recorded]:
            added(name)

    def last(self) -> Dict[str, Any]:
        """Return the last report with its step, by recorded names: stored in checkpoints."""
        return {
            self._names.get(name) or name: self._last_step if name == "step" else value
            for name, value in self._last.items()
            if name != "walltime"
        }

    def _pieces(self, values: Dict[str, Any], problems: List[_Problem]) -> Iterator[str]:
        """Yield values too long for one record in pieces."""
        held: List[str] = []
        size = 0
        for name, value in values.items():
            text = encoded({name: value})[1:-1]
            length = len(text.encode("utf-8", "replace"))
            if length > _LONGEST_VALUE:
                said = (
                    f"{_shown(name)} is not recorded: one value has {_LONGEST_VALUE:,} bytes at "
                    f"most, and this one {length:,}; report fewer numbers at a time"
                )
                problems.append((name, said))
                self._spool.drop(said, is_told=True)
                continue
            if held and size + length > _PIECE_BYTES:
                yield "{" + ",".join(held) + "}"
                held, size = [], 0
            held.append(text)
            size += length
        if held:
            yield "{" + ",".join(held) + "}"

    def _refuse(self, problems: List[_Problem]) -> None:
        """Raise, or log once per name why it is not recorded."""
        if self._strictness.is_on:
            others = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise TypeError(f"nsml.report: {problems[0][1]}{others}")
        fresh = {name: text for name, text in problems if name not in self._told}
        named = [*fresh][:_MOST_OF_A_CALL]
        more = [*fresh][_MOST_OF_A_CALL : _MOST_OF_A_CALL + _MOST_NAMED]
        if len(self._told) < MOST_NAMES:
            self._told.update(named, more)
        for first in named:
            self._notice(fresh[first])
        if more:
            left = len(fresh) - len(named) - len(more)
            others = f" and {left:,} more" if left else ""
            self._notice(f"not recorded either: {', '.join(map(_shown, more))}{others}")

    def _hint(self, topic: str, text: str) -> None:
        """Log a hint, once per topic: nothing is lost, so nothing is raised."""
        if topic not in self._hinted and len(self._hinted) < _MOST_NOTICES:
            self._hinted.add(topic)
            notice("nsml.report: " + text)

    def _notice(self, text: str) -> None:
        """Log a message, up to a limit."""
        self._notices += 1
        if self._notices <= _MOST_NOTICES:
            notice("nsml.report: " + text)
        elif self._notices == _MOST_NOTICES + 1:
            notice(
                "nsml.report: more is not recorded, and not named here; nsml.strict() raises instead"
            )


def encode(record: Dict[str, Any]) -> bytes:
    """Encode `record` as strict JSON in UTF-8; numbers that JSON lacks become strings ("NaN").

    Raises:
        TypeError: a value is not JSON serializable.
    """
    return encoded(record).encode("utf-8", "replace")


def encoded(record: Any) -> str:
    """The same as text."""
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


def metric_record(now: float, step: Any, values: str, summary: Any, origin: str = "") -> bytes:
    """Encode a report with `encoded` values without an encoder, in half the time.

    `origin`: the library that it was reported to; "" for `nsml.report`.
    """
    told = "null" if step is None else repr(step)
    kept = "true" if summary else "false"
    end = f',"origin":"{origin}"}}' if origin else "}"
    text = f'{{"kind":"metric","time":{now!r},"step":{told},"values":{values},"summary":{kept}{end}'
    try:
        return text.encode()  # half the time of the other
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _has_huge(value: Any) -> bool:
    """Return whether a value contains an integer too large for a float."""
    if isinstance(value, int):
        return not -LARGEST_INTEGER < value < LARGEST_INTEGER
    if isinstance(value, dict):
        return any(_has_huge(entry) for entry in value.values())
    if isinstance(value, (list, tuple)):
        return any(_has_huge(entry) for entry in value)
    return False


def step_of(step: Any) -> Any:
    """Convert `step` to a finite number of any numeric type; None if impossible."""
    try:
        step = simple(step)
        if type(step) is not int:
            step = float(step)
    except Exception as error:  # any exception of a program's object
        if comes_from_signal(error):
            raise
        return None
    return step if type(step) is int or isfinite(step) else None


def no_step(given: Any) -> str:
    """Return the message on an invalid step; an integer may be too long to print."""
    kind = type(given)
    if issubclass(kind, str):
        told = _shown(str.__str__(given))
    elif issubclass(kind, float):
        told = _shown(float.__repr__(given))
    else:
        told = f"an object of type {kind.__name__}"
    return f"{told} is no step, which is a finite number: it is recorded without a step"


def _no_name(given: str) -> _Problem:
    """Return why a value's name is invalid."""
    name = _recorded(given)
    if not name:
        return ("", "a value is not recorded: its metric has no name")
    text = (
        f"{_shown(name)} is not recorded: a metric's name has {MOST_NAME_CHARS} characters "
        f"at most, and this one has {len(name):,}"
    )
    key = name[: MOST_NAME_CHARS + 1]  # a valid name is shorter; a whole one may be megabytes
    return (key, text)


def _recorded(given: str) -> str:
    """Return the recorded form of a name, without methods of a subclass."""
    return name_text(str.replace(given, "__", "/"))


def _may_be_summary(given: Any, has_values: bool) -> bool:
    """Return whether a value may be the summary flag: programs pass 0 and 1, and booleans of numpy, beside values."""
    if given is None or given is True or given is False:
        return True
    try:
        return has_values and bool(given in (0, 1))
    except Exception:  # any exception of an array without a single truth value
        return False


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _shown(name: str) -> str:
    """Return a short, printable form of a name."""
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
    """Build a `json.dumps` that reuses one encoder: a new one per call would cost half of a report.

    It does not detect cycles: one in a user's value ends in a RecursionError.
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
            pass  # an interpreter whose encoder has another constructor
    return json_encoder.JSONEncoder(
        ensure_ascii=False,
        check_circular=False,
        allow_nan=False,
        separators=(",", ":"),
        default=_refuse,
    ).encode


_dumps = _build_dumps()
