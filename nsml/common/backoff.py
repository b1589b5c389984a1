"""Delays between retries."""

from __future__ import annotations

from typing import Final

_MOST_DOUBLED: Final = 64
"""After hours of retries there are over a thousand failures, and no float is 2 ** 1024."""


def backoff_s(first_s: float, failures: int, longest_s: float) -> float:
    """Return the pause after `failures` earlier failures: doubled each time, and `longest_s` at most."""
    return min(first_s * 2.0 ** min(failures, _MOST_DOUBLED), longest_s)
