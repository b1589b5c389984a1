"""Lines of a log, of which only those in sight are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from rich.segment import Segment
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from nsml.view.sought import Sought, untabbed
from nsml.view.text import width, wrapped
from tui.widgets.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.binding import BindingType

GOES_ON: Final = "›"  # noqa: RUF001
"""Where a line goes on beyond the edge."""


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
        Binding("j", "scroll_down", "Down", show=False, id="log.down"),
        Binding("k", "scroll_up", "Up", show=False, id="log.up"),
        Binding("g,home", "first", "First", show=False, id="log.first"),
        Binding("G,end", "follow", "Last", show=False, id="log.last"),
        Binding("n", "find(1)", "Next found", show=False, id="log.next"),
        Binding("N", "find(-1)", "Found before", show=False, id="log.before"),
    ]

    class Following(Message):
        """It follows the end, or no more."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id)
        self._lines: Sequence[str] = ()
        self._count = 0
        self._sought = Sought()
        self.is_following = True
        self.none = ""

    @property
    def top(self) -> int:
        """The number of the first line in sight."""
        return int(self.scroll_offset.y)

    def show(self, lines: Sequence[str], *, none: str = "") -> None:
        """Show these lines; `none` is said where there are none."""
        self._lines, self.none = lines, none
        self._fit()
        self.refresh_changed()

    def seek(self, text: str) -> None:
        """Mark a text wherever it is, letter case aside; "" marks nothing."""
        self._sought = Sought(text)
        self.refresh()

    @property
    def has_found(self) -> bool:
        """Whether any line has what is sought."""
        return any(map(self._sought.is_in, self._lines))

    def _fit(self) -> None:
        widest = max((width(untabbed(line)) for line in self._in_sight()), default=0)
        self.virtual_size = Size(widest, len(self._lines))
        if self.is_following:
            self.scroll_end(animate=False, force=True, immediate=True)
        if self.show_vertical_scrollbar:
            # Where it was scrolled before it had a bar, the bar does not know.
            self.vertical_scrollbar.position = round(self.scroll_y)

    def _in_sight(self) -> list[str]:
        top = int(self.scroll_offset.y)
        end = min(top + self.size.height, len(self._lines))
        return [self._lines[place] for place in range(top, end)]

    def on_resize(self, _event: events.Resize) -> None:
        """Stay at the end."""
        self._fit()

    def make_line(self, y: int) -> Strip:
        """A line of the log."""
        place = y + int(self.scroll_offset.y)
        room = self.size.width
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

    def action_first(self) -> None:
        """To the first line."""
        self._follow(is_on=False)
        self.scroll_home(animate=False, immediate=True)  # what is sought next is sought from there

    def action_scroll_up(self) -> None:
        """A line up; the end is followed no more."""
        self._follow(is_on=False)
        self.scroll_relative(y=-1, animate=False)

    def action_page_up(self) -> None:
        """A screen up; the end is followed no more."""
        self._follow(is_on=False)
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
