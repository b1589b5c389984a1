"""Ids of new things: 80 random bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"


def new_cluster_id(random_bytes: Callable[[int], bytes]) -> str:
    """Create a unique id of a platform."""
    return "c" + new_id(random_bytes)


def new_id(random_bytes: Callable[[int], bytes]) -> str:
    """Create an id: 80 random bits in 16 characters."""
    number = int.from_bytes(random_bytes(10), "big")
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(0, 80, 5))
