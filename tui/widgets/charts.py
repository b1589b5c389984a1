"""Charts of several metrics in braille, one above the other, as many as there is room for."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from nsml.view.plot import Average, chart, heights
from nsml.view.series import Axis, smooth
from nsml.view.units import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsml.view.plot import Piece
    from nsml.view.series import Series

COLOURS: Final = ("cyan", "yellow", "magenta", "green", "red", "blue", "white")
LEAST_ROWS: Final = 4


class Charts(Widget):
    """Draws `groups`, lines by metric, from the metric number `first` on."""

    DEFAULT_CSS: ClassVar[str] = "Charts { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id)
        self._groups: Mapping[str, Sequence[Series]] = {}
        self._lines: list[Strip] | None = None
        self.axis = Axis.STEP
        self.first = 0
        self.smoothing = 0.0
        self.is_log = False
        self.none = ""

    def draw(self, groups: Mapping[str, Sequence[Series]], *, axis: Axis, none: str = "") -> None:
        """Draw these; `none` is said where there are none."""
        self._groups, self.axis, self.none = groups, axis, none
        self.first = min(self.first, max(len(groups) - 1, 0))
        self.redraw()

    def redraw(self) -> None:
        """Draw again, as what is set says."""
        self._lines = None
        self.refresh()

    @property
    def count(self) -> int:
        """How many metrics there are."""
        return len(self._groups)

    def on_resize(self) -> None:
        """Draw for the new size."""
        self.redraw()

    def render_line(self, y: int) -> Strip:
        """A line of a chart."""
        if self._lines is None:
            self._lines = self._drawn()
        if y < len(self._lines):
            return self._lines[y].adjust_cell_length(self.size.width, self.rich_style)
        return Strip.blank(self.size.width, self.rich_style)

    def _drawn(self) -> list[Strip]:
        names = list(self._groups)[self.first :]
        if not names:
            return [Strip([Segment(self.none, self.rich_style)])]
        room = self.size.height
        rows = heights(room, [self._groups[name] for name in names], least=LEAST_ROWS)
        lines: list[Strip] = []
        for name, high in zip(names, rows, strict=False):
            if lines:
                lines.append(Strip.blank(self.size.width, self.rich_style))
            lines += [self._strip(pieces) for pieces in self._chart(name, high)]
        if left := len(names) - len(rows):
            more = f"{counted(left, 'more metric')} below: n"
            lines = [*lines[: room - 1], Strip([Segment(more, self.rich_style)])]
        return lines

    def _chart(self, name: str, rows: int) -> list[list[Piece]]:
        series = self._groups[name]
        average = None
        if self.smoothing:
            average = Average(
                lines=[smooth(line, self.smoothing) for line in series], share=self.smoothing
            )
        return chart(
            name,
            series,
            axis=self.axis,
            columns=self.size.width,
            rows=rows,
            is_log=self.is_log,
            average=average,
        )

    def _strip(self, pieces: Sequence[Piece]) -> Strip:
        return Strip([Segment(piece.text, self._style(piece)) for piece in pieces])

    def _style(self, piece: Piece) -> Style:
        if piece.series is None:
            return self.rich_style
        return self.rich_style + Style(color=COLOURS[piece.series % len(COLOURS)])
