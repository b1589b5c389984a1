"""How long is waited between tries."""

from __future__ import annotations

from typing import Final

_MOST_DOUBLED: Final = 64
"""Whoever waits for hours fails more than a thousand times, and no float is 2 ** 1024."""


def backoff_s(first_s: float, failures: int, longest_s: float) -> float:
    """The pause after so many failures before this one: twice as long each time, and `longest_s` at most."""
    return min(first_s * 2.0 ** min(failures, _MOST_DOUBLED), longest_s)
