"""Text search in lines: ignores case, and how letters are composed. Pure."""

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
"""Lines searched at once: no key has to wait longer."""


class Sought:
    """A search text; an empty one matches nothing."""

    def __init__(self, text: str = "") -> None:
        self._text = _plain(text)

    def __bool__(self) -> bool:
        return bool(self._text)

    def is_in(self, line: str) -> bool:
        """Return whether a line contains it."""
        return self._text in _plain(line)

    def spans(self, line: str) -> Iterator[tuple[int, int]]:
        """Yield its positions (start, end) in a line, from left to right: in whole characters."""
        if not self._text or not self.is_in(line):
            return
        # A letter that folds to several (ß), or is decomposed, shifts all later positions.
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
    """The matching lines of a log: each is searched once, a piece of the log at a time.

    Lines have permanent numbers, from 0 on: a log grows at its end, and loses lines at its start.
    """

    def __init__(self, text: str = "") -> None:
        self.sought = Sought(text)
        self._places: list[int] = []
        self._next = 0

    def __len__(self) -> int:
        """The number of matching lines so far."""
        return len(self._places)

    def is_done(self, end: int) -> bool:
        """Return whether all lines before number `end` were searched."""
        return not self.sought or self._next >= end

    def forget(self, first: int, since: int) -> None:
        """Drop the lines before `first`; those from `since` on have changed."""
        del self._places[bisect_left(self._places, since) :]
        del self._places[: bisect_left(self._places, first)]
        self._next = max(min(self._next, since), first)

    def look(self, lines: Sequence[str], first: int) -> None:
        """Search the next piece of the lines; the first has the number `first`."""
        begin = max(self._next - first, 0) if self.sought else len(lines)
        piece = lines[begin : begin + PIECE]
        is_in = self.sought.is_in
        self._places += [self._next + at for at, line in enumerate(piece) if is_in(line)]
        self._next += len(piece)

    def words(self, at: int | None, end: int) -> str:
        """Describe the number of matches, and the index of the one at `at`; the number so far during the search."""
        if not self.sought:
            return ""
        count = len(self._places)
        if not self.is_done(end):
            return f"found: {counted(count, 'line')} so far"
        if at is not None:
            return f"found: {bisect_right(self._places, at):,} of {count:,}"
        return f"found: {counted(count, 'line') if count else 'none'}"


def untabbed(line: str) -> str:
    """Return the line with its tabs expanded to spaces, by cells."""
    if "\t" not in line:
        return line
    *parts, last = line.split("\t")
    return "".join(map(_to_stop, parts)) + last


def _to_stop(part: str) -> str:
    part += " "
    while width(part) % TAB_CELLS:  # a joiner at its end absorbs a space
        part += " "
    return part


def _plain(text: str) -> str:
    return (
        text.casefold() if text.isascii() else normalize("NFC", normalize("NFC", text).casefold())
    )
