"""Words of the contract's enumerations, also for values of a newer control plane."""

from __future__ import annotations

from typing import Any


def enum_name(enum: Any, number: int, prefix: str) -> str:
    """Return `RUNNING` for SESSION_STATE_RUNNING; the number itself if this version has no name."""
    try:
        return str(enum.Name(number)).removeprefix(prefix)
    except ValueError:
        return str(number)


def enum_word(enum: Any, number: int, prefix: str) -> str:
    """Return the same in lower case."""
    return enum_name(enum, number, prefix).lower()
