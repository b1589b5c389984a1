"""A widget that is drawn line by line, and of which only the lines are sent to the terminal that are others."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from textual.geometry import Region
from textual.widget import Widget

if TYPE_CHECKING:
    from textual.strip import Strip


class Lines(Widget):
    """What `make_line` makes; `refresh_changed` in place of `refresh` where most of it is as before."""

    _made: dict[int, Strip] | None = None

    @abstractmethod
    def make_line(self, y: int) -> Strip:
        """The line that is to stand there, from 0 at the top of the widget on."""

    def render_line(self, y: int) -> Strip:
        """The same, for Textual, and remembered."""
        if self._made is None:
            self._made = {}
        strip = self._made[y] = self.make_line(y)
        return strip

    def refresh_changed(self) -> None:
        """Have the lines drawn that are not what stands there."""
        made, width = self._made or {}, self.size.width
        for y in range(self.size.height):
            if made.get(y) != self.make_line(y):
                self.refresh(Region(0, y, width, 1))
