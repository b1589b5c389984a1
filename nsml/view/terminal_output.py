"""Renders output of programs that move the cursor, such as progress bars, as a terminal would.

A log has each state of a progress bar. `Overwriting` applies carriage returns, backspaces, cursor moves and
erasures, and emits lines once they can no longer change. It keeps only the lines that a program
goes back to, however long a log is. Lines without such codes pass unchanged.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from nsml.common.text import NO_TEXT, LogText, fit_around, graphemes, visible, width

MOST_ROWS: Final = 50
"""Most lines that a program may go back over."""
LONGEST_LINE: Final = 1 << 20
"""Most characters kept of an unfinished line, by default."""
_WIDEST: Final = 1 << 16
"""Cells to which the cursor can be moved."""
_FURTHEST: Final = 1_000
"""Limit of one move or insertion."""
_LONGEST_STYLE: Final = 200
_TAB: Final = 8

_SGR: Final = re.compile(r"\x1b\[([0-9;]{0,32})m")
_OVERWRITES: Final = re.compile(
    r"\r(?!\r*(?:\n|\Z))|\x08|\x1b\[[0-9;]{0,32}[ABCDEFGHJKPX@`adefsu]|\x1b[78DEMc]"
)
_CODE: Final = re.compile(
    rf"\n|\r|\x08|\x1b\[([0-9;]{{0,32}})([ABCDEFGHJKPX@`adefmsu])|\x1b([78DEMc])|{NO_TEXT}"
)
_SAME: Final = {"`": "G", "a": "C", "e": "B", "f": "H"}
"""Codes with two names."""
_LAST_PLACE: Final = 1_000

Cell: TypeAlias = tuple[str, str]
"""Active colour sequences and a character; "" in the second cell of a wide one."""
_BLANK: Final[Cell] = ("", " ")


class Printed(NamedTuple):
    """Final text, and the time passed to `feed` with its first character."""

    at: float
    text: str


class ShownLog:
    """Renders the bytes of one log as a terminal would: a progress bar in its last state.

    Args:
        is_safe: for a terminal, with all other control codes made visible; else invalid
            UTF-8 is kept, as surrogates.
        keeps_colour: if it is safe.
        is_raw: keep every state of a line, and every code.
        longest: most characters kept of an unfinished line; a longer one is emitted in parts.
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
        """Process the next piece, received at a time, and return the final text."""
        return self._safely(self._lines.feed(self._decode(data), at))

    def close(self) -> list[Printed]:
        """Return the rest; for a terminal its line and colours are closed."""
        done = self._safely(self._lines.feed(self._decode(b"", final=True)) + self._lines.close())
        if self._safe is not None and (end := self._safe.close()):
            last = done.pop() if done else Printed(0.0, "")
            done.append(Printed(last.at, last.text + end))
        return done

    @property
    def open(self) -> str:
        """The lines that may still change, for a terminal; each starts and ends without colours."""
        lines = self._lines.open.split("\n")
        return "\n".join(LogText(keeps_colour=self._keeps_colour).whole(line) for line in lines)

    @property
    def style(self) -> str:
        """The active colours after the emitted text."""
        return self._lines.style if self._keeps_colour else ""

    def _safely(self, done: list[Printed]) -> list[Printed]:
        if self._safe is None:
            return done
        return [Printed(one.at, self._safe.take(one.text)) for one in done]


def found_text(
    line: bytes, match: tuple[int, int] | None, *, log: ShownLog, cells: int | None
) -> str:
    """Render a line found by a search: the state of a progress bar that has the match.

    Args:
        line: without its line end.
        match: byte range of the match; None: unknown.
        log: an empty one.
        cells: show part of a longer line around the match; None: all of it.
    """
    if match is None:
        return _alone(log, line)
    behind = line.find(b"\r", match[1])
    shown = line if behind < 0 or not line[behind:].strip(b"\r") else line[:behind]
    text = _alone(log, shown)
    found = visible(line[slice(*match)].decode(errors="replace"))
    if found not in _SGR.sub("", text) and _code_from(line, match[0]) >= match[1]:
        # Erased, or overwritten by backspaces: no carriage return ends this state.
        text = _alone(log, line[: _code_from(line, match[1])])
    if cells is None or width(_SGR.sub("", text)) <= cells:
        return text
    text = _SGR.sub("", text)
    return fit_around(text, max(text.find(found), 0), len(found), cells)


def _code_from(line: bytes, begin: int) -> int:
    """Return the position of the first overwriting or erasing code after `begin`; else the line's end."""
    code = _OVERWRITES.search(line.decode("latin-1"), begin)
    return code.start() if code else len(line)


