"""What is built again from the same requirements: beside the earlier one, which whoever uses it keeps.

The first is called by its key, the further ones `<key>.2`, `<key>.3` and so on; the last of them counts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SUFFIX = r"(?:\.[0-9]{1,9})?"
"""Behind a key, in patterns."""
_NAME = re.compile(r"(.+?)(?:\.([0-9]{1,9}))?")


def last_of(key: str, names: Iterable[str]) -> str | None:
    """The last generation of a key among `names`, some of which may be of others; None: there is none."""
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
