"""Lines of a log, of which only those in sight are made."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final

from rich.segment import Segment
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from nsml.view.sought import Sought, untabbed
from nsml.view.text import graphemes, width, wrapped
from tui.widgets.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from textual import events
    from textual.binding import BindingType

GOES_ON: Final = "›"  # noqa: RUF001
"""Where a line goes on beyond the edge."""


@lru_cache(maxsize=4096)
def rows(line: str, room: int) -> tuple[str, ...]:
    """A line in rows of at most so many cells, broken between letters; a letter that is wider has a row of its own."""
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
    """The keys of a view of lines that are read from the first on; `of`: what their ids begin with."""
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
    """Shows lines, and follows their end until somebody scrolls up."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"log-view--found"}
    DEFAULT_CSS: ClassVar[str] = """
    LogView {
        height: 1fr;
        overflow: auto auto;
        scrollbar-size: 0 1;
        & > .log-view--found { background: $warning; color: $background; }
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
        Binding("N", "find(-1)", "Found before", show=False, id="log.before"),
    ]

    class Following(Message):
        """It follows the end, or no more."""

    class Wrapping(Message):
        """Long lines are wrapped from now on, or no more."""

        def __init__(self, *, is_on: bool) -> None:
            super().__init__()
            self.is_on = is_on

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id)
        self._lines: list[str] = []
        self._rows_above = 0
        self.is_wrapped = False
        self._count = 0
        self._sought = Sought()
        self.is_following = True
        self.none = ""

    @property
    def top(self) -> int:
        """The number of the first line in sight; where lines are wrapped, of rows above it since they are."""
        return self._rows_above if self.is_wrapped else int(self.scroll_offset.y)

    def show(self, lines: Sequence[str], *, none: str = "") -> None:
        """Show these lines; `none` is said where there are none. What is as before is not made again."""
        before = self._lines, self.none
        self._lines, self.none = list(lines), none
        self._fit()
        if (self._lines, self.none) != before:
            self.refresh_changed()

    def seek(self, text: str) -> None:
        """Mark a text wherever it is, letter case aside; "" marks nothing."""
        self._sought = Sought(text)
        self.refresh()

    @property
    def has_found(self) -> bool:
        """Whether any line has what is sought."""
        return any(map(self._sought.is_in, self._lines))

    def wrap(self, *, is_on: bool) -> None:
        """Show long lines in several rows, or up to the edge. It is scrolled by whole lines either way."""
        if is_on == self.is_wrapped:
            return
        self.is_wrapped = is_on
        self._rows_above = int(self.scroll_offset.y)
        self.scroll_to(x=0, animate=False, force=True, immediate=True)
        self._fit()
        self.refresh()

    @property
    def _room(self) -> int:
        """Cells of a line, beside the scrollbar."""
        return self.scrollable_content_region.width

    def _rows(self, place: int) -> tuple[str, ...]:
        return rows(untabbed(self._lines[place]), self._room)

    def _fitting_before(self, end: int) -> int:
        """The first of the lines before `end` that are all in sight together."""
        left, place = self.size.height, end
        while place and (left := left - len(self._rows(place - 1))) >= 0:
            place -= 1
        return min(place, max(end - 1, 0))

    def watch_scroll_y(self, old: float, new: float) -> None:
        """Count the rows that went out of sight, or came back."""
        super().watch_scroll_y(old, new)
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

    def watch_show_vertical_scrollbar(self, is_shown: bool) -> None:
        """Where it was scrolled before it had a bar, the bar does not know."""
        if is_shown:
            self.vertical_scrollbar.position = round(self.scroll_y)

    def _fit_lines(self) -> None:
        widest = max((width(untabbed(line)) for line in self._in_sight()), default=0)
        self.virtual_size = Size(widest, len(self._lines))

    def _in_sight(self) -> list[str]:
        top = int(self.scroll_offset.y)
        end = min(top + self.size.height, len(self._lines))
        return [self._lines[place] for place in range(top, end)]

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
            told = [] if self._lines else wrapped(self.none, room)
            text = told[place] if place < len(told) else ""
            return Strip([Segment(text, self.rich_style)]).adjust_cell_length(room, self.rich_style)
        strip = Strip(self._pieces(untabbed(self._lines[place])))
        left = int(self.scroll_offset.x)
        seen = strip.crop(left, left + room).adjust_cell_length(room, self.rich_style)
        if strip.cell_length <= left + room:
            return seen
        return Strip.join([seen.crop(0, room - 1), Strip([Segment(GOES_ON, self.rich_style)])])

    def _row(self, y: int) -> Strip:
        pieces: list[Segment] = []
        for place in range(int(self.scroll_offset.y), len(self._lines)):
            parts = self._rows(place)
            if y < len(parts):
                begin = sum(map(len, parts[:y]))
                end = begin + len(parts[y])
                pieces = list(_between(self._pieces("".join(parts)), begin, end))
                break
            y -= len(parts)
        return Strip(pieces).adjust_cell_length(self._room, self.rich_style)

    def _pieces(self, line: str) -> list[Segment]:
        style, pieces, at = self.rich_style, [], 0
        for begin, end in self._sought.spans(line):
            found = self.get_component_rich_style("log-view--found")
            pieces += [Segment(line[at:begin], style), Segment(line[begin:end], found)]
            at = end
        return [*pieces, Segment(line[at:], style)]

    # How one moves in it

    def _follow(self, *, is_on: bool) -> None:
        if is_on != self.is_following:
            self.is_following = is_on
            self.post_message(self.Following())

    def action_follow(self) -> None:
        """To the end, and stay there."""
        self._follow(is_on=True)
        self._fit()

    def action_wrap(self) -> None:
        """Wrap long lines, or no more."""
        self.screen.clear_selection()  # it is of other rows
        self.wrap(is_on=not self.is_wrapped)
        self.post_message(self.Wrapping(is_on=self.is_wrapped))

    def action_first(self) -> None:
        """To the first line."""
        self._follow(is_on=False)
        self.scroll_home(animate=False, immediate=True)  # what is sought next is sought from there

    def action_scroll_up(self) -> None:
        """A line up; the end is followed no more."""
        self._follow(is_on=False)
        self.scroll_relative(y=-1, animate=False)

    def action_page_down(self) -> None:
        """A screen down: what was cut at the end of it comes first."""
        if not self.is_wrapped:
            super().action_page_down()
            return
        left, place = self.size.height, int(self.scroll_offset.y)
        top = place
        while place < len(self._lines) and (left := left - len(self._rows(place))) >= 0:
            place += 1
        self.scroll_to(y=max(place, top + 1), animate=False)

    def action_page_up(self) -> None:
        """A screen up; the end is followed no more."""
        self._follow(is_on=False)
        if self.is_wrapped:
            top = min(int(self.scroll_offset.y), len(self._lines))
            self.scroll_to(y=self._fitting_before(top), animate=False)
            return
        self.scroll_relative(y=-self.size.height, animate=False)

    def action_find(self, by: int) -> None:
        """To the next line that has what is sought, or the one before."""
        if not self._sought:
            return
        lines, at = self._lines, int(self.scroll_offset.y)
        count = len(lines)
        places = range(at + 1, count) if by > 0 else range(at - 1, -1, -1)
        found = next((place for place in places if self._sought.is_in(lines[place])), None)
        if found is None:
            self.app.bell()
            return
        self._follow(is_on=False)
        self.scroll_to(y=found, animate=False, force=True, immediate=True)

    def _on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._follow(is_on=False)
        super()._on_mouse_scroll_up(event)


def _between(pieces: Sequence[Segment], begin: int, end: int) -> Iterator[Segment]:
    """The letters of `pieces` from `begin` up to `end`."""
    at = 0
    for text, style, _ in pieces:
        part = text[max(begin - at, 0) : max(end - at, 0)]
        if part:
            yield Segment(part, style)
        at += len(text)
