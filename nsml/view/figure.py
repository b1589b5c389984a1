"""Charts of series as plain shapes, which `svg` writes and any canvas can draw.

Everything is in pixels from the upper left corner. A line has at most four points a pixel column
(first, min, max, last), so that a picture is small and no spike is lost. Lines differ in
colour (Okabe and Ito's, distinguishable for the colour-blind) and in their dashes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from nsml.common.text import fit_middle, width
from nsml.common.units import counted, number_text
from nsml.view.plot import above_zero, dropped_text, finite_range, is_flat, within
from nsml.view.series import Axis, Series, smooth
from nsml.view.ticks import Ticks, log_ticks, place_ticks, value_ticks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Points: TypeAlias = "tuple[tuple[float, float], ...]"
_Place: TypeAlias = "Callable[[float], float]"

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b5b5b")
DASHES: tuple[tuple[float, ...], ...] = ((), (7.0, 3.0), (2.0, 2.5), (9.0, 3.0, 2.0, 3.0))
MOST_CHARTS = 48
"""In one picture: further metrics are counted, not drawn."""
_MOST_LEGEND = 40
_INK, _MUTED, _GRID, _BAD = "#1a1a1a", "#5f6368", "#e3e5e8", "#b00020"
_MARGIN, _GAP = 16.0, 14.0
_CHART = (456.0, 250.0)
_LEFT, _RIGHT, _TOP, _BOTTOM = 54.0, 12.0, 30.0, 36.0
COLUMNS = 2 * int(_CHART[0] - _LEFT - _RIGHT)
"""Useful columns of a series for a picture: two for each pixel."""
_ROW, _HEADING = 18.0, 30.0
_SMALL, _PLAIN, _LARGE = 10.0, 12.0, 15.0
_LETTER = 0.58
"""Average width of a letter, relative to its height."""
STD = "@std"
"""Suffix of the name of a standard deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stroke:
    """A line through points."""

    points: Points
    colour: str
    width: float = 1.0
    dashes: tuple[float, ...] = ()
    opacity: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """A filled shape."""

    points: Points
    colour: str
    opacity: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A line of text; `anchor`: the part of its baseline at (x, y): start, middle, end."""

    x: float
    y: float
    text: str
    size: float = _PLAIN
    anchor: str = "start"
    colour: str = _INK
    is_bold: bool = False


Shape: TypeAlias = "Stroke | Area | Label"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A part of a picture; its shapes are in pixels from its own corner."""

    x: float
    y: float
    width: float
    height: float
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A whole picture."""

    width: float
    height: float
    title: str
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Options for drawing series."""

    axis: Axis = Axis.STEP
    smoothing: float = 0.0
    is_log: bool = False
    """Vertical axes are logarithmic; values not above 0 are left out, and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pen:
    colour: str
    dashes: tuple[float, ...]


def figure(
    groups: Mapping[str, Sequence[Series]],
    look: Look,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    left_out: int = 0,
) -> Figure:
    """Return charts of all metrics, two per row, under headings of their prefix before `/`.

    Only values from `low` to `high` on the horizontal axis are drawn; an average includes all earlier ones.
    `left_out`: number of metrics missing in `groups`, to be mentioned.
    """
    bands = {name: lines for name, lines in groups.items() if _mean_of(name, groups)}
    drawn = {name: lines for name, lines in groups.items() if name not in bands}
    left_out += max(len(drawn) - MOST_CHARTS, 0)
    names = list(drawn)[:MOST_CHARTS]
    pens = _pens([line.label for name in names for line in drawn[name]])
    across = min(len(names), 2) or 1
    whole = _MARGIN * 2 + across * _CHART[0] + (across - 1) * _GAP
    tiles = [_legend(pens, whole, look, left_out)]
    y, column, heading = tiles[0].height, 0, ""
    is_headed = any("/" in name for name in names)
    for name in names:
        group = name.rpartition("/")[0] if "/" in name else ""
        if is_headed and (group != heading or name == names[0]):
            y, column, heading = y + (_CHART[1] + _GAP if column else 0.0), 0, group
            if group:
                tiles.append(_heading(group, y, whole))
                y += _HEADING
        std = bands.get(name + STD, ())
        pairs = [_cut(line, look, low, high) for line in drawn[name]]
        shapes = _chart(name, pairs, std, pens=pens, look=look)
        x = _MARGIN + column * (_CHART[0] + _GAP)
        tiles.append(Tile(x=x, y=y, width=_CHART[0], height=_CHART[1], shapes=shapes))
        column = (column + 1) % across
        y += 0.0 if column else _CHART[1] + _GAP
    height = y + (_CHART[1] + _GAP if column else 0.0) + _MARGIN
    title = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return Figure(width=whole, height=height, title=title, tiles=tuple(tiles))


def _mean_of(name: str, groups: Mapping[str, Sequence[Series]]) -> bool:
    """Return whether it is the deviation of another metric in `groups`."""
    return name.endswith(STD) and name.removesuffix(STD) in groups


def _pens(labels: Sequence[str]) -> dict[str, _Pen]:
    """Assign each label one colour and dash pattern in all charts."""
    return {
        label: _Pen(
            colour=COLOURS[number % len(COLOURS)],
            # Shifted by two after each round of the colours, so that all pairs are used before one repeats.
            dashes=DASHES[(number + 2 * (number // len(COLOURS))) % len(DASHES)],
        )
        for number, label in enumerate(dict.fromkeys(labels))
    }


def _legend(pens: Mapping[str, _Pen], whole: float, look: Look, left_out: int) -> Tile:
    shapes: list[Shape] = []
    x, y = _MARGIN, _MARGIN + _ROW / 2
    for label, pen in list(pens.items())[:_MOST_LEGEND]:
        text = fit_middle(label, int((whole - 2 * _MARGIN - 40) / (_PLAIN * _LETTER)))
        room = 34 + width(text) * _PLAIN * _LETTER + 18
        if x > _MARGIN and x + room > whole - _MARGIN:
            x, y = _MARGIN, y + _ROW
        sample = ((x, y), (x + 27, y))
        shapes.append(Stroke(points=sample, colour=pen.colour, width=2.0, dashes=pen.dashes))
        shapes.append(Label(x=x + 33, y=y + 4, text=text))
        x += room
    for note in _notes(len(pens) - _MOST_LEGEND, look, left_out):
        y += _ROW
        shapes.append(Label(x=_MARGIN, y=y + 4, text=note, size=_SMALL + 1, colour=_MUTED))
    return Tile(x=0.0, y=0.0, width=whole, height=y + _ROW + 4, shapes=tuple(shapes))


def _notes(unnamed: int, look: Look, left_out: int) -> list[str]:
    notes = []
    if unnamed > 0:
        notes.append(f"{counted(unnamed, 'line')} more, not named here")
    if look.smoothing:
        notes.append(f"moving average {look.smoothing:g}; pale: as reported")
    if left_out > 0:
        notes.append(f"{counted(left_out, 'metric')} more, not drawn")
    return notes


def _heading(text: str, y: float, whole: float) -> Tile:
    shown = fit_middle(text, int((whole - 2 * _MARGIN) / (_LARGE * _LETTER)))
    rule = ((_MARGIN, _HEADING - 6), (whole - _MARGIN, _HEADING - 6))
    shapes = (
        Label(x=_MARGIN, y=_HEADING - 12, text=shown, size=_LARGE, is_bold=True),
        Stroke(points=rule, colour=_GRID),
    )
    return Tile(x=0.0, y=y, width=whole, height=_HEADING, shapes=shapes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Coordinates of a chart; `y_range` of a logarithmic axis is in logarithms."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    is_log: bool

    def x(self, value: float) -> float:
        return _LEFT + _share(value, *self.x_range) * (_CHART[0] - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        if self.is_log:
            value = math.log10(value)
        return _CHART[1] - _BOTTOM - _share(value, *self.y_range) * (_CHART[1] - _TOP - _BOTTOM)


def _share(value: float, low: float, high: float) -> float:
    """Return the relative position, 0 to 1. Halved first: the difference of two finite numbers may be infinite."""
    span = high / 2 - low / 2
    return min(max((value / 2 - low / 2) / span if span else 0.5, 0.0), 1.0)


def _cut(line: Series, look: Look, low: float, high: float) -> tuple[Series, Series]:
    """Return the visible part of a line, as reported and averaged."""
    return within(line, low, high), within(smooth(line, look.smoothing), low, high)


def _chart(
    name: str,
    lines: Sequence[tuple[Series, Series]],
    std: Sequence[Series],
    *,
    pens: Mapping[str, _Pen],
    look: Look,
) -> tuple[Shape, ...]:
    title = Label(x=_LEFT, y=18, text=_title(name), is_bold=True)
    lost = 0
    shown: list[tuple[Series, Series]] = []
    for raw, smoothed in lines:
        if look.is_log:
            positive, count = above_zero(raw)
            lost += count
            shown.append((positive, above_zero(smoothed)[0]))
        else:
            shown.append((raw, smoothed))
    shown = [(raw, smoothed) for raw, smoothed in shown if raw.x and smoothed.x]
    bad = sum(raw.odd for raw, _ in shown)
    dropped = dropped_text([raw for raw, _ in lines], lost) if lost else ""
    count_label = Label(
        x=_CHART[0] - _RIGHT,
        y=18,
        text=_count_text(sum(raw.points for raw, _ in lines), bad, dropped),
        size=_SMALL,
        anchor="end",
        colour=_BAD if bad or dropped else _MUTED,
    )
    spread = {line.label: line for line in std if line.x} if not look.is_log else {}
    # The average of a part includes earlier values, and may exceed the part's range.
    y_values = finite_range([line for pair in shown for line in pair])
    if not shown or y_values is None:
        nothing = Label(
            x=_CHART[0] / 2, y=_CHART[1] / 2, text="nothing to draw", anchor="middle", colour=_MUTED
        )
        return title, count_label, nothing
    frame, x_ticks, y_ticks = _frame([raw for raw, _ in shown], y_values, spread, look)
    shapes: list[Shape] = [title, count_label, *_axes(frame, x_ticks, y_ticks, look.axis)]
    for raw, smoothed in shown:
        if raw.label in spread:
            shapes += _band(smoothed, spread[raw.label], pens[raw.label], frame)
    # Later lines are dashed: where lines coincide, both are visible.
    for raw, smoothed in shown:
        pen = pens[raw.label]
        if look.smoothing:
            shapes += _strokes(raw, pen, frame, width=1.0, opacity=0.25)
        shapes += _strokes(smoothed, pen, frame, width=1.7, opacity=1.0)
        shapes += _bad_marks(raw, frame)
    return tuple(shapes)


def _title(name: str) -> str:
    """Return the name or, if it is too long, its part below the group's heading."""
    room = int((_CHART[0] - _LEFT - 150) / (_PLAIN * _LETTER))
    return name if width(name) <= room else fit_middle(name.rpartition("/")[2], room)


