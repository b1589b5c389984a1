"""A widget drawn line by line, which sends only changed lines to the terminal."""

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
    """Draws lines of `make_line`; `refresh_changed` replaces `refresh` if most are unchanged.

    A scrolling subclass says so in its CSS: styles come from the first base alone, which is this one.
    Its text is selected with the mouse, by cells: selections use line numbers, `top` is the first visible one.
    """

    _made: dict[int, Strip] | None = None
    _own_style: Style | None = None

    @property
    def rich_style(self) -> Style:
        """As in every widget, but cached: not computed for each line from all its ancestors."""
        if self._own_style is None:
            self._own_style = super().rich_style
        return self._own_style

    def notify_style_update(self) -> None:
        """Drop the cached style."""
        self._own_style = None
        super().notify_style_update()

    @abstractmethod
    def make_line(self, y: int) -> Strip:
        """Return the line at `y`, from 0 at the top of the widget on."""

    @property
    def top(self) -> int:
        """The number of the first visible line, if lines scroll."""
        return 0

    def render_line(self, y: int) -> Strip:
        """Render a line for Textual, and cache it."""
        if self._made is None:
            self._made = {}
        strip = self._made[y] = self.make_line(y)
        selection = self.text_selection
        return strip if selection is None else self._selected(strip, y, selection)

    def refresh_changed(self) -> None:
        """Redraw the lines that have changed."""
        made, width = self._made or {}, self.size.width
        for y in range(self.size.height):
            if made.get(y) != self.make_line(y):
                self.refresh(Region(0, y, width, 1))

    # Selection

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
        """Return the selected text of the visible lines."""
        texts = []
        for y in range(self.size.height):
            span = selection.get_span(y + self.top)
            if span is not None:
                strip = self.make_line(y)
                end = strip.cell_length if span[1] < 0 else span[1]
                texts.append(strip.crop(span[0], end).text.rstrip())
        return "\n".join(texts), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        """Show the selection."""
        del selection  # `text_selection` has it
        self.refresh()

    def text_select_all(self) -> None:
        """Select nothing: a double click opens the item."""
