"""Reads a log as it grows: splits it into lines and bar updates, and finds their metrics.

The result depends on the bytes alone, not on how they are cut into pieces. Memory and time are bounded:
only the first `LONGEST_LINE` bytes of a line are read, and a look searches whole blocks before it looks
at single lines.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from nsml.log_metrics.patterns import AUTO, pattern_of
from nsml.log_metrics.recognisers import (
    NUMBER,
    State,
    may_have_values,
    number_of,
    read_line,
    step_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LONGEST_LINE: Final = 16 << 10
"""Most bytes of a line that are searched."""
_END: Final = re.compile(rb"[\r\n]")
_ESCAPE: Final = re.compile(rb"\x1b\[[0-9;?]{0,32}[ -/]{0,4}[@-~]|\x1b[()][A-Z0-9]|\x08")
_MARKS: Final = re.compile(rb"[\r\x1b\x08]")
"""Bytes with which a block is read line by line: searches of the whole would take them for text of a line."""
_NUMBER: Final = re.compile(NUMBER.encode())
_TAG: Final = re.compile(
    rb"(?:\[rank(?P<rank>\d{1,7})\]: ?|\[(?:[^\s\]]{1,99}@)?\d{1,10},(?P<process>\d{1,7})\]<std(?:out|err)>: ?)+"
)
"""What launchers put before each line: its process."""
_TAGS: Final = re.compile(rb"\[rank\d|\]<std")


class LineValues(NamedTuple):
    """The metrics of one line with one step. `offset`: of the line's first byte; `end`: after its line end.

    `is_last`: the line has no further ones, with another step.
    """

    offset: int
    end: int
    step: float | None
    values: dict[str, float]
    is_last: bool = True


class Scanner:
    """Finds metrics in a log from `offset` on.

    Args:
        requests: checked by `patterns.check_all`.
        offset: of the first byte that `feed` gets.
        state: of a scanner that has read everything before `offset`.
        process: the one that is read, of those that a launcher's lines name: all print the same metrics.
    """

    def __init__(
        self,
        requests: Sequence[str],
        *,
        offset: int = 0,
        state: State | None = None,
        process: int = 0,
    ) -> None:
        self._process = process
        self._patterns = [pattern_of(one) for one in requests if one != AUTO]
        self._is_auto = AUTO in requests
        self._finders = [one.find_line for one in self._patterns]
        if self._is_auto:
            self._finders.append(may_have_values().search)
        self.state = state or State()
        """State that lines leave for later ones."""
        self.room: int | None = None
        """Number of lines with metrics that may still be read; None: any."""
        self.passed = 0
        """Number of lines that there was no room for."""
        self._rest = b""
        """The beginning of an unfinished line."""
        self._start = self._seen = offset
        """Offset of that line, and of the next byte."""
        self._awaits = False
        """Whether the last byte was a carriage return, which a line feed may follow."""

    @property
    def seen(self) -> int:
        """Offset of the next byte for `feed`."""
        return self._seen

    @property
    def unread(self) -> int:
        """Offset of the first line that has not ended."""
        return self._start

    def feed(self, data: bytes) -> Iterator[LineValues]:
        """Yield the metrics of the lines that end in the next bytes."""
        if not data:
            return
        base, at = self._seen, 0
        self._seen += len(data)
        if self._awaits:
            self._awaits = False
            at = int(data.startswith(b"\n"))
            yield from self._take(b"", base + at, is_bar=not at)
        if self._rest and (end := _END.search(data, at)) is not None:
            behind = self._behind(data, end)
            if self._awaits:
                self._keep(data[at : end.start()])
                return
            is_bar = data[end.start() : behind] == b"\r"
            yield from self._take(data[at : end.start()], base + behind, is_bar=is_bar)
            at = behind
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if cut == len(data) and data.endswith(b"\r"):
            cut = max(data.rfind(b"\n", at, cut - 1), data.rfind(b"\r", at, cut - 1)) + 1
            self._awaits = True
        if cut > at:
            yield from self._lines(data[at:cut], base + at)
            at = cut
            self._start = base + cut
        self._keep(data[at : len(data) - self._awaits])

    def end(self) -> Iterator[LineValues]:
        """Yield the metrics of a last line without a line end."""
        self._awaits = False
        yield from self._take(b"", self._seen, is_bar=False)

    def _behind(self, data: bytes, end: re.Match[bytes]) -> int:
        """Return the position behind a line end; notes if only the next byte tells."""
        if end[0] == b"\r":
            if end.end() == len(data):
                self._awaits = True
            elif data[end.end() : end.end() + 1] == b"\n":
                return end.end() + 1
        return end.end()

    def _keep(self, data: bytes) -> None:
        """Add to the unfinished line."""
        room = LONGEST_LINE - len(self._rest)
        if room > 0:
            self._rest += data[:room]

    def _take(self, more: bytes, end: int, *, is_bar: bool) -> Iterator[LineValues]:
        """End the unfinished line with `more`."""
        self._keep(more)
        line, self._rest = self._rest, b""
        start, self._start = self._start, end
        if line:
            yield from self._line(line, start, end, is_bar=is_bar)

    def _lines(self, block: bytes, base: int) -> Iterator[LineValues]:
        """Yield the metrics of whole lines."""
        has_marks = _MARKS.search(block) is not None or _TAGS.search(block) is not None
        at, size = 0, len(block)
        hits = [-1] * len(self._finders)
        while at < size:
            start = at
            if not has_marks:
                for number, finder in enumerate(self._finders):
                    if hits[number] < at:
                        hit = finder(block, at)
                        hits[number] = size if hit is None else hit.start()
                first = min(hits, default=size)
                if first >= size:
                    return
                start = block.rfind(b"\n", at, first) + 1 or at
            end = _END.search(block, start)
            if end is None:
                return
            behind = end.end()
            if end[0] == b"\r" and block[behind : behind + 1] == b"\n":
                behind += 1
            line = block[start : min(end.start(), start + LONGEST_LINE)]
            if line:
                is_bar = block[end.start() : behind] == b"\r"
                yield from self._line(
                    line, base + start, base + behind, is_bar=is_bar, is_hit=not has_marks
                )
            at = behind

    def _line(
        self, line: bytes, start: int, end: int, *, is_bar: bool, is_hit: bool = False
    ) -> Iterator[LineValues]:
        """Yield the metrics of one line, those of each step together; `is_hit`: it may have some."""
        if b"\x1b" in line or b"\x08" in line:
            line = _ESCAPE.sub(b"", line)
        if (tag := _TAG.match(line)) is not None:
            if int(tag["rank"] or tag["process"]) != self._process:
                return
            line = line[tag.end() :]
        if not is_hit and not any(find(line) for find in self._finders):
            return
        if self.room is not None:
            if self.room <= 0:
                self.passed += 1
                return
            self.room -= 1
        found = self._of_patterns(line)
        if self._is_auto:
            text = line.decode(errors="replace")
            reading = read_line(text, self.state, is_bar=is_bar)
            if reading is not None:
                named = {name for values in found.values() for name in values}
                values = found.setdefault(reading.step, {})
                values |= {k: v for k, v in reading.values.items() if k not in named}
        left = [(step, values) for step, values in found.items() if values]
        for number, (step, values) in enumerate(left, start=1):
            yield LineValues(start, end, step, values, number == len(left))

    def _of_patterns(self, line: bytes) -> dict[float | None, dict[str, float]]:
        """Return what the user's patterns find, by step."""
        found: dict[float | None, dict[str, float]] = {}
        for pattern in self._patterns:
            match = pattern.search(line)
            value = _number(match[pattern.value]) if match is not None else None
            if match is None or value is None:
                continue
            if pattern.step:
                step = _number(match[pattern.step])
            else:
                step = step_of(line.decode(errors="replace"), self.state)
            found.setdefault(step, {})[pattern.name] = value
        return found


def _number(text: bytes | None) -> float | None:
    """Return the number at the front of a group; None if there is none."""
    found = _NUMBER.match(text.strip()) if text is not None else None
    return number_of(found[0].decode()) if found is not None else None
