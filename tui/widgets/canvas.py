"""A widget with a drawing made for its size: a picture, dots in a plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.strip import Strip

from tui.widgets.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.segment import Segment


class Canvas(Lines, can_focus=False):
    """Draws the result of `paint` for its columns and rows."""

    DEFAULT_CSS: ClassVar[str] = "Canvas { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._paint: Callable[[int, int], Sequence[Sequence[Segment]]] | None = None
        self._lines: list[Strip] | None = None

    def draw(self, paint: Callable[[int, int], Sequence[Sequence[Segment]]]) -> None:
        """Draw this from now on; the same `paint` is not drawn again."""
        if paint is not self._paint:
            self._paint = paint
            self.redraw()

    def redraw(self) -> None:
        """Draw it again."""
        self._lines = None
        self.refresh()

    def notify_style_update(self) -> None:
        """Draw in the colours of another theme."""
        super().notify_style_update()
        self._lines = None

    def on_resize(self) -> None:
        """Draw for the new size."""
        self.redraw()

    def make_line(self, y: int) -> Strip:
        """A line of it."""
        width = self.size.width
        if self._lines is None:
            made = self._paint(width, self.size.height) if self._paint is not None else ()
            self._lines = [Strip(line) for line in made]
        if y < len(self._lines):
            line = self._lines[y].apply_style(self.rich_style)
            return line.adjust_cell_length(width, self.rich_style)
        return Strip.blank(width, self.rich_style)
