"""Names and values of knobs: validation, conversion to Python's own types, and display."""

from __future__ import annotations

from math import isfinite

from nsml._strict import comes_from_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional, Tuple, Union

    Value = Union[float, int, bool, str]

KINDS = {float: "a number", int: "an integer", bool: "true or false", str: "text"}
_MOST_NAME_CHARS = 64
_NAME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-/")
_MOST_TEXT_CHARS = 256
_SHOWN_CHARS = 60
_INTEGERS = range(-(1 << 63), 1 << 63)


def plain(kind: type, given: Any) -> Tuple[Optional[Value], str]:
    """Convert a value to one of Python's own types; return it, or None, and why it is invalid."""
    if kind is str and isinstance(given, str):
        return _plain_text(given)
    if kind is bool and type(given) is bool:
        return given, ""
    if kind in (int, float) and isinstance(given, (int, float)) and not isinstance(given, bool):
        return _plain_integer(given) if kind is int else _plain_number(given)
    return None, f"{shown(given)} is not {KINDS[kind]}"


def _plain_text(given: str) -> Tuple[Optional[Value], str]:
    text = str.__str__(given)
    if len(text) <= _MOST_TEXT_CHARS:
        return text, ""
    return None, f"a text has at most {_MOST_TEXT_CHARS} characters, and this one {len(text):,}"


def _plain_integer(given: float) -> Tuple[Optional[Value], str]:
    if not isinstance(given, int):
        return None, f"{shown(given)} is not {KINDS[int]}"
    number = int(given)
    return (number, "") if number in _INTEGERS else (None, f"{shown(number)} has more than 64 bits")


def _plain_number(given: float) -> Tuple[Optional[Value], str]:
    try:
        number = float(given)
    except OverflowError:
        return None, f"{shown(given)} is more than any number"
    return (number, "") if isfinite(number) else (None, f"{shown(number)} is no finite number")


def kind_of(name: Any, default: Any) -> type:
    for kind in (bool, int, float, str):  # a bool is an int as well
        if isinstance(default, kind):
            return kind
    found = type(default).__name__
    raise TypeError(
        f"nsml.knob: {name} is a number, true or false, or text, not an object of type {found}"
    )


def checked_name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"nsml.knob: a name is text, not an object of type {type(name).__name__}")
    if not 0 < len(name) <= _MOST_NAME_CHARS or not _NAME_CHARS.issuperset(name):
        raise ValueError(
            f"nsml.knob: {shown_name(name)} is no name: 1 to {_MOST_NAME_CHARS} of A-Z a-z 0-9 _ . - /"
        )
    return str.__str__(name)


def shown_name(name: Any) -> str:
    """Return a name in printable form."""
    text = str(name)[:_SHOWN_CHARS]
    return text if _NAME_CHARS.issuperset(text) and text else repr(text)


def shown(value: Any) -> str:
    """Format a value for people, whatever its own methods raise."""
    try:
        if isinstance(value, bool) or value is None:
            return "null" if value is None else str(value).lower()
        if isinstance(value, float):
            return repr(float(value))
        if isinstance(value, int) and value.bit_length() > 256:
            return f"an integer of {value.bit_length():,} bits"
        text = repr(value)
    except Exception as error:
        if comes_from_signal(error):
            raise
        return f"an object of type {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."
