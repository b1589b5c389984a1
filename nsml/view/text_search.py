"""A text that is looked for in lines: letter case aside, and however its letters are put together. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final
from unicodedata import normalize

from nsml.common.text import graphemes, width
from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TAB_CELLS: Final = 8
PIECE: Final = 1_000
"""Lines that are looked through at once: no key waits for more."""


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


class TextMatch:
    """The lines of a log that have what is sought: each is looked at once, a piece of the log at a time.

    Lines have numbers that stay theirs, from 0 on: a log grows at its end, and loses lines at its beginning.
    """

    def __init__(self, text: str = "") -> None:
        self.sought = Sought(text)
        self._places: list[int] = []
        self._next = 0

    def __len__(self) -> int:
        """How many there are, of the lines that were looked at."""
        return len(self._places)

    def is_done(self, end: int) -> bool:
        """Whether there is nothing to look at before the line with the number `end`."""
        return not self.sought or self._next >= end

    def forget(self, first: int, since: int) -> None:
        """The lines before `first` are gone; those from `since` on are others than before."""
        del self._places[bisect_left(self._places, since) :]
        del self._places[: bisect_left(self._places, first)]
        self._next = max(min(self._next, since), first)

    def look(self, lines: Sequence[str], first: int) -> None:
        """Look at the next piece of the lines, of which the first has the number `first`."""
        begin = max(self._next - first, 0) if self.sought else len(lines)
        piece = lines[begin : begin + PIECE]
        is_in = self.sought.is_in
        self._places += [self._next + at for at, line in enumerate(piece) if is_in(line)]
        self._next += len(piece)

    def words(self, at: int | None, end: int) -> str:
        """How many there are, and the number of the one at `at`; what is there so far while others are looked for."""
        if not self.sought:
            return ""
        count = len(self._places)
        if not self.is_done(end):
            return f"found: {counted(count, 'line')} so far"
        if at is not None:
            return f"found: {bisect_right(self._places, at):,} of {count:,}"
        return f"found: {counted(count, 'line') if count else 'none'}"


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
