"""Fuzzy matching: names with a text's letters in order, the closest first. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


def fuzzy(text: str, items: Iterable[T], *, of: Callable[[T], str]) -> list[T]:
    """Return the matching items, best first; equal matches keep their order. Spaces are ignored.

    Names with the text as a substring are best, by its position, then by their length; then names in
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
