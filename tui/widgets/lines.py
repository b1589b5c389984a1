"""A widget that is drawn line by line, and of which only the lines are sent to the terminal that are others."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from rich.style import Style
    from textual.selection import Selection


class Lines(Widget):
    """What `make_line` makes; `refresh_changed` in place of `refresh` where most of it is as before.

    One that scrolls says so in its CSS: styles come from the first base alone, and that is this one.
    Its text is selected with the mouse, by cells: places of a selection are those of lines of `top` and below.
    """

    _made: dict[int, Strip] | None = None
    _own_style: Style | None = None

    @property
    def rich_style(self) -> Style:
        """As every widget has it, but not made out for each line anew of all that it is in."""
        if self._own_style is None:
            self._own_style = super().rich_style
        return self._own_style

    def notify_style_update(self) -> None:
        """Make it out anew."""
        self._own_style = None
        super().notify_style_update()

    @abstractmethod
    def make_line(self, y: int) -> Strip:
        """The line that is to stand there, from 0 at the top of the widget on."""

    @property
    def top(self) -> int:
        """Which line of the whole stands at the top, where lines move when it is scrolled."""
        return 0

    def render_line(self, y: int) -> Strip:
        """The same, for Textual, and remembered."""
        if self._made is None:
            self._made = {}
        strip = self._made[y] = self.make_line(y)
        selection = self.text_selection
        return strip if selection is None else self._selected(strip, y, selection)

    def refresh_changed(self) -> None:
        """Have the lines drawn that are not what stands there."""
        made, width = self._made or {}, self.size.width
        for y in range(self.size.height):
            if made.get(y) != self.make_line(y):
                self.refresh(Region(0, y, width, 1))

    # What is selected of it

    def _selected(self, strip: Strip, y: int, selection: Selection) -> Strip:
        span = selection.get_span(y + self.top)
        if span is None:
            return strip
        begin, end = span[0], strip.cell_length if span[1] < 0 else span[1]
        style = self.screen.get_component_rich_style("screen--selection")
        before, chosen, after = (
            strip.crop(0, begin),
            strip.crop(begin, end),
            strip.crop(end, strip.cell_length),
        )
        return Strip.join([before, chosen.apply_style(style), after])

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The text of what is selected, of the lines in sight."""
        texts = []
        for y in range(self.size.height):
            span = selection.get_span(y + self.top)
            if span is not None:
                strip = self.make_line(y)
                end = strip.cell_length if span[1] < 0 else span[1]
                texts.append(strip.crop(span[0], end).text.rstrip())
        return "\n".join(texts), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        """Show what is selected."""
        del selection  # `text_selection` has it
        self.refresh()

    def text_select_all(self) -> None:
        """A double click opens what is there, and selects nothing."""