def _alone(log: ShownLog, line: bytes) -> str:
    text = "".join(one.text for one in log.feed(line) + log.close()).removesuffix("\n")
    return " ".join(filter(None, text.split("\n"))) if "\n" in text else text


class Overwriting:
    """Renderer of one log. Pieces may end anywhere, also within a code or before an accent."""

    def __init__(self, *, obeys: bool = True, longest: int = LONGEST_LINE) -> None:
        """`obeys`: False only splits lines and keeps every code in them."""
        self._obeys = obeys
        self._longest = longest
        self._held = ""
        self._held_at: list[float] = []
        """Of each held nonempty line."""
        self._height = 1
        self._rows_since_up = 0
        self._places: list[int | None] = []
        """Screen lines of the held lines, once a program has moved to one by number."""
        self._saved: Saved | None = None
        self._held_style = ""
        self.style = ""
        """The active colour sequences after the emitted text."""

    def feed(self, text: str, at: float = 0.0) -> list[Printed]:
        """Process the next piece, and return the final text."""
        block = self._held + text
        is_settled = self._height == 1 and not self._places
        is_plain = not self._obeys or (is_settled and not _OVERWRITES.search(block))
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
        """The lines that may still change, to be shown without active colours."""
        return self._open_behind("")

    def _open_behind(self, style: str) -> str:
        if not self._obeys or not _OVERWRITES.search(self._held):
            return _switch(style, self._held_style) + self._held
        screen = Screen(self._held_style, self._places)
        screen.feed(self._held)
        return "\n".join(screen.texts(style, screen.written)[0])

    def close(self) -> list[Printed]:
        """Return the rest."""
        at = self._held_at[0] if self._held_at else 0.0
        text = self._open_behind(self.style) if self._held else ""
        self.style = self._held_style = _style_behind(text, self.style)
        self._held, self._held_at, self._height = "", [], 1
        self._places, self._saved = [], None
        return [Printed(at, text)] if text else []

    def _unchanged(self, block: str, at: float) -> list[Printed]:
        first_at = self._held_at[0] if self._held_at else at
        whole, newline, self._held = block.rpartition("\n")
        if newline:
            self._saved = None
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
        # Characters after the last code may continue in the next piece, and so may a code.
        cut = max((code.end() for code in _CODE.finditer(block)), default=0)
        screen = Screen(self._held_style, self._places, self._saved)
        screen.feed(block[:cut])
        self._keep_height(screen, text)
        held_at = dict(enumerate(self._held_at))
        ats = [held_at.get(row.number, at) for row in screen.rows]
        count = max(min(len(screen.rows) - self._height, screen.most_final), 0)
        texts, self.style = screen.texts(self.style, screen.rows[:count])
        is_forgotten = self._rows_since_up > 2 * MOST_ROWS
        self._places = [] if is_forgotten else screen.places(count)
        self._saved = screen.saved and screen.saved._replace(row=screen.saved.row - count)
        self._held = screen.repeated(count, is_placed=bool(self._places)) + block[cut:]
        self._held_style = ""
        self._held_at = ats[count:]
        if screen.is_last_empty and cut == len(block):
            self._held_at.pop()
        return [Printed(one, line + "\n") for one, line in zip(ats, texts, strict=False)]

    def _keep_height(self, screen: Screen, text: str) -> None:
        """Record how far up the program goes; reset when it stops going up."""
        self._height = max(self._height, min(screen.height, MOST_ROWS))
        went_up = screen.height > 1
        self._rows_since_up = (
            screen.rows_since_up if went_up else self._rows_since_up + text.count("\n")
        )
        if self._rows_since_up > 2 * self._height:
            self._height = 1


@dataclass(slots=True)
class Row:
    """A line: `raw` while text was only appended to it, else `cells`; `style` is active at its start."""

    style: str = ""
    raw: str = ""
    cells: list[Cell] | None = None
    number: int = 0
    """Number of the line, in order of creation."""
    place: int | None = None
    """Its line on the screen, from 1; None if no program has moved to it by number."""


class Saved(NamedTuple):
    """The cursor position saved by a program."""

    row: int
    column: int
    style: str