def _count_text(points: int, bad: int, dropped: str) -> str:
    text = counted(points, "point")
    if bad:
        text += f", {bad:,} not a number"
    if dropped:
        text += f", {dropped} not above 0"
    return text


def _frame(
    lines: Sequence[Series],
    y_values: tuple[float, float],
    spread: Mapping[str, Series],
    look: Look,
) -> tuple[_Frame, Ticks, Ticks]:
    low, high = y_values
    if spread:
        most = max(
            (abs(v) for one in spread.values() for v in one.y if math.isfinite(v)), default=0
        )
        low, high = max(low - most, -1e308), min(high + most, 1e308)
    x_low, x_high = min(line.x[0] for line in lines), max(line.x[-1] for line in lines)
    if x_low == x_high:
        x_low, x_high = x_low - (look.axis is not Axis.RELATIVE), x_high + 1.0
    if look.is_log:
        logs = _opened(math.log10(low), math.log10(high))
        y_ticks = log_ticks(10.0 ** max(logs[0], -307), 10.0 ** min(logs[1], 308), most=6)
    else:
        logs = _opened(low, high)
        y_ticks = value_ticks(*logs, most=6)
    x_ticks = place_ticks(x_low, x_high, look.axis, most=4 if look.axis is Axis.WALL else 6)
    return _Frame(x_range=(x_low, x_high), y_range=logs, is_log=look.is_log), x_ticks, y_ticks


