"""Rebuilds from the same requirements: made beside the earlier one, which its users keep.

The first is named by its key, later ones `<key>.2`, `<key>.3` and so on; the last one is current.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SUFFIX = r"(?:\.[0-9]{1,9})?"
"""Pattern of the suffix of a key."""
_NAME = re.compile(r"(.+?)(?:\.([0-9]{1,9}))?")


def last_of(key: str, names: Iterable[str]) -> str | None:
    """The last generation of a key among `names`, which may have other keys' too; None: there is none."""
    numbers = [number for name in names if (number := _number(key, name)) is not None]
    return _name(key, max(numbers)) if numbers else None


def next_of(key: str, last: str | None) -> str:
    """The name of the generation after `last`."""
    number = None if last is None else _number(key, last)
    return key if number is None else _name(key, number + 1)


def _number(key: str, name: str) -> int | None:
    if name == key:
        return 1
    found = _NAME.fullmatch(name)
    return int(found[2]) if found and found[1] == key and found[2] else None


def _name(key: str, number: int) -> str:
    return key if number == 1 else f"{key}.{number}"
