"""Converts reported values to numbers, text and lists: scalars of any library, and nested dicts by name.

No library is imported: values are read by their own methods, which may raise anything.
"""

from __future__ import annotations

import operator
from functools import partial
from itertools import islice

from nsml._path_text import name_text
from nsml._strict import comes_from_signal, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

    _Entry = Tuple[Optional[str], Any, str]
    """Name and value, or why there is none."""

MOST_DEPTH = 15
"""Most nested dicts and lists in a value: a limit of the records' readers."""
MOST_ENTRIES = 1 << 20
"""Most entries of all dicts and lists in one value, so that one that contains itself many times terminates."""
MOST_NESTED = 10_000
"""Most values of one flattened dict: more are never listed."""
LARGEST_INTEGER = 1 << 1023
"""No larger integer fits a float, nor a reader of the record."""

_MOST_TURNS = 8
"""An object may return another that must be converted, but not forever."""
_QUICK = frozenset((float, str, type(None)))
_QUICK_OR_INT = _QUICK | {int}
_OF_ONE = ("item", "tolist", "numpy", "asnumpy")
_OF_ANY = ("tolist", "to_list", "item", "numpy", "asnumpy")
_DO_INSTEAD = (
    ("compute", "report its .compute()"),
    ("result", "report its .result()"),
    ("__dataclass_fields__", "report dataclasses.asdict(...) of it"),
    ("__next__", "report list(...) of it"),
    ("__iter__", "report list(...) of it"),
    ("value", "report its .value"),
)


class NotRecordedError(TypeError):
    """A value that cannot be recorded; the text describes it, and what to report instead."""


class _TooManyError(Exception):
    """A value has too many entries."""


class Flattened:
    """One value of any type, flattened: those of nested dicts as NAME/KEY.

    `values` has names and plain values in order, `refused` names and why their values are missing.
    Raises nothing, except exceptions of signal handlers.
    """

    def __init__(self, name: str, value: Any) -> None:
        self.values: List[Tuple[str, Any]] = []
        self.refused: List[Tuple[str, str]] = []
        self._left = MOST_ENTRIES
        try:
            self._add(name, value, ())
        except _TooManyError:
            why = f"it has more than {MOST_ENTRIES:,} values"
            if self.values:
                why = f"only its first {len(self.values):,} values are"
            self.refused.append((name, why))

    def _add(self, name: str, value: Any, above: Tuple[int, ...]) -> None:
        try:
            value, entries = self._read(value, above)
        except _TooManyError:
            raise
        except Exception as error:
            if comes_from_signal(error):
                raise
            self.refused.append((name, reason(error)))
            return
        if entries is None:
            if above and len(self.values) >= MOST_NESTED:
                raise _TooManyError
            self.values.append((name, value))
            return
        above = (*above, id(value))
        for key, entry, why in entries:
            if why:
                self.refused.append((name if key is None else f"{name}/{key}", why))
            else:
                self._add(f"{name}/{key}", entry, above)

    def _read(self, value: Any, above: Tuple[int, ...]) -> Tuple[Any, Optional[List[_Entry]]]:
        """Return a plain value and None, or a mapping and its entries."""
        self._count()
        value = simple(value)
        if type(value) in _QUICK_OR_INT:
            return value, None
        if is_mapping(value):
            _within(value, above)
            return value, _entries(value)
        return self._list(value, above), None

    def _list(self, value: Any, above: Tuple[int, ...]) -> List[Any]:
        """Return the entries in order, with None for those that cannot be recorded."""
        above = _within(value, above)
        entries = [*_iterated(value)]
        self._count(len(entries))
        if _are_plain(entries):
            return entries
        plain, refused = [], None
        for entry in entries:
            try:
                plain.append(self._entry(entry, above))
            except _DeepError:
                raise
            except NotRecordedError as error:
                refused = error
                plain.append(None)
        if refused is not None and not any(entry is not None for entry in plain):
            raise refused
        return plain

    def _entry(self, entry: Any, above: Tuple[int, ...]) -> Any:
        entry = simple(entry)
        if issubclass(type(entry), (list, tuple)):
            return self._list(entry, above)
        if not is_mapping(entry):
            return entry
        above = _within(entry, above)
        named: Dict[str, Any] = {}
        for key, value, why in _entries(entry):
            self._count()
            if why or key is None:
                raise NotRecordedError(why)
            named[name_text(key)] = self._entry(value, above)
        return named

    def _count(self, count: int = 1) -> None:
        self._left -= count
        if self._left < 0:
            raise _TooManyError