class Screen:
    """Lines as on a terminal of any width and height, after the codes it was fed.

    The screen line of a log's first line is unknown. So lines addressed by their
    number are separate lines, below all others and in the order of their numbers. Other lines written
    later are above them: a progress bar in the last line of a screen is the last line of the log.

    Args:
        places: of existing, empty lines.
    """

    def __init__(
        self, style: str = "", places: Sequence[int | None] = (), saved: Saved | None = None
    ) -> None:
        self.rows = [Row("", number=at, place=place) for at, place in enumerate(places or [None])]
        self.rows[0].style = style
        self._count = len(self.rows)
        self.saved = saved
        self.row = 0
        self.height = 1
        """Lines from the highest one that the cursor went back to, to the last."""
        self.rows_since_up = 0
        self._column = 0
        """Cursor column in a row with cells."""
        self._style = style

    @property
    def is_last_empty(self) -> bool:
        """Whether the last line is empty."""
        return not self.rows[-1].raw and not self.rows[-1].cells

    @property
    def written(self) -> list[Row]:
        """All rows except the one started after a line end, above those of the screen."""
        at, row = self.row, self.rows[self.row]
        behind = self.rows[at + 1 : at + 2]
        is_begun = row.place is None and behind and behind[0].place is not None
        return (
            [one for one in self.rows if one is not row]
            if is_begun and not row.cells
            else self.rows
        )

    @property
    def most_final(self) -> int:
        """Lines before the one with the cursor, or before the saved cursor position."""
        if self.saved is not None and self.rows[self.row].place is not None:
            behind = max(self.saved.row, 0)
            if len(self.rows) - behind <= MOST_ROWS:
                return min(self.row, behind)
        return self.row

    def places(self, first: int) -> list[int | None]:
        """Return the places of the rows from `first` on; [] if none has one."""
        found = [row.place for row in self.rows[first:]]
        return found if any(found) else []

    def feed(self, text: str) -> None:
        """Write text, and execute the codes."""
        position = 0
        for code in _CODE.finditer(text):
            self._write(text[position : code.start()])
            self._obey(code)
            position = code.end()
        self._write(text[position:])

    def texts(self, style: str, rows: list[Row] | None = None) -> tuple[list[str], str]:
        """Return rows as text after active colours, and the active colours after them."""
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

    def repeated(self, first: int, *, is_placed: bool) -> str:
        """Return text that restores the rows from `first` on, the colours and the cursor, without active colours before it.

        `is_placed`: the screen has these rows.
        """
        texts, style = self.texts("", self.rows[first:])
        text = ("\x1b[E" if is_placed else "\n").join(texts) + _switch(style, self._style)
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
        elif code[2]:
            self._obey_final(_SAME.get(code[2], code[2]), code[1])
        elif code[3]:
            self._obey_short(code[3])
        elif is_plain:
            row.raw += code[0]  # a terminal mode, which moves nothing

    def _obey_final(self, final: str, parameters: str) -> None:
        """Execute a code of a cursor move, of erasing or editing, by its last letter."""
        cells, count = self._cells(), _parameter(parameters)
        match final:
            case "H":
                self._go_to(count or 1, _parameter(parameters.partition(";")[2]) or 1)
            case "d":
                self._go_to(count or 1, self._column + 1)
            case "s":
                self._save()
            case "u":
                self._restore()
            case "J":
                self._erase(cells, count)
            case _ if final in "ABCDEFG":
                self._move(final, count or 1)
            case _:
                self._edit(final, cells, count)

    def _obey_short(self, final: str) -> None:
        """Execute a code without parameters: DECSC, DECRC, IND, NEL, RI or RIS."""
        self._cells()
        column = self._column
        match final:
            case "7":
                self._save()
            case "8":
                self._restore()
            case "M":
                self._move("A", 1)
            case "c":
                self._clear()
                self._go_to(1, 1)
            case _:
                self._next_row()
                if final == "D":
                    self._cells()
                    self._column = column

    def _next_row(self) -> None:
        place = self.rows[self.row].place
        self.row += 1
        if place is not None:
            place += 1
        if self.row == len(self.rows) or self.rows[self.row].place != place:
            if place is not None and place > MOST_ROWS:  # the screen scrolls
                place -= 1
                for row in self.rows:
                    row.place = row.place - 1 if row.place and row.place > 1 else None
            self._insert(self.row, place)
            self.rows_since_up += 1
            if self.row + 1 < len(self.rows):
                self._cells()
        else:
            self._cells()
        self._column = 0

    def _insert(self, at: int, place: int | None) -> None:
        self.rows.insert(at, Row(self._style, number=self._count, place=place))
        self._count += 1
        if self.saved is not None and self.saved.row >= at:
            self.saved = self.saved._replace(row=self.saved.row + 1)

    def _go_to(self, place: int, column: int) -> None:
        """Move the cursor to a line of the screen and a column, from 1."""
        place = min(place, _LAST_PLACE)
        now = self.rows[self.row]
        at = next(
            (at for at, row in enumerate(self.rows) if row.place and row.place >= place),
            len(self.rows),
        )
        if now.place and now.place > place:
            # Includes emitted rows: the next time they are still there.
            self.height = max(self.height, len(self.rows) - self.row + now.place - place)
            self.rows_since_up = 0
        is_free = (
            now.place is None
            and not now.cells
            and (self.saved is None or self.saved.row != self.row)
        )
        if at < len(self.rows) and self.rows[at].place == place:
            self.row = at
        elif is_free and at == self.row + 1:
            now.place = place
        else:
            self._insert(at, place)
            self.row = at
        self._cells()
        self._column = min(column - 1, _WIDEST)

    def _save(self) -> None:
        self.saved = Saved(self.row, self._column, self._style)

    def _restore(self) -> None:
        if self.saved is None:
            return
        if self.saved.row < self.row and self.rows[self.row].place is None:
            self.height = max(self.height, len(self.rows) - self.saved.row)
            self.rows_since_up = 0
        self.row = min(max(self.saved.row, 0), len(self.rows) - 1)
        self._cells()
        self._column, self._style = self.saved.column, self.saved.style

    def _erase(self, cells: list[Cell], count: int | None) -> None:
        """Execute ED of ECMA-48."""
        if count in {2, 3}:
            self._clear()
        elif count == 1:
            self._edit("K", cells, 1)
            for row in self.rows[: self.row]:
                if row.place is not None:
                    row.cells, row.raw = [], ""
        else:
            self._edit("K", cells, None)
            del self.rows[self.row + 1 :]

    def _clear(self) -> None:
        """Erase the screen. Lines that may have been above it are kept."""
        row = self.rows[self.row]
        before = [one for one in self.rows if one.place is None]
        if row.place is None:
            self.rows, self.row = before, len(before) - 1
            if row.cells or row.raw:
                self._insert(len(before), None)
                self.row += 1
        else:
            row.cells, row.raw = [], ""
            self.rows, self.row = [*before, row], len(before)
        if self.saved is not None and self.saved.row >= len(self.rows):
            self.saved = None

    def _cells(self) -> list[Cell]:
        """Return the cells of the cursor's row, converting it if needed."""
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
        """Overwrite the cells from the cursor on."""
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
        """Execute a code that moves the cursor: CUU, CUD, CUF, CUB, CNL, CPL or CHA of ECMA-48."""
        column = self._column
        match final:
            case "A" | "F":
                # Includes emitted rows: the next time they are still there.
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
        """Execute a code that erases, deletes or inserts: EL, DCH, ECH or ICH of ECMA-48."""
        column, number = self._column, count or 1
        _part(cells, column, column + (number if final in "PX" else 1 if count == 1 else 0))
        match final:
            case "K" if count == 1:
                end = min(column + 1, len(cells))
                cells[:end] = [_BLANK] * end
            case "K" if count:
                cells.clear()
            case "K":
                del cells[column:]
            case "P":
                del cells[column : column + number]
            case "X":
                end = min(column + number, len(cells))
                cells[column:end] = [_BLANK] * (end - column)
            case "@" if column < len(cells):
                cells[column:column] = [_BLANK] * min(number, _FURTHEST)


def _parameter(text: str | None) -> int | None:
    """Return the first number of a code; None if there is none."""
    first = (text or "").partition(";")[0][:9]
    return int(first) if first else None


def _part(cells: list[Cell], *places: int) -> None:
    """Blank wide characters that are split by one of these positions."""
    for place in places:
        if 0 < place < len(cells) and not cells[place][1]:
            cells[place - 1] = cells[place] = _BLANK


def _join(before: list[Cell], cells: list[Cell], letter: str) -> None:
    """Add an accent to the last character before it."""
    place = len(before) - 1
    while place >= 0 and not before[place][1]:
        place -= 1
    if place >= 0:
        style, base = cells[place]
        cells[place] = (style, base + letter)


def _without_blanks(cells: list[Cell]) -> list[Cell]:
    """Return the cells without trailing blanks, such as those of an erased longer state."""
    end = len(cells)
    while end and cells[end - 1] == _BLANK:
        end -= 1
    return cells[:end]


def _restyled(style: str, given: str | None) -> str:
    """Return the active colour sequences after one more."""
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
    """Return the sequence that switches between colours."""
    if before == style:
        return ""
    return ("\x1b[0m" if before else "") + style
