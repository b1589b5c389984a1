"""Finds lines of logs that match a pattern: page by page, in bounded memory, in time linear in the log.

Patterns come from users. RE2 does not backtrack, so a match takes at most the pattern's size times the
text's; and the pattern's size is bounded.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from controlplane.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from controlplane.history.values import LogPage

MOST_PATTERN_BYTES: Final = 1_000
MOST_CONTEXT_LINES: Final = 100
LONGEST_LINE: Final = 64 << 10
"""Longer lines are searched in parts of this length, and count as one line."""
_LARGEST_PROGRAM: Final = 1_000
"""Most steps of a compiled pattern; any character, a hundred times, has 900."""
_MATCHER_BYTES: Final = 8 << 20
_WHOLE_TEXT_ANCHOR: Final = re.compile(r"(?<!\\)(?:\\\\)*\\[Az]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search as requested by a user."""

    pattern: str
    is_literal: bool = False
    ignores_case: bool = False
    is_inverted: bool = False
    """Select the lines that do not match."""
    context_lines: int = 0
    """Lines of context before and after each match."""


@dataclass(frozen=True, slots=True)
class Line:
    """A selected line, or a line of context. `number` counts from 1; 0: unknown."""

    offset: int
    data: bytes
    number: int
    received_at: float
    is_context: bool = False
    match: tuple[int, int] = (0, 0)
    """Start and end of a match in `data`; (0, 0): none known."""


class Fitting(NamedTuple):
    """Start and end of a line in a block, without its line end, and a match in it."""

    start: int
    end: int
    match: tuple[int, int]


class Matcher:
    """A compiled search.

    Raises:
        InvalidRequest: invalid or too large pattern, or too many lines of context.
    """

    def __init__(self, search: Search) -> None:
        self.is_inverted = search.is_inverted
        self.context_lines = search.context_lines
        if search.context_lines > MOST_CONTEXT_LINES:
            raise InvalidRequest(
                f"{search.context_lines} lines around each", why=f"{MOST_CONTEXT_LINES} is the most"
            )
        self._find = _compiled(search).search

    def fitting(self, block: bytes) -> list[Fitting]:
        """Find the matching lines of `block`, which has whole lines."""
        found = []
        at = 0
        while at < len(block):
            match = self._find(block, at)
            if match is None or (match.start() == len(block) and block.endswith(b"\n")):
                break
            start = block.rfind(b"\n", at, match.start()) + 1 or at
            end = block.find(b"\n", match.start())
            end = len(block) if end < 0 else end
            found.append(Fitting(start, end, self._last_state(block, start, end) or match.span()))
            at = end + 1
        return found

    def _last_state(self, block: bytes, start: int, end: int) -> tuple[int, int] | None:
        """The match in the last state of a progress bar, if there is one."""
        while start < end and block[end - 1 : end] == b"\r":
            end -= 1
        last = block.rfind(b"\r", start, end) + 1
        match = self._find(block, last, end) if last else None
        return match.span() if match else None


