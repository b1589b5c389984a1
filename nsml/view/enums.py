"""Words of the contract's enumerations, those of a newer control plane included."""

from __future__ import annotations

from typing import Any


def enum_name(enum: Any, number: int, prefix: str) -> str:
    """`RUNNING` of SESSION_STATE_RUNNING; the number itself where this version has no name."""
    try:
        return str(enum.Name(number)).removeprefix(prefix)
    except ValueError:
        return str(number)


def enum_word(enum: Any, number: int, prefix: str) -> str:
    """The same in lower case."""
    return enum_name(enum, number, prefix).lower()
