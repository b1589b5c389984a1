"""Ids of what is made here: 80 random bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"


def new_cluster_id(random_bytes: Callable[[int], bytes]) -> str:
    """An id that no other platform has."""
    return "c" + new_id(random_bytes)


def new_id(random_bytes: Callable[[int], bytes]) -> str:
    """16 characters of 80 random bits."""
    number = int.from_bytes(random_bytes(10), "big")
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(0, 80, 5))
