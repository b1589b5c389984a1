"""Draws series in braille: every column shows its min and max, so no spike is lost.

A braille cell is 2 dots wide and 4 high. Many points of one dot column become a vertical bar from
min to max; neighbouring columns are joined by straight lines. A non-finite value
leaves a gap and a mark on the axis.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import compress, groupby, islice
from operator import itemgetter
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, TypeAlias

from nsml.common.text import fit_middle, width
from nsml.common.units import apart, counted, local_moment, number_text, spans_apart
from nsml.view.series import Axis

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsml.view.series import Series

BLANK = 0x2800
# Bit of each dot of a cell: [row from the top][column].
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_LEFT, _RIGHT = (
    [sum(DOTS[y][side] for y in range(4) if four >> y & 1) for four in range(16)] for side in (0, 1)
)
"""Bits of a cell by the four dots of a column; the lowest bit is the top dot."""
_LABEL_CELLS = 9
_LEAST_TITLE_CELLS = 8
_LEAST_COLUMNS = 10
_LEAST_NAME = 14
"""Least cells of a line's name in a legend; figures are left out first."""
_LARGEST_POWER = 308.25
_PRECISION_DIGITS = 12
"""Significant digits of a value: further ones are rounding errors."""
LETTERS = chr(BLANK) + "┤━┊"
"""Characters that a terminal needs to show a chart."""
CHANGED = "┊"
"""Marks the column of a step with a change of the running program."""
MARK = "×"  # noqa: RUF001 - unlike a letter x
"""Marks a column with a non-finite value, below it."""


_LINE_LETTERS = ascii_uppercase + ascii_lowercase
_Cells: TypeAlias = "tuple[tuple[tuple[str, int | None], ...], ...]"


def worth(columns: int) -> int:
    """Return the useful columns of a series for a chart of this width: two for each dot."""
    return 4 * _plot_columns(columns)


