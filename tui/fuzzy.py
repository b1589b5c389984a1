"""Names that have the letters of a text in their order, the closest first. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


def fuzzy(text: str, items: Iterable[T], *, of: Callable[[T], str]) -> list[T]:
    """The items that fit, as they were where they fit as well; spaces say nothing.

    A text that stands as it is in a name fits best, at its beginning and in short names first; then names in
    which its letters are close together.
    """
    letters = [letter for letter in text.casefold() if not letter.isspace()]
    if not letters:
        return list(items)
    find = re.compile(".*?".join(map(re.escape, letters)), re.DOTALL).search
    whole = "".join(letters)
    ranked = []
    for place, item in enumerate(items):
        name = of(item).casefold()
        if (found := find(name)) is None:
            continue
        at = name.find(whole)
        rank = (0, at, len(name)) if at >= 0 else (1, found.end() - found.start(), len(name))
        ranked.append((rank, place, item))
    ranked.sort(key=lambda one: one[:2])
    return [item for *_, item in ranked]