def _opened(low: float, high: float) -> tuple[float, float]:
    """Return a range with a margin, so that no line is on its edge."""
    room = (abs(low) / 10 or 1.0) if is_flat(low, high) else (high / 2 - low / 2) * 0.1
    return max(low - room, -1.7e308), min(high + room, 1.7e308)


def _axes(frame: _Frame, x_ticks: Ticks, y_ticks: Ticks, axis: Axis) -> list[Shape]:
    right, bottom = _CHART[0] - _RIGHT, _CHART[1] - _BOTTOM
    shapes: list[Shape] = []
    for value, text in zip(y_ticks.at, y_ticks.texts, strict=True):
        y = frame.y(value)
        shapes.append(Stroke(points=((_LEFT, y), (right, y)), colour=_GRID))
        shapes.append(
            Label(x=_LEFT - 6, y=y + 3.5, text=text, size=_SMALL, anchor="end", colour=_MUTED)
        )
    for value, text in zip(x_ticks.at, x_ticks.texts, strict=True):
        x = frame.x(value)
        shapes.append(Stroke(points=((x, bottom), (x, bottom + 4)), colour=_MUTED))
        half = len(text) * _SMALL * _LETTER / 2
        place = min(max(x, _LEFT + half - 12), right - half + 12)
        shapes.append(
            Label(x=place, y=bottom + 15, text=text, size=_SMALL, anchor="middle", colour=_MUTED)
        )
    shapes.append(Stroke(points=((_LEFT, bottom), (right, bottom)), colour=_MUTED))
    words = {Axis.STEP: "step", Axis.RELATIVE: "time since the first point", Axis.WALL: "time"}
    unit = f" ({x_ticks.unit})" if x_ticks.unit else ""
    shapes.append(
        Label(
            x=(_LEFT + right) / 2,
            y=bottom + 30,
            text=words[axis] + unit,
            size=_SMALL,
            anchor="middle",
            colour=_MUTED,
        )
    )
    return shapes