def _plot_columns(columns: int) -> int:
    return max(columns - _LABEL_CELLS - 1, _LEAST_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raster:
    """A drawn chart: `cells[row][column]` is a character and the index of its series, or None."""

    cells: _Cells
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    gaps: tuple[int, ...]
    """Columns of cells with a non-finite value."""


@dataclass(slots=True)
class _Column:
    """The points of one dot column, as rows of dots from the top."""

    first: int
    last: int
    least: int
    greatest: int
    is_cut: bool
    """A non-finite value precedes its first point: not joined to the left."""


def rasterise(lines: Sequence[Series], *, columns: int, rows: int) -> Raster:
    """Draw the lines into `columns` x `rows` cells; the first one on top."""
    x_range = _range([x for line in lines for x in (line.x[0], line.x[-1])] if lines else [])
    y_range = _range(_extremes(lines), precision=10.0**-_PRECISION_DIGITS)
    cells: list[list[tuple[str, int | None]]] = [
        [(chr(BLANK), None)] * columns for _ in range(rows)
    ]
    gaps: set[int] = set()
    for number in reversed(range(len(lines))):
        drawn, missing = _dot_columns(
            lines[number], width=columns * 2, height=rows * 4, x_range=x_range, y_range=y_range
        )
        gaps |= {place // 2 for place in missing}
        dots = _dots(drawn)
        for column in {x // 2 for x in dots}:
            pair = dots.get(2 * column, 0), dots.get(2 * column + 1, 0)
            for row, shown in _letters(*pair):
                cells[row][column] = shown, number
    return Raster(
        cells=tuple(map(tuple, cells)), x_range=x_range, y_range=y_range, gaps=tuple(sorted(gaps))
    )


def _extremes(lines: Sequence[Series]) -> list[float]:
    values = []
    for line in lines:
        finite = [value for value in line.y if math.isfinite(value)]
        if finite:
            values += [min(finite), max(finite)]
    return values


def is_flat(low: float, high: float, precision: float = 10.0**-_PRECISION_DIGITS) -> bool:
    """Return whether two values differ by at most this fraction of the larger one."""
    # Halved first: the difference of two finite numbers may be infinite.
    return high / 2 - low / 2 <= precision * (max(abs(low), abs(high)) / 2)


def _range(values: Sequence[float], *, precision: float = 0.0) -> tuple[float, float]:
    """Return min and max, widened a little if they are equal."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if is_flat(low, high, precision):
        margin = abs(low) / 10 or 1.0
        # A margin beyond the largest float would be infinite.
        most = sys.float_info.max
        return max(low - margin, -most), min(high + margin, most)
    return low, high


def _scaled(values: Iterable[float], low: float, high: float, dots: int) -> list[int]:
    # Halved first: the difference of two finite numbers may be infinite.
    half, span, last = low / 2, high / 2 - low / 2, dots - 1
    if not span:
        return [0 for _ in values]
    places = [round((value / 2 - half) / span * last) for value in values]
    return [0 if place < 0 else min(place, last) for place in places]


def _dot_columns(
    line: Series,
    *,
    width: int,
    height: int,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
) -> tuple[dict[int, _Column], set[int]]:
    columns: dict[int, _Column] = {}
    missing: set[int] = set()
    is_cut = True
    are_finite = list(map(math.isfinite, line.y))
    places = _scaled(line.x, *x_range, width)
    levels = iter(_scaled(compress(line.y, are_finite), *y_range, height))
    for place, is_finite in zip(places, are_finite, strict=True):
        if not is_finite:
            missing.add(place)
            is_cut = True
            continue
        dot = height - 1 - next(levels)
        column = columns.get(place)
        if column is None:
            columns[place] = _Column(dot, dot, dot, dot, is_cut)
        else:
            column.last = dot
            if dot < column.least:
                column.least = dot
            elif dot > column.greatest:
                column.greatest = dot
        is_cut = False
    return columns, missing


def _dots(columns: dict[int, _Column]) -> dict[int, int]:
    """Return the dots of each column as bits, the lowest at the top; columns are joined."""
    dots: dict[int, int] = {}
    before: tuple[int, int] | None = None
    for x, column in sorted(columns.items()):
        dots[x] = dots.get(x, 0) | _bits(column.least, column.greatest)
        if before is not None and not column.is_cut:
            for at, top, bottom in _joined(*before, x, column.first):
                dots[at] = dots.get(at, 0) | _bits(top, bottom)
        before = (x, column.last)
    return dots


def _bits(top: int, bottom: int) -> int:
    return (1 << bottom + 1) - (1 << top)


def _joined(x0: int, y0: int, x1: int, y1: int) -> Iterator[tuple[int, int, int]]:
    """Yield a straight line (Bresenham's) as bars: column, top and bottom of each."""
    run, rise, step = x1 - x0, abs(y1 - y0), 1 if y1 > y0 else -1
    for x in range(run + 1):
        if rise <= run:
            begin = end = (2 * x * rise + run) // (2 * run)
        else:
            # The part nearer to this column than to another.
            begin = max(-((1 - 2 * x) * rise // (2 * run)), 0)
            end = min(-((-1 - 2 * x) * rise // (2 * run)) - 1, rise)
        top, bottom = sorted((y0 + step * begin, y0 + step * end))
        yield x0 + x, top, bottom


def _letters(left: int, right: int) -> Iterator[tuple[int, str]]:
    """Yield the nonempty characters of two adjacent dot columns, with their rows."""
    row = 0
    while left or right:
        if mask := _LEFT[left & 15] | _RIGHT[right & 15]:
            yield row, chr(BLANK + mask)
        left, right, row = left >> 4, right >> 4, row + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """Moving averages of lines, in order; `share` is the weight of the past."""

    lines: Sequence[Series]
    share: float

    @property
    def words(self) -> str:
        """Its description in charts."""
        return f"smooth {self.share:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run of text; `series` determines its colour."""

    text: str
    series: int | None = None


def chart(
    title: str,
    lines: Sequence[Series],
    *,
    axis: Axis,
    columns: int,
    rows: int,
    is_log: bool = False,
    average: Average | None = None,
    numbers: Sequence[int] | None = None,
    named: int | None = None,
    legend: Sequence[list[Piece]] | None = None,
    marks: Sequence[float] = (),
    origin: str = "",
) -> list[list[Piece]]:
    """Return a chart in `columns` cells as lines of pieces: title, plot with axes, legend.

    `is_log`: the vertical axis is logarithmic; values not above 0 are left out, and counted.
    `average` is drawn in place of the lines; the figures are still those of the lines.
    `numbers` of the lines determine their letters and the `series` of pieces; None: counted from 0.
    The legend has the first `named` lines; None: all. `legend`: replaces it.
    `marks`: positions of changes on the axis, each a dotted line behind the lines.
    `origin`: what reported it, behind the title if there is room; see `metrics.origin_words`.
    """
    kept = [above_zero(line) if is_log else (line, 0) for line in lines]
    dropped = sum(count for _, count in kept)
    shown = [line for line, _ in kept]
    if average is not None:
        shown = [above_zero(line)[0] if is_log else line for line in average.lines]
    is_drawn = [bool(line.x and other.x) for (line, _), other in zip(kept, shown, strict=True)]
    named = sum(is_drawn[:named])
    drawn = [line for line, _ in compress(kept, is_drawn)]
    shown = list(compress(shown, is_drawn))
    numbers = range(len(drawn)) if numbers is None else list(compress(numbers, is_drawn))
    left_out = f", {dropped_text(lines, dropped)} left out: not above 0" if dropped else ""
    if not drawn:
        return [[Piece(text=f"{title}: no points {f'above 0{left_out}' if dropped else 'yet'}")]]
    plot_columns = _plot_columns(columns)
    raster = rasterise(
        [_logarithms(line) for line in shown] if is_log else shown, columns=plot_columns, rows=rows
    )
    scale = (", log" if is_log else "") + (f", {average.words}" if average else "")
    facts = f"  ({axis.value}{scale})  {_points(drawn)}{left_out}"
    head = fit_middle(title, max(columns - width(facts), _LEAST_TITLE_CELLS)) + facts
    if origin and width(head) + 2 + width(origin) <= columns:
        head = f"{head}  {origin}"
    out = [[Piece(text=head)]]
    low, high = raster.y_range
    labels = {0: high, rows // 2: high / 2 + low / 2, rows - 1: low}
    if is_log:
        labels = {row: 10.0 ** min(value, _LARGEST_POWER) for row, value in labels.items()}
    texts = dict(zip(labels, _labels(list(labels.values())), strict=True))
    cells = raster.cells if len(drawn) == 1 else _lettered(raster.cells, numbers)
    cells = _marked(cells, raster.x_range, marks)
    for place, row in enumerate(cells):
        label = texts.get(place, "")
        out.append([Piece(text=f"{label:>{_LABEL_CELLS}}┤"), *_runs(row, numbers)])
    if raster.gaps:
        odd = "".join(MARK if place in raster.gaps else " " for place in range(plot_columns))
        out.append([Piece(text=" " * (_LABEL_CELLS + 1) + odd.rstrip())])
    out.append([Piece(text=_x_axis(raster.x_range, axis, plot_columns))])
    if legend is None:
        every = _legend(drawn, numbers, "reported: " if average else "", columns)
        legend = list(islice(every, named))
    out.extend(legend)
    return out


def _marked(cells: _Cells, x_range: tuple[float, float], marks: Sequence[float]) -> _Cells:
    """Return the cells with a dotted line at each mark, where they are empty."""
    low, high = x_range
    shown = [mark for mark in marks if low <= mark <= high]
    if not shown or not cells:
        return cells
    columns = set(_scaled(shown, low, high, len(cells[0])))
    return tuple(
        tuple(
            (CHANGED, None) if place in columns and cell[0] == chr(BLANK) else cell
            for place, cell in enumerate(row)
        )
        for row in cells
    )


def short_legend(
    lines: Sequence[Series],
    labels: Sequence[str],
    numbers: Sequence[int],
    *,
    columns: int,
    rows: int,
) -> list[list[Piece]]:
    """Return a legend with several lines in one row: letter, label and last value; those without room are counted.

    Args:
        lines: with points, by importance.
        labels: of each line.
        numbers: of each line; they determine its letter and colour.
        columns: cells of a row.
        rows: most rows.
    """
    entries = []
    for number, line, label in zip(numbers, lines, labels, strict=True):
        name = fit_middle(label, max(columns // 2, _LEAST_NAME))
        entries.append((f"  {letter(number)} {name}", f" {number_text(line.y[-1])}", number))
    for count in range(len(entries), 0, -1):
        left = len(entries) - count
        more = [(f"  and {counted(left, 'more line')}", "", None)] if left else []
        found = _packed([*entries[:count], *more], columns)
        if len(found) <= max(rows, 1):
            return found
    return []


def _packed(entries: Sequence[tuple[str, str, int | None]], columns: int) -> list[list[Piece]]:
    rows: list[list[Piece]] = []
    used = columns
    for name, value, number in entries:
        cells = width(name) + width(value)
        if not rows or used + cells > columns:
            rows.append([])
            used = 0
        rows[-1] += [Piece(text=name, series=number), Piece(text=value)]
        used += cells
    return rows


def heights(
    room: int,
    lines: Sequence[Sequence[Series]],
    *,
    least: int,
    named: Sequence[int] | None = None,
) -> list[int]:
    """Return the heights of the first charts, `least` rows and more, that fit into `room` lines together; one alone may exceed it.

    There is an empty line between two, and one for a note if not all charts fit.
    `named`: legend lines of each; None: all.
    """
    # Beside its rows a chart has a title, an axis, marks of non-finite values, and a legend.
    legends = [len(drawn) for drawn in lines] if named is None else named
    around = [
        2 + any(line.odd for line in drawn) + legend
        for drawn, legend in zip(lines, legends, strict=True)
    ]
    for count in range(len(lines), 0, -1):
        needed = sum(around[:count]) + count * least + count - 1 + (count < len(lines))
        if needed <= room or count == 1:
            each, rest = divmod(max(room - needed, 0), count)
            return [least + each + (number < rest) for number in range(count)]
    return []


def within(line: Series, low: float, high: float) -> Series:
    """Return the part of a line from `low` to `high` on its horizontal axis."""
    first, last = bisect_left(line.x, low), bisect_right(line.x, high)
    return replace(
        line,
        x=line.x[first:last],
        y=line.y[first:last],
        counts=line.counts and line.counts[first:last],
        means=line.means and line.means[first:last],
    )


def above_zero(line: Series) -> tuple[Series, int]:
    """Return a line without values that a logarithmic axis cannot show, and the number of their positions."""
    kept = [place for place, value in enumerate(line.y) if not value <= 0]
    if len(kept) == len(line.x):
        return line, 0
    shown = replace(
        line,
        x=[line.x[place] for place in kept],
        y=[line.y[place] for place in kept],
        counts=line.counts and _counts_above_zero(line),
        means=line.means and [line.means[place] for place in kept],
    )
    return shown, len(line.x) - len(kept)


def _counts_above_zero(line: Series) -> list[int]:
    """Move the count of a removed column to the next remaining one."""
    counts, carried = [], 0
    for value, count in zip(line.y, line.counts or (), strict=True):
        if value <= 0:
            carried = count or carried
        elif math.isfinite(value):
            counts.append(count or carried)
            carried = 0
        else:
            counts.append(count)
    return counts


def dropped_text(lines: Sequence[Series], dropped: int) -> str:
    """Return the number of dropped values; for columns only "some" is known."""
    return "some" if any(line.counts for line in lines) else f"{dropped:,}"


def finite_range(lines: Sequence[Series]) -> tuple[float, float] | None:
    """Return the min and max finite value of all lines; None if there is none."""
    values = _extremes(lines)
    return (min(values), max(values)) if values else None


def _logarithms(line: Series) -> Series:
    # Rounded: else rounding errors would look like differences.
    return replace(
        line,
        y=[
            round(math.log10(value), _PRECISION_DIGITS) if math.isfinite(value) else value
            for value in line.y
        ],
    )


def letter(number: int) -> str:
    """Return the letter of a line, for charts without colours; they repeat from the 53rd line on."""
    return _LINE_LETTERS[number % len(_LINE_LETTERS)]


def _lettered(cells: _Cells, numbers: Sequence[int]) -> _Cells:
    """Put each line's letter in its last cell."""
    places: dict[int, tuple[int, int]] = {}
    for y, row in enumerate(cells):
        for x, (_, series) in enumerate(row):
            if series is not None and x >= places.get(series, (0, 0))[1]:
                places[series] = y, x
    letters = {place: letter(numbers[series]) for series, place in places.items()}
    return tuple(
        tuple((letters.get((y, x), shown), series) for x, (shown, series) in enumerate(row))
        for y, row in enumerate(cells)
    )


def _labels(values: Sequence[float]) -> list[str]:
    """Format labels of the vertical axis, within their cells."""
    texts = apart(values)
    if max(map(len, texts)) <= _LABEL_CELLS:
        return texts
    plain = [number_text(value) for value in values]
    return [
        text if len(text) <= _LABEL_CELLS else f"{value:.1e}"
        for text, value in zip(plain, values, strict=True)
    ]


def _points(lines: Sequence[Series]) -> str:
    bad = sum(line.odd for line in lines)
    text = _count(sum(line.points for line in lines))
    return f"{text}, {bad:,} of them not a number ({MARK})" if bad else text


def _count(points: int) -> str:
    return counted(points, "point")


def _runs(row: Sequence[tuple[str, int | None]], numbers: Sequence[int]) -> Iterator[Piece]:
    for series, run in groupby(row, key=itemgetter(1)):
        whose = None if series is None else numbers[series]
        yield Piece(text="".join(shown for shown, _ in run), series=whose)


def _x_axis(x_range: tuple[float, float], axis: Axis, columns: int) -> str:
    left, right = axis_texts(*x_range, axis)
    return " " * (_LABEL_CELLS + 1) + left + right.rjust(columns - len(left))


def axis_texts(low: float, high: float, axis: Axis) -> tuple[str, str]:
    """Format two positions on the horizontal axis, with enough digits to distinguish them."""
    match axis:
        case Axis.STEP:
            left, right = apart([low, high])
            return left, right
        case Axis.RELATIVE:
            return spans_apart(low, high)
        case Axis.WALL:
            return local_moment(low), local_moment(high)


def _legend(
    lines: Sequence[Series], numbers: Sequence[int], whose: str, columns: int
) -> Iterator[list[Piece]]:
    """Yield the legend; `whose`: a title for the figures.

    If a line is longer than `columns` cells, its name is shortened, and max and min are left out: a cut
    number looks like another one.
    """
    for number, line in zip(numbers, lines, strict=True):
        finite = [value for value in line.y if math.isfinite(value)]
        mark = f"  {letter(number) if len(lines) > 1 else '━'} "
        if not finite:
            yield [Piece(text=f"{mark}{line.label}: no finite value", series=number)]
            continue
        last, low, high = map(number_text, (line.y[-1], min(finite), max(finite)))
        figures = [f"  {whose}last {last}", f"  min {low}", f"  max {high}"]
        # Names that distinguish lines have priority over max and min.
        most = max(columns // 2, _LEAST_NAME) if len(lines) > 1 else _LEAST_NAME
        name_cells = min(width(line.label), most)
        while figures and width(mark) + name_cells + len("".join(figures)) > columns:
            figures.pop()
        values = "".join(figures)
        label = fit_middle(line.label, max(columns - width(mark) - len(values), name_cells))
        yield [Piece(text=f"{mark}{label}", series=number), Piece(text=values)]


def _of_first(line: Series) -> int:
    """Return the finite points of the first column with any."""
    counts = zip(line.counts or (), line.y, strict=True)
    return next((count for count, value in counts if count and math.isfinite(value)), 0)


def words(
    title: str, line: Series, *, axis: Axis, average: Average | None = None, origin: str = ""
) -> str:
    """Describe a series in one sentence, for people who cannot see charts; `average`: of this line alone."""
    if origin:
        title = f"{title} ({origin})"
    finite = [value for value in line.y if math.isfinite(value)]
    if not finite:
        return f"{title} of {line.label}: no finite value in {_count(line.points)}"
    first, last, of_first = finite[0], finite[-1], ""
    if line.means and (count := _of_first(line)) > 1:
        first = next(mean for mean in line.means if math.isfinite(mean))
        of_first = f" (mean of the first {count:,})"
    verb = "fell" if last < first else "rose" if last > first else "stayed"
    left, right = axis_texts(line.x[0], line.x[-1], axis)
    span = f"over {_count(line.points)}, {axis.value} {left}"
    text = (
        f"{title} of {line.label} {verb} {number_text(first)}{of_first} -> {number_text(last)} {span}"
        f" to {right}; min {number_text(min(finite))},"
        f" max {number_text(max(finite))}"
    )
    bad = line.odd
    text = f"{text}; {bad:,} not a number" if bad else text
    if average is None:
        return text
    smoothed = [value for value in average.lines[0].y if math.isfinite(value)]
    return f"{text}; {average.words}: {number_text(smoothed[0])} -> {number_text(smoothed[-1])}"
