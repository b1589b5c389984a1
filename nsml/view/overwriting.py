"""Output of programs that move the cursor, such as progress bars, as a terminal would leave it.

A log holds each state of a progress bar. `Overwriting` applies carriage returns, backspaces, cursor moves and
erasures, and gives lines out once nothing changes them any more. It remembers only lines that a program
goes back to, however long a log is. Lines without such codes pass unchanged.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from nsml.view.text import LogText, fit_around, graphemes, visible, width

MOST_ROWS: Final = 50
"""Lines that a program may go back over."""
LONGEST_LINE: Final = 1 << 20
"""Characters of a line without an end that are remembered where nothing else is asked for."""
_WIDEST: Final = 1 << 16
"""Cells to which the cursor can be moved."""
_FURTHEST: Final = 1_000
"""Of one move, or of one insertion."""
_LONGEST_STYLE: Final = 200
_TAB: Final = 8

_SGR: Final = re.compile(r"\x1b\[([0-9;]{0,32})m")
_OVERWRITES: Final = re.compile(
    r"\r(?!\r*(?:\n|\Z))|\x08|\x1b\[[0-9;]{0,32}[ABCDEFGKPX@]|\x1b\[0?J"
)
_CODE: Final = re.compile(
    r"\n|\r|\x08|\x1b\[([0-9;]{0,32})([ABCDEFGKPX@m])|\x1b\[(0?)(J)|\x1b\[\?[0-9;]{1,32}[hl]"
)

Cell: TypeAlias = tuple[str, str]
"""The colour sequences in force and a letter; "" in the second cell of a wide one."""
_BLANK: Final[Cell] = ("", " ")


class Printed(NamedTuple):
    """Text that no longer changes, and what `feed` got as the moment of its first character."""

    at: float
    text: str


class ShownLog:
    """The bytes of one log as text that shows what a terminal would: a progress bar in its last state.

    Args:
        is_safe: for a terminal, with everything else that a terminal would obey made visible; else invalid
            UTF-8 stays, as surrogates.
        keeps_colour: where it is safe.
        is_raw: every state of a line, and every code.
        longest: characters that are remembered of a line without an end; a longer one is given out in parts.
    """

    def __init__(
        self,
        *,
        is_safe: bool,
        keeps_colour: bool = False,
        is_raw: bool = False,
        longest: int = LONGEST_LINE,
    ) -> None:
        errors = "replace" if is_safe else "surrogateescape"
        self._decode = codecs.getincrementaldecoder("utf-8")(errors=errors).decode
        self._keeps_colour = keeps_colour
        self._safe = LogText(keeps_colour=keeps_colour) if is_safe else None
        self._lines = Overwriting(obeys=not is_raw, longest=longest)

    def feed(self, data: bytes, at: float = 0.0) -> list[Printed]:
        """Take the next piece, received at a moment, and return what became final."""
        return self._safely(self._lines.feed(self._decode(data), at))

    def close(self) -> list[Printed]:
        """What is left; for a terminal with the end of its line and of colours."""
        done = self._safely(self._lines.feed(self._decode(b"", final=True)) + self._lines.close())
        if self._safe is not None and (end := self._safe.close()):
            last = done.pop() if done else Printed(0.0, "")
            done.append(Printed(last.at, last.text + end))
        return done

    @property
    def open(self) -> str:
        """The lines that may still change, for a terminal; each begins and ends without colours."""
        lines = self._lines.open.split("\n")
        return "\n".join(LogText(keeps_colour=self._keeps_colour).whole(line) for line in lines)

    @property
    def style(self) -> str:
        """The colours in force behind what was given out."""
        return self._lines.style if self._keeps_colour else ""

    def _safely(self, done: list[Printed]) -> list[Printed]:
        if self._safe is None:
            return done
        return [Printed(one.at, self._safe.take(one.text)) for one in done]


def found_text(
    line: bytes, match: tuple[int, int] | None, *, log: ShownLog, cells: int | None
) -> str:
    """A line that a search found, as `log` shows it: the state of a progress bar that has the match.

    Args:
        line: without its line end.
        match: from which byte to which the match goes; None: not known.
        log: one without lines.
        cells: of a longer line a part around the match; None: all of it.
    """
    if match is None:
        return _alone(log, line)
    behind = line.find(b"\r", match[1])
    shown = line if behind < 0 or not line[behind:].strip(b"\r") else line[:behind]
    text = _alone(log, shown)
    found = visible(line[slice(*match)].decode(errors="replace"))
    if found not in _SGR.sub("", text) and _code_from(line, match[0]) >= match[1]:
        # Erased, or overwritten from backspaces on: no carriage return ends this state.
        text = _alone(log, line[: _code_from(line, match[1])])
    if cells is None or width(_SGR.sub("", text)) <= cells:
        return text
    text = _SGR.sub("", text)
    return fit_around(text, max(text.find(found), 0), len(found), cells)


def _code_from(line: bytes, begin: int) -> int:
    """Where the first code from `begin` on stands that overwrites or erases; else the line's end."""
    code = _OVERWRITES.search(line.decode("latin-1"), begin)
    return code.start() if code else len(line)