def is_mapping(value: Any) -> bool:
    """Return whether a value is a dict, or a mapping."""
    kind = type(value)
    return issubclass(kind, dict) or _is_mapping(kind)


def named_entries(value: Any) -> Tuple[Dict[str, Any], List[Tuple[str, str]]]:
    """Return the entries of a dict or mapping by name; and the refused ones, with reasons."""
    found: Dict[str, Any] = {}
    refused = []
    for name, entry, why in _entries(value):
        if name is None or why:
            refused.append((name or "", why))
        else:
            found[name] = entry
    return found, refused


class _DeepError(NotRecordedError):
    """A whole value is refused because of one entry, which may contain the value itself."""


def _are_plain(entries: List[Any]) -> bool:
    kinds = set(map(type, entries))
    if not kinds - _QUICK:
        return True
    return not kinds - _QUICK_OR_INT and all(
        type(entry) is not int or -LARGEST_INTEGER < entry < LARGEST_INTEGER for entry in entries
    )


def simple(value: Any) -> Any:
    """Convert `value` to None, a number, text, a list, a tuple or a dict; containers are unchanged.

    Raises:
        NotRecordedError: impossible.
    """
    for _ in range(_MOST_TURNS):
        kind = type(value)
        if kind in _QUICK:
            return value
        if kind is bool:
            return int(value)
        if issubclass(kind, int):
            return _integer(int.__pos__(value))
        if issubclass(kind, float):
            return float.__pos__(value)
        if issubclass(kind, str):
            return str.__str__(value)
        if issubclass(kind, (dict, list, tuple)) or _is_mapping(kind):
            return value
        _check_kind(value, kind)
        value = _asked(value, kind)
    raise NotRecordedError(f"{_an(kind)} answers with other objects without end")


def _integer(value: int) -> int:
    if -LARGEST_INTEGER < value < LARGEST_INTEGER:
        return value
    bits = value.bit_length()
    raise NotRecordedError(
        f"an integer of {bits:,} bits is beyond all floats; report its logarithm"
    )


def _check_kind(value: Any, kind: Any) -> None:
    """Refuse values that look like a number, or would be iterated, and are no metric."""
    if issubclass(kind, type):
        raise NotRecordedError(f"a class ({value.__name__}) is no number; report a value")
    if issubclass(kind, (bytes, bytearray)):
        raise NotRecordedError(f"{_an(kind)} is no number; report text: .decode()")
    letter = _letter(value)
    if letter == "c" or issubclass(kind, complex):
        raise NotRecordedError(f"{_an(kind)} is no real number; report its abs(), .real or .imag")
    if letter == "m":
        raise NotRecordedError(f"{_an(kind)} is no number; report seconds, as a number")
    if hasattr(kind, "total_seconds"):
        raise NotRecordedError(f"{_an(kind)} is no number; report seconds: .total_seconds()")
    if letter == "M":
        raise NotRecordedError(f"{_an(kind)} is no number; report seconds, as a number")
    if hasattr(kind, "isoformat"):
        raise NotRecordedError(f"{_an(kind)} is no number; report seconds: .timestamp()")


def _letter(value: Any) -> str:
    """Return the kind of a numpy array's or scalar's entries: "f", "i", "M" ...; "" for others."""
    try:
        return str(value.dtype.kind)
    except Exception:
        return ""


def _field_names(value: Any) -> Tuple[str, ...]:
    """Return the field names of a structured scalar or array of numpy; none for others."""
    try:
        names = value.dtype.names
    except Exception:
        return ()
    return names if type(names) is tuple else ()