def _compiled(search: Search) -> Any:
    import re2  # noqa: PLC0415 - who searches no log does without

    text = search.pattern
    if not text or "\n" in text or "\0" in text:
        raise InvalidRequest(
            "a pattern is a piece of one line",
            attempt="a word, or an expression such as 'loss: nan|inf'",
        )
    if len(text.encode(errors="replace")) > MOST_PATTERN_BYTES:
        raise InvalidRequest(
            f"a pattern of {len(text)} characters", why=f"{MOST_PATTERN_BYTES} bytes is the most"
        )
    if not search.is_literal and _WHOLE_TEXT_ANCHOR.search(text):
        raise InvalidRequest("\\A and \\z say nothing of a line", attempt="^ and $")
    options = re2.Options()
    options.max_mem = _MATCHER_BYTES
    options.never_nl = options.never_capture = True
    options.log_errors = False
    options.literal = search.is_literal
    options.case_sensitive = not search.ignores_case
    try:
        made = re2.compile(text if search.is_literal else f"(?m){text}", options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidRequest(
            "the pattern is not a regular expression of RE2",
            why=said.replace("(?m)", "", 1)[:200],
            attempt="https://github.com/google/re2/wiki/Syntax, or the text as it is (--fixed)",
        ) from None
    if made.programsize > _LARGEST_PROGRAM:
        raise InvalidRequest(
            "the pattern is too large to search with",
            why="repetitions of repetitions, or of large classes, multiply",
            attempt="a shorter one",
        )
    return made


class Scanner:
    """Searches the log of one attempt, page after page."""

    def __init__(self, matcher: Matcher, *, line: int) -> None:
        """`line`: the number of the first line; 0: unknown."""
        self._matcher = matcher
        self._number = line
        self._rest = b""
        self._offset = 0
        self._times: deque[tuple[int, float]] = deque()
        self._before: deque[Line] = deque(maxlen=matcher.context_lines)
        self._after = 0

    @property
    def place(self) -> tuple[int, int]:
        """Offset and number of the first line not yet searched."""
        return self._offset, self._number

    def feed(self, page: LogPage) -> list[Line]:
        """Search the lines that end in the next page."""
        found: list[Line] = []
        if page.missing_bytes:
            found += self.end()
            self._number = 0
        if not self._rest:
            self._offset = page.offset
            self._times.clear()
        self._times.extend(page.times)
        text = self._rest + page.data
        cut = text.rfind(b"\n") + 1
        block, self._rest = text[:cut], text[cut:]
        if block:
            found += self._search(block)
        while len(self._rest) >= LONGEST_LINE:
            part, self._rest = self._rest[:LONGEST_LINE], self._rest[LONGEST_LINE:]
            found += self._search(part)
        return found

    def end(self) -> list[Line]:
        """Search a last line without a line end."""
        rest, self._rest = self._rest, b""
        return self._search(rest) if rest else []

    def _search(self, block: bytes) -> list[Line]:
        fitting = self._matcher.fitting(block)
        start, number = self._offset, self._number
        if self._matcher.is_inverted or self._matcher.context_lines:
            found = list(self._with_context(block, fitting))
        else:
            found, counted = [], 0
            for low, high, match in fitting:
                if number:
                    number += block.count(b"\n", counted, low)
                    counted = low
                found.append(self._line(block, low, high, number, match=match))
        self._offset = start + len(block)
        if self._number:
            self._number += block.count(b"\n")
        return found

    def _with_context(self, block: bytes, fitting: list[Fitting]) -> Iterator[Line]:
        """Yield the selected lines and their context, each line once."""
        matches = {start: match for start, _, match in fitting}
        start, number = 0, self._number
        while start < len(block):
            end = block.find(b"\n", start)
            end = len(block) if end < 0 else end
            if (start in matches) != self._matcher.is_inverted:
                yield from self._before
                self._before.clear()
                yield self._line(block, start, end, number, match=matches.get(start))
                self._after = self._matcher.context_lines
            elif self._after:
                self._after -= 1
                yield self._line(block, start, end, number, is_context=True)
            elif self._matcher.context_lines:
                self._before.append(self._line(block, start, end, number, is_context=True))
            start = end + 1
            number += bool(number)

    def _line(
        self,
        block: bytes,
        start: int,
        end: int,
        number: int,
        *,
        is_context: bool = False,
        match: tuple[int, int] | None = None,
    ) -> Line:
        begin, finish = match or (start, start)
        if finish > start + LONGEST_LINE:
            # Of a too long line only the part around the match is sent.
            start = max(start, min(begin, end - LONGEST_LINE // 2) - LONGEST_LINE // 2)
        data = block[start : min(end, start + LONGEST_LINE)]
        offset = self._offset + start
        while len(self._times) > 1 and self._times[1][0] <= offset:
            self._times.popleft()
        return Line(
            offset,
            data,
            number,
            self._times[0][1] if self._times else 0.0,
            is_context,
            (begin - start, min(finish - start, len(data))) if match else (0, 0),
        )