def _alone(log: ShownLog, line: bytes) -> str:
    return "".join(one.text for one in log.feed(line) + log.close()).removesuffix("\n")


class Overwriting:
    """One log. Pieces may end anywhere, also within a code or before an accent."""

    def __init__(self, *, obeys: bool = True, longest: int = LONGEST_LINE) -> None:
        """`obeys`: False only parts lines and leaves every code in them."""
        self._obeys = obeys
        self._longest = longest
        self._held = ""
        self._held_at: list[float] = []
        """Of each held line that has a character."""
        self._height = 1
        self._rows_since_up = 0
        self._held_style = ""
        self.style = ""
        """The colour sequences in force behind what was given out."""

    def feed(self, text: str, at: float = 0.0) -> list[Printed]:
        """Take the next piece, and return what became final."""
        block = self._held + text
        is_plain = not self._obeys or (self._height == 1 and not _OVERWRITES.search(block))
        done = self._unchanged(block, at) if is_plain else self._overwritten(block, text, at)
        while (cut := self._held.rfind("\n") + 1 + self._longest) < len(self._held):
            if _OVERWRITES.search(self._held):
                cut = len(self._held)
            begun, rest = self._held_at[-1:], self._held[cut:]
            self._held = self._held[:cut]
            done += self.close()
            self._held, self._held_at = rest, begun
        return done

    @property
    def open(self) -> str:
        """The lines that may still change, to be shown behind no colours."""
        return self._open_behind("")

    def _open_behind(self, style: str) -> str:
        if not self._obeys or not _OVERWRITES.search(self._held):
            return _switch(style, self._held_style) + self._held
        screen = Screen(self._held_style)
        screen.feed(self._held)
        return "\n".join(screen.texts(style)[0])

    def close(self) -> list[Printed]:
        """What is left, as it stands."""
        at = self._held_at[0] if self._held_at else 0.0
        text = self._open_behind(self.style) if self._held else ""
        self.style = self._held_style = _style_behind(text, self.style)
        self._held, self._held_at, self._height = "", [], 1
        return [Printed(at, text)] if text else []

    def _unchanged(self, block: str, at: float) -> list[Printed]:
        first_at = self._held_at[0] if self._held_at else at
        whole, newline, self._held = block.rpartition("\n")
        if not newline:
            self._held_at = [first_at] if block else []
            return []
        self._held_at = [at] if self._held else []
        first, _, others = whole.partition("\n")
        done = [Printed(first_at, _switch(self.style, self._held_style) + first + "\n")]
        if len(whole) > len(first):
            done.append(Printed(at, others + "\n"))
        self.style = self._held_style = _style_behind(whole, self._held_style)
        return done

    def _overwritten(self, block: str, text: str, at: float) -> list[Printed]:
        # Letters behind the last code may go on in the next piece, and so may a code.
        cut = max(code.end() for code in _CODE.finditer(block))
        screen = Screen(self._held_style)
        screen.feed(block[:cut])
        self._keep_height(screen, text)
        ats = [*self._held_at, *([at] * (len(screen.rows) - len(self._held_at)))]
        count = max(min(len(screen.rows) - self._height, screen.row), 0)
        texts, self.style = screen.texts(self.style, screen.rows[:count])
        self._held = screen.repeated(count) + block[cut:]
        self._held_style = ""
        self._held_at = ats[count:]
        if screen.is_last_empty and cut == len(block):
            self._held_at.pop()
        return [Printed(one, line + "\n") for one, line in zip(ats, texts, strict=False)]

    def _keep_height(self, screen: Screen, text: str) -> None:
        """Remember how far up the program goes, and forget it once it goes up no more."""
        self._height = max(self._height, min(screen.height, MOST_ROWS))
        went_up = screen.height > 1
        self._rows_since_up = (
            screen.rows_since_up if went_up else self._rows_since_up + text.count("\n")
        )
        if self._rows_since_up > 2 * self._height:
            self._height = 1


