"""Charts of several metrics in braille, one above the other, as many as fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING, ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual.message import Message
from textual.strip import Strip

from nsml.common.text import fit, wrapped
from nsml.common.units import counted
from nsml.view.plot import Average, above_zero, chart, heights, short_legend
from nsml.view.series import Axis, smooth
from tui import appearance
from tui.widgets.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsml.view.plot import Piece
    from nsml.view.series import Series

LEAST_ROWS: Final = 4
MOST_NAMED: Final = 6
"""Lines of a crowd with a full legend; the list beside it names more of them."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Owners of lines when several are compared: of each metric, the number of each line's owner.

    The lines of owner number `front` are bright and on top; the others are dim.
    """

    owners: Mapping[str, Sequence[int]]
    front: int
    labels: tuple[str, ...] = ()
    """By owner: its arguments that differ from the others'; "" if none."""


class Charts(Lines):
    """Draws `groups`, lines by metric, from the metric number `first` on."""

    DEFAULT_CSS: ClassVar[str] = "Charts { height: 1fr; }"

    class Resized(Message):
        """The room for columns has changed."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id)
        self._groups: Mapping[str, Sequence[Series]] = {}
        self._crowd: Crowd | None = None
        self._drawn_as: tuple[object, ...] = ()
        self._lines: list[Strip] | None = None
        self._marks: tuple[float, ...] = ()
        self.axis = Axis.STEP
        self._first = 0
        self._first_name = ""
        self.smoothing = 0.0
        self.is_log = False
        self.none = ""
        self.more_by = "left out"
        """Where metrics without room are, and how to see them."""

    def draw(
        self,
        groups: Mapping[str, Sequence[Series]],
        *,
        axis: Axis,
        none: str = "",
        crowd: Crowd | None = None,
        marks: tuple[float, ...] = (),
    ) -> None:
        """Draw these; `none`: the text if there are none; `marks`: steps with changes."""
        is_same = groups is self._groups or not (groups or self._groups)
        is_same = is_same and crowd == self._crowd
        self._groups, self._crowd, self.axis, self.none = groups, crowd, axis, none
        self._find_first()
        drawn_as = (axis, none, self.first, self.smoothing, self.is_log, marks)
        if not is_same or drawn_as != self._drawn_as:
            self._drawn_as, self._marks = drawn_as, marks
            self._lines = None
            self.refresh_changed()

    def redraw(self) -> None:
        """Draw again, by its settings."""
        self._lines = None
        self.refresh()

    @property
    def first(self) -> int:
        """The number of the first drawn metric, from 0 on."""
        return self._first

    @first.setter
    def first(self, place: int) -> None:
        self._first = min(max(place, 0), max(self.count - 1, 0))
        # A chosen metric stays first, even if others are added before it; otherwise the first one is.
        self._first_name = list(self._groups)[self._first] if self._first else ""

    def _find_first(self) -> None:
        names = list(self._groups)
        if not names:
            return  # until there are some again
        if self._first_name in names:
            self._first = names.index(self._first_name)
        else:
            self._first = min(self._first, len(names) - 1)

    @property
    def first_name(self) -> str:
        """The name of that metric; "" if there is none."""
        return next(islice(self._groups, self._first, None), "")

    @property
    def count(self) -> int:
        """The number of metrics."""
        return len(self._groups)

    def notify_style_update(self) -> None:
        """Draw in the colours of another theme."""
        super().notify_style_update()
        self._lines = None

    def on_resize(self) -> None:
        """Draw for the new size."""
        self.redraw()
        self.post_message(self.Resized())

    def make_line(self, y: int) -> Strip:
        """A line of a chart."""
        if self._lines is None:
            self._lines = self._drawn()
        if y < len(self._lines):
            return self._lines[y].adjust_cell_length(self.size.width, self.rich_style)
        return Strip.blank(self.size.width, self.rich_style)

    def _drawn(self) -> list[Strip]:
        names = list(self._groups)[self.first :]
        if not names:
            note = wrapped(self.none, self.size.width)
            return [Strip([Segment(line, self.rich_style)]) for line in note]
        room = self.size.height
        drawn = [self._groups[name] for name in names]
        named = [self._named(name) for name in names]
        legend: list[list[Piece]] | None = None
        if (rows_left := self._legend_room(drawn, named)) is not None:
            legend = self._short_legend(names[0], rows_left)
            named[0] = len(legend)
        rows = heights(room, drawn, least=LEAST_ROWS, named=named)
        lines: list[Strip] = []
        for name, high in zip(names, rows, strict=False):
            if lines:
                lines.append(Strip.blank(self.size.width, self.rich_style))
                legend = None
            lines += [self._strip(pieces) for pieces in self._chart(name, high, legend)]
        if left := len(names) - len(rows):
            more = fit(f"{counted(left, 'more metric')} {self.more_by}", self.size.width)
            lines = [*lines[: room - 1], Strip([Segment(more, self.rich_style)])]
        return lines

    def _legend_room(self, drawn: Sequence[Sequence[Series]], named: Sequence[int]) -> int | None:
        """Rows for the legend of the first chart if its own does not fit; None if it does."""
        around = 2 + any(line.odd for line in drawn[0]) + LEAST_ROWS + (len(drawn) > 1)
        rows = max(self.size.height - around, 1)
        return rows if named[0] > rows else None

    def _short_legend(self, name: str, rows: int) -> list[list[Piece]]:
        numbers, series = self._numbered(name)
        if self.is_log:
            series = [above_zero(line)[0] for line in series]
        prefix = "" if self._crowd else _common_words([line.label for line in series])
        labels = [line.label.removeprefix(prefix) for line in series]
        if self._crowd and all(own := self._crowd.labels) and len(set(own)) == len(own):
            labels = [own[number] for number in numbers]
        found = [one for one in zip(series, labels, numbers, strict=True) if one[0].x]
        return short_legend(
            [line for line, _, _ in found],
            [label for _, label, _ in found],
            [number for _, _, number in found],
            columns=self.size.width,
            rows=rows,
        )

    def _named(self, name: str) -> int:
        """Count the lines of a metric's legend: of a crowd only those in front."""
        lines = len(self._groups[name])
        if self._crowd is None or lines <= MOST_NAMED:
            return lines
        return min(self._crowd.owners[name].count(self._crowd.front), MOST_NAMED)

    def _numbered(self, name: str) -> tuple[Sequence[int], Sequence[Series]]:
        """The lines of a metric with their owners' numbers, those in front first."""
        series = self._groups[name]
        if (crowd := self._crowd) is None:
            return range(len(series)), series
        pairs = sorted(
            zip(crowd.owners[name], series, strict=True), key=lambda pair: pair[0] != crowd.front
        )
        labels = crowd.labels or ("",) * (max(crowd.owners[name], default=0) + 1)
        return [owner for owner, _ in pairs], [
            replace(line, label=f"{line.label} {labels[owner]}".rstrip()) for owner, line in pairs
        ]

    def _chart(
        self, name: str, rows: int, legend: Sequence[list[Piece]] | None
    ) -> list[list[Piece]]:
        numbers, series = self._numbered(name)
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
            numbers=numbers,
            named=self._named(name),
            legend=legend,
            marks=self._marks if self.axis is Axis.STEP else (),
        )

    def _strip(self, pieces: Sequence[Piece]) -> Strip:
        return Strip([Segment(piece.text, self._style(piece)) for piece in pieces])

    def _style(self, piece: Piece) -> Style:
        if piece.series is None:
            return self.rich_style
        role = appearance.LINES[piece.series % len(appearance.LINES)]
        style = self.rich_style + appearance.style(self.app, role)
        if self._crowd is None:
            return style
        is_front = piece.series == self._crowd.front
        return style + (Style(bold=True) if is_front else appearance.others(self.app))


def _common_words(labels: Sequence[str]) -> str:
    """The words that all labels begin with: lines of one session share its name."""
    words = [label.split(" ")[:-1] for label in labels]
    same = takewhile(lambda some: len(set(some)) == 1, zip(*words, strict=False))
    return "".join(f"{some[0]} " for some in same)