def _strokes(
    line: Series, pen: _Pen, frame: _Frame, *, width: float, opacity: float
) -> list[Shape]:
    """Return the line in pieces between non-finite values; a piece of one point is a dot."""
    return [
        Stroke(
            points=points if len(points) > 1 else _dot(*points[0]),
            colour=pen.colour,
            width=width if len(points) > 1 else 5.0,
            dashes=pen.dashes if len(points) > 1 else (),
            opacity=opacity,
        )
        for points in thinned(line, frame.x, frame.y)
    ]


def _dot(x: float, y: float) -> Points:
    return (x - 2.5, y), (x + 2.5, y)


def thinned(line: Series, place_x: _Place, place_y: _Place) -> list[Points]:
    """Return the finite points of a line in its pieces, in pixels; at most four per pixel column."""
    pieces: list[Points] = []
    columns: list[list[tuple[float, float]]] = []
    for x, y in zip(line.x, line.y, strict=True):
        if not math.isfinite(y):
            if columns:
                pieces.append(tuple(point for column in columns for point in column))
                columns = []
            continue
        point = place_x(x), place_y(y)
        if not columns or int(columns[-1][0][0]) != int(point[0]):
            columns.append([point])
        else:
            _add(columns[-1], point)
    if columns:
        pieces.append(tuple(point for column in columns for point in column))
    return pieces


def _add(column: list[tuple[float, float]], point: tuple[float, float]) -> None:
    """Keep the first, min, max and last point of a column, in order."""
    column.append(point)
    if len(column) <= 4:
        return
    inner = column[1:-1]
    low, high = min(inner, key=lambda p: p[1]), max(inner, key=lambda p: p[1])
    kept = [p for p in inner if p is low or p is high]
    column[1:-1] = kept


def _band(line: Series, std: Series, pen: _Pen, frame: _Frame) -> list[Shape]:
    """Return the area of a deviation around a line."""
    points = [(x, y, _at(std, x)) for x, y in zip(line.x, line.y, strict=True)]
    finite = [(x, y, abs(d)) for x, y, d in points if math.isfinite(y) and math.isfinite(d)]
    if len(finite) < 2:
        return []
    upper = Series(label="", x=[x for x, _, _ in finite], y=[y + d for _, y, d in finite])
    lower = Series(label="", x=[x for x, _, _ in finite], y=[y - d for _, y, d in finite])
    there = [point for piece in thinned(upper, frame.x, frame.y) for point in piece]
    back = [point for piece in thinned(lower, frame.x, frame.y) for point in piece]
    return [Area(points=(*there, *reversed(back)), colour=pen.colour, opacity=0.18)]


def _at(line: Series, x: float) -> float:
    """Return a line's value at a position, interpolated; for columns by their means."""
    values = line.means or line.y
    right = bisect_left(line.x, x)
    if right == len(line.x):
        return values[-1]
    if line.x[right] == x or right == 0:
        return values[right]
    x0, x1 = line.x[right - 1], line.x[right]
    share = (x - x0) / (x1 - x0)
    return values[right - 1] * (1 - share) + values[right] * share


def _bad_marks(line: Series, frame: _Frame) -> list[Shape]:
    """Return a red tick on the axis for each pixel with a non-finite value."""
    bottom = _CHART[1] - _BOTTOM
    places = {
        round(frame.x(x)) for x, y in zip(line.x, line.y, strict=True) if not math.isfinite(y)
    }
    return [
        Stroke(points=((x, bottom - 6), (x, bottom + 1)), colour=_BAD, width=1.5)
        for x in sorted(places)
    ]


def described(groups: Mapping[str, Sequence[Series]]) -> list[str]:
    """Return a text line for each series, for people who cannot see the picture."""
    lines = []
    for name, drawn in list(groups.items())[:MOST_CHARTS]:
        for line in drawn[:_MOST_LEGEND]:
            finite = [value for value in line.y if math.isfinite(value)]
            said = f"last {number_text(finite[-1])}" if finite else "no finite value"
            lines.append(f"{name} of {line.label}: {counted(line.points, 'point')}, {said}")
    return lines