@dataclass(slots=True)
class Row:
    """A line: `raw` while text was only appended to it, else `cells`; `style` is in force at its beginning."""

    style: str = ""
    raw: str = ""
    cells: list[Cell] | None = None


class Screen:
    """Lines as a terminal of any width and height has them, after the codes in what it was fed."""

    def __init__(self, style: str = "") -> None:
        self.rows = [Row(style)]
        self.row = 0
        self.height = 1
        """Lines from the highest one to which the cursor went back, to the last."""
        self.rows_since_up = 0
        self._column = 0
        """Where the cursor is in a row with cells."""
        self._style = style

    @property
    def is_last_empty(self) -> bool:
        """Whether nothing was written in the last line."""
        return not self.rows[-1].raw and not self.rows[-1].cells

    def feed(self, text: str) -> None:
        """Write, and obey the codes."""
        position = 0
        for code in _CODE.finditer(text):
            self._write(text[position : code.start()])
            self._obey(code)
            position = code.end()
        self._write(text[position:])

    def texts(self, style: str, rows: list[Row] | None = None) -> tuple[list[str], str]:
        """Rows as text behind colours that are in force, and the colours in force behind them."""
        found = []
        for row in self.rows if rows is None else rows:
            if row.cells is None:
                found.append(_switch(style, row.style) + row.raw)
                style = _style_behind(row.raw, row.style)
                continue
            parts = []
            for cell_style, letter in _without_blanks(row.cells):
                if cell_style != style:
                    parts.append(_switch(style, cell_style))
                    style = cell_style
                parts.append(letter)
            parts.append(_switch(style, ""))
            style = ""
            found.append("".join(parts))
        return found, style

    def repeated(self, first: int) -> str:
        """What gives the rows from `first` on, the colours and the cursor, when fed behind no colours."""
        texts, style = self.texts("", self.rows[first:])
        text = "\n".join(texts) + _switch(style, self._style)
        if self.rows[self.row].cells is not None:
            up = len(self.rows) - 1 - self.row
            text += f"\x1b[{up}A" if up else ""
            text += f"\x1b[{self._column + 1}G"
        return text

    def _write(self, text: str) -> None:
        if not text:
            return
        row = self.rows[self.row]
        if row.cells is None and not row.raw.endswith("\r"):
            row.raw += text
        else:
            self._put(self._cells(), text)

    def _obey(self, code: re.Match[str]) -> None:
        row = self.rows[self.row]
        is_plain = row.cells is None
        if code[0] == "\n":
            self._next_row()
        elif code[0] == "\r":
            if is_plain:
                row.raw += "\r"
            self._column = 0
        elif code[2] == "m":
            if is_plain and not row.raw.endswith("\r"):
                row.raw += code[0]
            else:
                self._cells()
            self._style = _restyled(self._style, code[1])
        elif code[0] == "\x08":
            self._cells()
            self._column = max(self._column - 1, 0)
        elif final := code[2] or code[4]:
            cells, count = self._cells(), _parameter(code[1] or code[3])
            if final in "ABCDEFG":
                self._move(final, count or 1)
            else:
                self._edit(final, cells, count)
        elif is_plain:
            row.raw += code[0]  # a mode of the terminal, which moves nothing

    def _next_row(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append(Row(self._style))
            self.rows_since_up += 1
        else:
            self._cells()
        self._column = 0

    def _cells(self) -> list[Cell]:
        """The cells of the row with the cursor, which is set to where it is in them."""
        row = self.rows[self.row]
        if row.cells is None:
            raw = row.raw
            cells: list[Cell] = []
            row.cells, row.raw = cells, ""
            kept, self._style, self._column = self._style, row.style, 0
            plain = raw.rstrip("\r")
            position = 0
            for code in _CODE.finditer(plain):
                self._put(cells, plain[position : code.start()])
                self._style = _restyled(self._style, code[1]) if code[2] == "m" else self._style
                position = code.end()
            self._put(cells, plain[position:])
            self._style = kept
            self._column = 0 if len(plain) < len(raw) else self._column
        return row.cells

    def _put(self, cells: list[Cell], text: str) -> None:
        """Write over the cells from the cursor on."""
        column = self._column
        if "\t" in text:
            text = (" " * (column % _TAB) + text).expandtabs(_TAB)[column % _TAB :]
        if column > len(cells):
            cells.extend([_BLANK] * (column - len(cells)))
        new: list[Cell] = []
        if text.isascii():
            new = [(self._style, letter) for letter in text]
        else:
            for letter, size in graphemes(text):
                if not size:
                    _join(new or cells[:column], new or cells, letter)
                    continue
                new.append((self._style, letter))
                new.extend([(self._style, "")] * (size - 1))
        end = column + len(new)
        if new:
            _part(cells, column, end)
        cells[column:end] = new
        self._column = end

    def _move(self, final: str, count: int) -> None:
        """Obey a code that moves the cursor: CUU, CUD, CUF, CUB, CNL, CPL or CHA of ECMA-48."""
        column = self._column
        match final:
            case "A" | "F":
                # Also counts rows that were given out before: the next time they are still there.
                self.height = max(self.height, len(self.rows) - self.row + count)
                self.row, self.rows_since_up = max(self.row - count, 0), 0
            case "B" | "E":
                self.row = min(self.row + count, len(self.rows) - 1)
            case "C":
                column += min(count, _FURTHEST)
            case "D":
                column -= count
            case "G":
                column = count - 1
        self._cells()
        self._column = 0 if final in "EF" else min(max(column, 0), _WIDEST)

    def _edit(self, final: str, cells: list[Cell], count: int | None) -> None:
        """Obey a code that erases, deletes or inserts: EL, ED, DCH, ECH or ICH of ECMA-48."""
        column, number = self._column, count or 1
        _part(cells, column, column + (number if final in "PX" else 1 if count == 1 else 0))
        match final:
            case "K" if count == 1:
                end = min(column + 1, len(cells))
                cells[:end] = [_BLANK] * end
            case "K" if count:
                cells.clear()
            case "K" | "J":
                del cells[column:]
            case "P":
                del cells[column : column + number]
            case "X":
                end = min(column + number, len(cells))
                cells[column:end] = [_BLANK] * (end - column)
            case "@" if column < len(cells):
                cells[column:column] = [_BLANK] * min(number, _FURTHEST)
        if final == "J":
            del self.rows[self.row + 1 :]


def _parameter(text: str | None) -> int | None:
    """The first number of a code; None where there is none."""
    first = (text or "").partition(";")[0][:9]
    return int(first) if first else None


def _part(cells: list[Cell], *places: int) -> None:
    """Blank wide letters that have one half before one of these places and one behind it."""
    for place in places:
        if 0 < place < len(cells) and not cells[place][1]:
            cells[place - 1] = cells[place] = _BLANK


def _join(before: list[Cell], cells: list[Cell], letter: str) -> None:
    """Put an accent onto the last letter before it."""
    place = len(before) - 1
    while place >= 0 and not before[place][1]:
        place -= 1
    if place >= 0:
        style, base = cells[place]
        cells[place] = (style, base + letter)


def _without_blanks(cells: list[Cell]) -> list[Cell]:
    """Without what is blank at the end, such as what erased a longer state."""
    end = len(cells)
    while end and cells[end - 1] == _BLANK:
        end -= 1
    return cells[:end]


def _restyled(style: str, given: str | None) -> str:
    """The colour sequences in force behind one more."""
    given = given or ""
    if not given.strip("0;"):
        return ""
    code = f"\x1b[{given}m"
    is_anew = given.startswith(("0;", ";")) or len(style) + len(code) > _LONGEST_STYLE
    return code if is_anew else style + code


def _style_behind(text: str, style: str) -> str:
    if "\x1b[" not in text:
        return style
    for code in _SGR.finditer(text):
        style = _restyled(style, code[1])
    return style


def _switch(before: str, style: str) -> str:
    """What leads from some colours to others."""
    if before == style:
        return ""
    return ("\x1b[0m" if before else "") + style
