"""A text that is looked for in lines: letter case aside, and however its letters are put together. Pure."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final
from unicodedata import normalize

from nsml.view.text import graphemes, width

if TYPE_CHECKING:
    from collections.abc import Iterator

TAB_CELLS: Final = 8


class Sought:
    """What is looked for; nothing where it is empty."""

    def __init__(self, text: str = "") -> None:
        self._text = _plain(text)

    def __bool__(self) -> bool:
        return bool(self._text)

    def is_in(self, line: str) -> bool:
        """Whether a line has it."""
        return self._text in _plain(line)

    def spans(self, line: str) -> Iterator[tuple[int, int]]:
        """From where to where it stands in a line, from left to right: in whole letters."""
        if not self._text or not self.is_in(line):
            return
        # What folds to several letters (ß), or is written in pieces, makes other places of all behind it.
        letters = [letter for letter, _ in graphemes(line)]
        plain = [_plain(letter) for letter in letters]
        whole = "".join(plain)
        starts = [0, *accumulate(map(len, plain))]
        places = [0, *accumulate(map(len, letters))]
        at = 0
        while (found := whole.find(self._text, at)) >= 0:
            at = found + len(self._text)
            yield places[bisect_right(starts, found) - 1], places[bisect_right(starts, at - 1)]


def untabbed(line: str) -> str:
    """The line with spaces in place of its tabs, up to the next stop in cells."""
    if "\t" not in line:
        return line
    *parts, last = line.split("\t")
    return "".join(map(_to_stop, parts)) + last


def _to_stop(part: str) -> str:
    part += " "
    while width(part) % TAB_CELLS:  # a joiner at its end takes a space more
        part += " "
    return part


def _plain(text: str) -> str:
    return (
        text.casefold() if text.isascii() else normalize("NFC", normalize("NFC", text).casefold())
    )