def _asked(value: Any, kind: Any) -> Any:
    """Read the contents of another library's scalar or one-dimensional array."""
    names = _field_names(value)
    if names:
        return {name: value[name] for name in names}
    failed: Optional[Exception] = None
    for ask in _ways(value, kind):
        try:
            plain = ask()
        except Exception as error:
            if comes_from_signal(error):
                raise
            if failed is None:
                failed = error
            continue
        if type(plain) is not kind:  # numpy.longdouble returns itself
            return plain
    if failed is not None:
        raise NotRecordedError(f"{_an(kind)} that gives no number: {reason(failed)}") from failed
    raise NotRecordedError(f"{_an(kind)} is no number; {_instead(value, kind)}")


def _ways(value: Any, kind: Any) -> Iterator[Callable[[], Any]]:
    """Yield the calls that may return its number or its numbers."""
    shape = _shape(value)
    is_one = bool(shape) and all(length == 1 for length in shape)
    if len(shape) > 1 and not is_one:
        raise NotRecordedError(
            f"{_an(kind)} of {len(shape)} dimensions is no metric; report its mean"
        )
    if shape and shape[0] > MOST_ENTRIES:
        raise NotRecordedError(f"{_an(kind)} of {shape[0]:,} numbers; show it by nsml.histogram")
    for name in _OF_ONE if is_one else _OF_ANY:
        try:
            method = getattr(value, name, None)
        except Exception:
            method = None
        if callable(method):
            yield method
    if hasattr(kind, "__index__"):
        yield partial(operator.index, value)
    if hasattr(kind, "__float__"):
        yield partial(float, value)


def _instead(value: Any, kind: Any) -> str:
    """Return what to report in its place."""
    for name, words in _DO_INSTEAD:
        if any(name in vars(base) for base in kind.__mro__):  # not from its metaclass
            return words
    return "call it, and report what it returns" if callable(value) else "report a number"


def _shape(value: Any) -> Tuple[int, ...]:
    try:
        return tuple(int(length) for length in islice(value.shape, 64))
    except Exception:
        return ()


def _is_mapping(kind: Any) -> bool:
    """Return whether values of that type have keys, and are no series or frames of arrays."""
    return (
        hasattr(kind, "keys")
        and hasattr(kind, "__getitem__")
        and not hasattr(kind, "shape")
        and not hasattr(kind, "tolist")
    )


def _entries(value: Any) -> List[_Entry]:
    """Return key and value of each entry of a dict or mapping, or why there is none."""
    if issubclass(type(value), dict):
        # A subclass's methods are not needed, and may raise.
        named = [(_named(key), entry) for key, entry in list(dict.items(value))]
        return [(name, entry, why) for (name, why), entry in named]
    found: List[_Entry] = []
    for key in islice(iter(value.keys()), MOST_NESTED + 1):
        name, why = _named(key)
        entry = None
        if not why:
            try:
                entry = value[key]
            except Exception as error:
                if comes_from_signal(error):
                    raise
                why = f"reading it fails: {reason(error)}"
        found.append((name, entry, why))
    return found


def _named(key: Any) -> Tuple[Optional[str], str]:
    """Return a key as part of a name; or None, and why."""
    kind = type(key)
    if issubclass(kind, str):
        return str.__str__(key), ""
    if key is None or kind is bool:
        return str(key), ""
    try:
        if issubclass(kind, float):
            return repr(float.__pos__(key)), ""
        return str(_integer(operator.index(key))), ""
    except Exception:
        return None, f"{_an(kind)} is a key of it, and keys are text or numbers"


def _iterated(value: Any) -> Any:
    """Iterate over a list or tuple, without methods of a subclass."""
    return list.__iter__(value) if issubclass(type(value), list) else tuple.__iter__(value)


def _within(value: Any, above: Tuple[int, ...]) -> Tuple[int, ...]:
    """Return `above` with `value` added; raises _DeepError for a cycle or too many levels."""
    if id(value) in above:
        raise _DeepError("it holds itself")
    if len(above) >= MOST_DEPTH:
        raise _DeepError(f"dicts and lists go {MOST_DEPTH} levels deep at most")
    return (*above, id(value))


def _an(kind: Any) -> str:
    name = str(kind.__name__)[:80]
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"
