"""Lines of a log; only visible ones are made."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, Final

from rich.segment import Segment
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from nsml.common.text import graphemes, width, wrapped
from nsml.view.text_search import TextMatch, untabbed
from tui.background import in_background
from tui.widgets.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from textual import events
    from textual.binding import BindingType

GOES_ON: Final = "›"  # noqa: RUF001
"""Marks a line cut at the edge."""


@lru_cache(maxsize=4096)
def rows(line: str, room: int) -> tuple[str, ...]:
    """Wrap a line in rows of at most `room` cells, between letters; a wider letter has a row of its own."""
    if width(line) <= room:
        return (line,)
    found, row, cells = [], "", 0
    for letter, size in graphemes(line):
        if row and cells + size > room:
            found.append(row)
            row, cells = "", 0
        row, cells = row + letter, cells + size
    return (*found, row)


def scrolling(of: str) -> list[BindingType]:
    """Bindings of a view of lines that are read from the first on; `of`: prefix of their ids."""
    return [
        Binding("down,j", "scroll_down", "Down", show=False, id=f"{of}.down"),
        Binding("up,k", "scroll_up", "Up", show=False, id=f"{of}.up"),
        Binding("pagedown", "page_down", "Page down", show=False, id=f"{of}.page-down"),
        Binding("pageup", "page_up", "Page up", show=False, id=f"{of}.page-up"),
        Binding("left,h", "scroll_left", "Left", show=False, id=f"{of}.left"),
        Binding("right,l", "scroll_right", "Right", show=False, id=f"{of}.right"),
        Binding("g,home", "first", "First", show=False, id=f"{of}.first"),
        Binding("G,end", "scroll_end", "Last", show=False, id=f"{of}.last"),
    ]


class LogView(Lines, ScrollView, can_focus=True):
    """Shows lines, and follows their end until the user scrolls up."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"log-view--found", "log-view--at"}
    DEFAULT_CSS: ClassVar[str] = """
    LogView {
        height: 1fr;
        overflow: auto auto;
        scrollbar-size: 0 1;
        & > .log-view--found { background: $warning; color: $background; }
        & > .log-view--at { text-style: bold underline; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "follow", "Follow", id="log.follow"),
        Binding("w", "wrap", "Wrap", id="log.wrap"),
        Binding("j", "scroll_down", "Down", show=False, id="log.down"),
        Binding("k", "scroll_up", "Up", show=False, id="log.up"),
        Binding("g,home", "first", "First", show=False, id="log.first"),
        Binding("G,end", "follow", "Last", show=False, id="log.last"),
        Binding("n", "find(1)", "Next found", show=False, id="log.next"),
        Binding("N", "find(-1)", "TextMatch before", show=False, id="log.before"),
    ]

    class Changed(Message):
        """Its state has changed: whether it follows the end, or the matches."""

    class Wrapping(Message):
        """Wrapping of long lines was switched."""

        def __init__(self, *, is_on: bool) -> None:
            super().__init__()
            self.is_on = is_on

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id)
        self._lines: list[str] = []
        self._first = 0
        self._rows_above = 0
        self._inside = 0
        """Rows of the first visible line above the view, if that line is higher than the view."""
        self.is_wrapped = False
        self._found = TextMatch()
        self._found_at: int | None = None
        self._is_looking = False
        self.is_following = True
        self.none = ""

    @property
    def top(self) -> int:
        """The number of the first visible line; with wrapping, of the rows above it since wrapping began."""
        if self.is_wrapped:
            return self._rows_above + self._inside
        return self._first + int(self.scroll_offset.y)

    def show(self, lines: Sequence[str], *, first: int = 0, none: str = "") -> None:
        """Show these lines; `none`: the text if there are none. Unchanged lines are not made again.

        `first`: the number of the first line; greater than before if lines at the beginning are gone.
        """
        before = self._lines, self.none
        gone, self._first = first - self._first, first
        self._lines, self.none = list(lines), none
        if self._found.sought:
            same = _same(before[0][gone:] if gone >= 0 else [], self._lines)
            self._found.forget(first, first + same)
            self._found_at = self._found_at if same else None
            self._look()
        if gone > 0 and not self.is_following:
            # Lines that the user reads stay in place.
            above = self._rows_above
            self.scroll_to(y=self.scroll_y - gone, animate=False, force=True, immediate=True)
            self._rows_above = above
        self._fit()
        if (self._lines, self.none) != before:
            self.refresh_changed()

    def seek(self, text: str) -> None:
        """Mark a text wherever it is, ignoring case; "" marks nothing."""
        self._found, self._found_at = TextMatch(text), None
        self._look()
        self.post_message(self.Changed())
        self.refresh()

    def _look(self) -> None:
        """Search the lines that were not searched yet: if there are many, in the background."""
        if self._is_looking:
            return
        self._found.look(self._lines, self._first)
        if not self._found.is_done(self._end):
            self._is_looking = True
            in_background(self, "look", self._look_on)

    async def _look_on(self) -> None:
        while not self._found.is_done(self._end):
            await asyncio.sleep(0)  # keys come first
            self._found.look(self._lines, self._first)
        self._is_looking = False
        self.post_message(self.Changed())

    @property
    def _end(self) -> int:
        """The number after that of the last line."""
        return self._first + len(self._lines)

    @property
    def has_found(self) -> bool:
        """Whether any line matches."""
        return any(map(self._found.sought.is_in, self._lines))

    @property
    def found_words(self) -> str:
        """The number of matching lines, and of the current one; "" without a search."""
        at = self._place_found
        number = None if at is None else at + self._first
        return self._found.words(number, self._end)

    @property
    def _place_found(self) -> int | None:
        """The last match, if it is visible."""
        if self._found_at is None:
            return None
        place = self._found_at - self._first
        return place if int(self.scroll_offset.y) <= place < self._end_of_sight else None

    def wrap(self, *, is_on: bool) -> None:
        """Wrap long lines, or cut them at the edge.

        It scrolls by whole lines either way; within a line higher than the view by rows.
        """
        if is_on == self.is_wrapped:
            return
        self.is_wrapped, self._inside = is_on, 0
        self._rows_above = int(self.scroll_offset.y)
        self.scroll_to(x=0, animate=False, force=True, immediate=True)
        self._fit()
        self.refresh()

    @property
    def _room(self) -> int:
        """Width of a line, beside the scrollbar."""
        return self.scrollable_content_region.width

    def _rows(self, place: int) -> tuple[str, ...]:
        return rows(untabbed(self._lines[place]), self._room)

    def _fitting_before(self, end: int) -> int:
        """The first of the lines before `end` that fit in the view together."""
        left, place = self.size.height, end
        while place and (left := left - len(self._rows(place - 1))) >= 0:
            place -= 1
        return min(place, max(end - 1, 0))

    def _higher(self, place: int) -> int:
        """By how many rows a line is higher than the view."""
        if not self.is_wrapped or place >= len(self._lines):
            return 0
        return max(len(self._rows(place)) - self.size.height, 0)

    def _go_inside(self, row: int) -> None:
        """Put so many rows of the first line above the view, or as many as leave it full."""
        inside = max(min(row, self._higher(int(self.scroll_offset.y))), 0)
        if inside != self._inside:
            self._inside = inside
            self.refresh()

    def watch_scroll_y(self, old: float, new: float) -> None:
        """Count the rows that scroll out, or back; another line is shown from its beginning."""
        super().watch_scroll_y(old, new)
        if int(old) != int(new):
            self._inside = 0
        if self._found_at is not None:
            self.post_message(self.Changed())
        if self.is_wrapped:
            low, high = sorted((int(old), int(new)))
            count = sum(len(self._rows(place)) for place in range(low, min(high, len(self._lines))))
            self._rows_above += count if new > old else -count

    def _fit(self) -> None:
        if self.is_wrapped:
            last = self._fitting_before(len(self._lines))
            self.virtual_size = Size(0, last + self.size.height if self._lines else 0)
        else:
            self._fit_lines()
        if self.is_following:
            self.scroll_end(animate=False, force=True, immediate=True)
            self._go_inside(self._higher(int(self.scroll_offset.y)))
        else:
            self._go_inside(self._inside)

    def watch_show_vertical_scrollbar(self, is_shown: bool) -> None:
        """Set the bar's position, if it scrolled before it had a bar."""
        if is_shown:
            self.vertical_scrollbar.position = round(self.scroll_y)

    def _fit_lines(self) -> None:
        widest = max((width(untabbed(line)) for line in self._in_sight()), default=0)
        self.virtual_size = Size(widest, len(self._lines))

    @property
    def _end_of_sight(self) -> int:
        """The first line below the view."""
        top = place = int(self.scroll_offset.y)
        left = self.size.height + self._inside
        if not self.is_wrapped:
            return min(top + left, len(self._lines))
        while place < len(self._lines) and left > 0:
            left -= len(self._rows(place))
            place += 1
        return place

    def _in_sight(self) -> list[str]:
        return self._lines[int(self.scroll_offset.y) : self._end_of_sight]

    def on_resize(self, _event: events.Resize) -> None:
        """Stay at the end."""
        self._fit()

    def make_line(self, y: int) -> Strip:
        """A line of the log, or a row of one."""
        if self.is_wrapped and self._lines:
            return self._row(y)
        place = y + int(self.scroll_offset.y)
        room = self._room
        if place >= len(self._lines):
            note = [] if self._lines else wrapped(self.none, room)
            text = note[place] if place < len(note) else ""
            return Strip([Segment(text, self.rich_style)]).adjust_cell_length(room, self.rich_style)
        strip = Strip(self._pieces_of(place, untabbed(self._lines[place])))
        left = int(self.scroll_offset.x)
        seen = strip.crop(left, left + room).adjust_cell_length(room, self.rich_style)
        if strip.cell_length <= left + room:
            return seen
        return Strip.join([seen.crop(0, room - 1), Strip([Segment(GOES_ON, self.rich_style)])])

    def _row(self, y: int) -> Strip:
        pieces: list[Segment] = []
        y += self._inside
        for place in range(int(self.scroll_offset.y), len(self._lines)):
            parts = self._rows(place)
            if y < len(parts):
                begin = sum(map(len, parts[:y]))
                end = begin + len(parts[y])
                pieces = list(_between(self._pieces_of(place, "".join(parts)), begin, end))
                break
            y -= len(parts)
        return Strip(pieces).adjust_cell_length(self._room, self.rich_style)

    def _pieces_of(self, place: int, line: str) -> list[Segment]:
        """A line with its styles: the current match is highlighted."""
        pieces = self._pieces(line)
        if self._found_at is None or place != self._place_found:
            return pieces
        at = self.get_component_rich_style("log-view--at", partial=True)
        return [Segment(text, (style or self.rich_style) + at) for text, style, _ in pieces]

    def _pieces(self, line: str) -> list[Segment]:
        style, pieces, at = self.rich_style, [], 0
        for begin, end in self._found.sought.spans(line):
            found = self.get_component_rich_style("log-view--found")
            pieces += [Segment(line[at:begin], style), Segment(line[begin:end], found)]
            at = end
        return [*pieces, Segment(line[at:], style)]

    # Movement

    def _follow(self, *, is_on: bool) -> None:
        if is_on != self.is_following:
            self.is_following = is_on
            self.post_message(self.Changed())

    def action_follow(self) -> None:
        """Go to the end, and follow it."""
        self._follow(is_on=True)
        self._fit()

    def action_wrap(self) -> None:
        """Switch wrapping of long lines."""
        self.screen.clear_selection()  # its rows change
        self.wrap(is_on=not self.is_wrapped)
        self.post_message(self.Wrapping(is_on=self.is_wrapped))

    def action_first(self) -> None:
        """To the first line."""
        self._follow(is_on=False)
        self._go_to(0)  # at once: the next search starts there
        self._go_inside(0)

    def _move_by(self, by: int) -> None:
        """Move by lines; by rows in a line higher than the view."""
        for _ in range(abs(by)):
            place, inside = int(self.scroll_offset.y), self._inside
            if by > 0 and inside < self._higher(place):
                self._go_inside(inside + 1)
            elif by < 0 and inside:
                self._go_inside(inside - 1)
            else:
                self._go_to(place + (1 if by > 0 else -1), from_end=by < 0)

    def _go_to(self, place: int, *, from_end: bool = False) -> None:
        """Go to a line, at once; `from_end`: to its last rows."""
        was = int(self.scroll_offset.y)
        self.scroll_to(y=place, animate=False, force=True, immediate=True)
        if from_end and int(self.scroll_offset.y) != was:
            self._go_inside(self._higher(place))

    def action_scroll_down(self) -> None:
        """A line down."""
        if self.is_wrapped:
            self._move_by(1)
        else:
            super().action_scroll_down()

    def action_scroll_up(self) -> None:
        """A line up; stop following the end."""
        self._follow(is_on=False)
        if self.is_wrapped:
            self._move_by(-1)
        else:
            self.scroll_relative(y=-1, animate=False)

    def action_page_down(self) -> None:
        """A screen down: a line that was cut at its end comes first."""
        if not self.is_wrapped:
            super().action_page_down()
            return
        left, top = self.size.height, int(self.scroll_offset.y)
        if self._inside < self._higher(top):
            self._go_inside(self._inside + left)
            return
        place = top
        while place < len(self._lines) and (left := left - len(self._rows(place))) >= 0:
            place += 1
        self._go_to(max(place, top + 1))

    def action_page_up(self) -> None:
        """A screen up; stop following the end."""
        self._follow(is_on=False)
        top = int(self.scroll_offset.y)
        if not self.is_wrapped:
            self.scroll_relative(y=-self.size.height, animate=False)
        elif self._inside:
            self._go_inside(self._inside - self.size.height)
        else:
            self._go_to(self._fitting_before(min(top, len(self._lines))), from_end=True)

    def action_find(self, by: int) -> None:
        """Go to the next match, or the previous one: from the last match, if that is visible."""
        if not self._found.sought:
            return
        lines, top, at = self._lines, int(self.scroll_offset.y), self._place_found
        if by > 0:
            places = range(top if at is None else at + 1, len(lines))
        else:
            before = len(lines) if self.is_following else top
            places = range((before if at is None else at) - 1, -1, -1)
        is_in = self._found.sought.is_in
        found = next((place for place in places if is_in(lines[place])), None)
        if found is None:
            self.app.bell()
            return
        self._follow(is_on=False)
        self._found_at = found + self._first
        self._go_to(found)
        if self.is_wrapped:
            row = self._row_found(found)
            self._go_inside(0 if row < self.size.height else row)
        else:
            self._go_aside(found)
        self.post_message(self.Changed())
        self.refresh()

    def _go_aside(self, place: int) -> None:
        """Scroll a match in a line into view, centred if it was not visible."""
        line = untabbed(self._lines[place])
        begin, end = next(self._found.sought.spans(line), (0, 0))
        left, size = width(line[:begin]), width(line[begin:end])
        if self.scroll_offset.x <= left and left + size < self.scroll_offset.x + self._room:
            return
        self._fit_lines()  # of the visible lines, which limit the scrolling
        x = max(left - (self._room - size) // 2, 0) if left + size >= self._room else 0
        self.scroll_to(x=x, animate=False, force=True, immediate=True)

    def _row_found(self, place: int) -> int:
        """The row of a line in which a match begins."""
        parts = self._rows(place) if self.is_wrapped else ()
        begin = next(self._found.sought.spans("".join(parts)), (0, 0))[0]
        return max(bisect_right([0, *accumulate(map(len, parts))], begin) - 1, 0)

    def _on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._turn(event, 1)

    def _on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._follow(is_on=False)
        self._turn(event, -1)

    def _turn(self, event: events.MouseEvent, by: int) -> None:
        """Handle the wheel where Textual's default, which is next, does not fit."""
        if self.is_wrapped and not (event.ctrl or event.shift):
            self._move_by(by * round(self.app.scroll_sensitivity_y))
            event.prevent_default().stop()


def _same(before: Sequence[str], now: Sequence[str]) -> int:
    """Count unchanged lines from the first on, if lines were added, or the last one changed."""
    for count in (len(before), len(before) - 1):
        if count > 0 and before[:count] == now[:count]:
            return count
    return 0


def _between(pieces: Sequence[Segment], begin: int, end: int) -> Iterator[Segment]:
    """The letters of `pieces` from `begin` up to `end`."""
    at = 0
    for text, style, _ in pieces:
        part = text[max(begin - at, 0) : max(end - at, 0)]
        if part:
            yield Segment(part, style)
        at += len(text)
