"""Tables: two spaces between columns, a rule of dashes, left aligned. Columns are data.

If a terminal is too narrow for a table, its rows are blocks of lines, one for each column.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from nsml.common.text import fit, fit_middle, fit_words, in_lines, pad, visible, width
from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

T = TypeVar("T")
_GAP = "  "
_ELLIPSIS = "…"
_NOTHING = "-"
"""An empty cell."""
_NAME_CELLS = 16
"""Least cells of a name."""
_LONG_CELLS = 20
"""Least cells of a long text, such as a summary."""
WIDEST: Final = 400
"""Most cells of a column that may be cut, on any output: one row cannot widen all others."""


class Column(NamedTuple, Generic[T]):
    """A column: `cell` returns the text of a resource at a time (Unix seconds)."""

    key: str
    """Name for --fields."""
    title: str
    cell: Callable[[T, float], str]
    is_wide: bool = False
    """Shown by `-o wide` and --fields only, or if `is_worth` is true for a row."""
    is_worth: Callable[[T], bool] | None = None
    """Of a wide column: whether this resource has something unusual there."""
    tells: Callable[[T], bool] | None = None
    """Whether this resource has a value: `-o wide` omits a column without any."""
    colour: Callable[[T], str] | None = None
    """Name of the terminal colour of a resource's cell; colour is never the only sign."""
    is_optional: bool = False
    """Omitted if the terminal is too narrow for the rest."""
    shrinks_to: int | None = None
    """May be cut to this width on a narrow terminal; None: never."""
    is_name: bool = False
    """A name: cut last unless it shrinks, and in its middle, since its end is distinctive."""
    least: int = 0
    """Never cut below this width, however narrow the terminal is."""
    within: Callable[[T, float, int], str] | None = None
    """The text at a time within a width, for texts that must not be cut at their end: a number, a time; "": cut it."""
    title_within: Callable[[int], str] | None = None
    """The title within a width, if it must not be cut at its end."""
    wraps: bool = False
    """In blocks of lines its text is wrapped instead of cut."""
    stays: bool = False
    """Never omitted, however narrow the terminal is: requested, as a sort key, by a filter or by --fields."""
    goes_first: bool = False
    """Omitted, unless it stays, before rows are written as blocks of lines."""


def pick(
    columns: Sequence[Column[T]],
    fields: Sequence[str] = (),
    *,
    wide: bool = False,
    items: Sequence[T] = (),
) -> list[Column[T]]:
    """Select columns: `fields` in their order, else those of the width.

    Narrow: wide columns only if `is_worth` is true for an item. Wide: those with a value in some
    item; all without items. A field may be given by its title, if that is unambiguous.
    Raises KeyError with the unknown field.
    """
    if fields:
        named = _by_title(columns) | {column.key: column for column in columns}
        if unknown := [one for one in fields if one not in named and one.casefold() not in named]:
            raise KeyError(unknown[0])
        return [kept(named.get(field) or named[field.casefold()]) for field in fields]
    return [column for column in columns if _is_chosen(column, items, wide=wide)]


def _by_title(columns: Sequence[Column[T]]) -> dict[str, Column[T]]:
    titles = [column.title.casefold() for column in columns]
    return {
        title: column
        for title, column in zip(titles, columns, strict=True)
        if titles.count(title) == 1
    }


def kept(column: Column[T]) -> Column[T]:
    """Return the column as requested by the user: shown, and never omitted."""
    return column._replace(is_wide=False, is_optional=False, stays=True)


def _is_chosen(column: Column[T], items: Sequence[T], *, wide: bool) -> bool:
    if wide:
        tells = column.tells or column.is_worth
        return not items or tells is None or any(map(tells, items))
    return not column.is_wide or (column.is_worth is not None and any(map(column.is_worth, items)))


class Layout(NamedTuple, Generic[T]):
    """The columns that fit, with their widths."""

    columns: Sequence[Column[T]]
    widths: Sequence[int]
    hidden: int = 0
    """Number of nonempty columns that do not fit."""
    uncut: frozenset[str] = frozenset()
    """Keys of columns without cut texts."""

    def titles(self) -> list[str]:
        """Return the titles, within their widths."""
        return [_title(*pair) for pair in zip(self.columns, self.widths, strict=True)]

    def row(self, item: T, now: float) -> list[str]:
        """Return the texts of a resource, within the widths of the columns."""
        return [
            _cut(column, item, visible(column.cell(item, now)), now, cells)
            for column, cells in zip(self.columns, self.widths, strict=True)
        ]


def lay_out(
    columns: Sequence[Column[T]],
    items: Sequence[T],
    *,
    now: float,
    room: int,
    least: Mapping[str, int] | None = None,
    sign: int = 0,
) -> Layout[T]:
    """Compute a layout for a table of these and similar resources in `room` cells.

    If cutting does not suffice columns are omitted, the widest first, except names and the sort column.
    `least`: minimal widths by key, whatever the contents. `sign`: cells kept free if columns are omitted.
    """
    rows = [[visible(column.cell(item, now)) for column in columns] for item in items]
    texts = _widths(columns, rows, header=False)
    widths = [
        max(widest, width(column.title), (least or {}).get(column.key, 0))
        for column, widest in zip(columns, texts, strict=True)
    ]
    is_empty = _emptiness(columns, items, rows, now)
    places, cut = _fitting(columns, widths, room, is_empty)
    if hidden := len(_missed(columns, rows, places)):
        places, cut = _fitting(columns, widths, room - sign, is_empty)
        hidden = len(_missed(columns, rows, places))
    chosen = [columns[place] for place in places]
    uncut = {columns[at].key for at, cells in zip(places, cut, strict=True) if texts[at] <= cells}
    return Layout(chosen, cut, hidden, frozenset(uncut))


def _missed(
    columns: Sequence[Column[T]], rows: Sequence[Sequence[str]], kept: Sequence[int]
) -> list[int]:
    """Return indices of nonempty columns, other than their title, that are not kept."""
    return [
        place
        for place in range(len(columns))
        if place not in kept
        and any(row[place] not in {"", _NOTHING, columns[place].title} for row in rows)
    ]


def _fitting(
    columns: Sequence[Column[T]],
    widths: Sequence[int],
    room: int,
    is_empty: Callable[[int, int], bool],
) -> tuple[list[int], list[int]]:
    """Return the indices of the columns that fit, and their widths."""
    places = list(range(len(columns)))
    while True:
        places, cut = _legible(columns, places, widths, room, is_empty)
        droppable = [
            place for place in places[1:] if not columns[place].is_name and not columns[place].stays
        ]
        if not droppable or not _excess(cut, room):
            return places, cut
        places.remove(max(droppable, key=lambda place: (widths[place], place)))


def _legible(
    columns: Sequence[Column[T]],
    places: Sequence[int],
    widths: Sequence[int],
    room: int,
    is_empty: Callable[[int, int], bool],
) -> tuple[list[int], list[int]]:
    """Return which of these columns stay, and their widths: a column without room for any text is omitted.

    The last is omitted first: the others get its room.
    """
    chosen = list(places)
    while True:
        cut = [widths[place] for place in chosen]
        stay = _narrow([columns[place] for place in chosen], cut, room)
        found = [(chosen[index], cut[index]) for index in stay]
        empty = [
            place
            for place, cells in found
            if not columns[place].is_name and not columns[place].stays and is_empty(place, cells)
        ]
        if not empty:
            return [place for place, _ in found], [cells for _, cells in found]
        chosen.remove(empty[-1])


def _emptiness(
    columns: Sequence[Column[T]], items: Sequence[T], rows: Sequence[Sequence[str]], now: float
) -> Callable[[int, int], bool]:
    """Return a test whether a column of this width shows only that there is something."""

    def is_empty(place: int, cells: int) -> bool:
        is_cut = False
        for item, row in zip(items, rows, strict=True):
            shown = _cut(columns[place], item, row[place], now, cells).strip()
            if shown not in {"", _NOTHING, _ELLIPSIS}:
                return False
            is_cut = is_cut or shown == _ELLIPSIS
        return is_cut

    return is_empty


def _give_back(
    columns: Sequence[Column[T]],
    shown: Callable[[int, int], Iterable[str]],
    places: Sequence[int],
    cut: list[int],
    wanted: Sequence[int],
) -> None:
    """Give cells freed by shorter texts of a column to other columns that were cut.

    Columns with rows that show nothing come first, then the least cut.

    `shown`: the texts of a column at a width. `cut`: the widths by index, modified.
    """
    free = 0
    wanting, starved = [], []
    for at, place in enumerate(places):
        column, cells = columns[place], cut[at]
        if cells >= wanted[place]:
            continue
        texts = list(shown(place, cells))
        needed = max([min(width(column.title), cells), *map(width, texts)])
        if _is_starved(texts):
            starved.append((at, place))
        elif column.within is not None and needed < cells:
            cut[at] = needed
            free += cells - needed
            continue
        wanting.append((wanted[place] - cells, at, place))
    for at, place in starved:
        rooms = range(cut[at] + 1, min(cut[at] + free, wanted[place]) + 1)
        enough = (room for room in rooms if not _is_starved(shown(place, room)))
        if given := next(enough, cut[at]) - cut[at]:
            cut[at] += given
            free -= given
    for _, at, place in sorted(wanting):
        cut[at] += (given := min(wanted[place] - cut[at], free))
        free -= given


def _is_starved(texts: Iterable[str]) -> bool:
    """Return whether a row shows nothing."""
    return any(text.strip() == _ELLIPSIS for text in texts)


class Rendered(NamedTuple):
    """A table: its lines, and the titles of nonempty columns that did not fit."""

    lines: Sequence[str]
    left_out: Sequence[str] = ()

    def left_out_text(self, room: int | None) -> str:
        """Describe omitted columns, within a width; "" if there are none, as without a limit."""
        if not self.left_out or room is None:
            return ""
        for what in (", ".join(self.left_out), counted(len(self.left_out), "column")):
            text = f"(no room for {what}: -o wide shows all)"
            if width(text) <= room:
                break
        return text


def render(
    columns: Sequence[Column[T]],
    items: Sequence[T],
    *,
    now: float,
    room: int | None = None,
    is_whole: bool = False,
    header: bool = True,
    paint: Callable[[str, str], str] | None = None,
) -> Rendered:
    """Render a table. `room` is the terminal's width in cells; None: only texts wider than `WIDEST` are cut.

    Rows that cannot be cut to fit are blocks of lines instead, with all nonempty columns.
    `is_whole`: no column is omitted; if cutting does not suffice, rows are blocks without cuts.
    `paint` colours a text (text, colour name); None: no colours.
    """
    rows = [[visible(column.cell(item, now)) for column in columns] for item in items]
    widths = _widths(columns, rows, header=header)
    places = list(range(len(columns)))

    def shown(place: int, cells: int) -> list[str]:
        pairs = zip(items, rows, strict=True)
        return [_cut(columns[place], item, row[place], now, cells) for item, row in pairs]

    if is_whole and room is not None:
        narrowed = list(widths)
        fits = _shrink(columns, narrowed, room) or _shrink(columns, narrowed, room, part=2)
        if items and not fits:
            return Rendered(
                _stacked(columns, items, now=now, room=room, is_whole=True, paint=paint)
            )
        widths = narrowed
    elif room is not None:
        is_empty = _emptiness(columns, items, rows, now)
        places, cut = _legible(columns, places, widths, room, is_empty)
        if _excess(cut, room):
            kept = [at for at in places if columns[at].stays or not columns[at].goes_first]
            places, cut = _legible(columns, kept, widths, room, is_empty)
        if items and (_excess(cut, room) or any(map(is_empty, places, cut))):
            return Rendered(_stacked(columns, items, now=now, room=room, paint=paint))
        _give_back(columns, shown, places, cut, widths)
        for place, cells in zip(places, cut, strict=True):
            widths[place] = cells
    layout = Layout([columns[place] for place in places], [widths[place] for place in places])
    lines = []
    if header:
        lines.append(_line(layout.titles(), layout.widths))
        lines.append(_line(["-" * cells for cells in layout.widths], layout.widths))
    for item, row in zip(items, rows, strict=True):
        parts = [
            in_lines(row[place], widths[place])
            if columns[place].wraps
            else [_cut(columns[place], item, row[place], now, widths[place])]
            for place in places
        ]
        colours = [column.colour(item) if column.colour else "" for column in layout.columns]
        lines += [
            _line(texts, layout.widths, colours, paint)
            for texts in zip_longest(*parts, fillvalue="")
        ]
    lines = lines if rows or room is None else [fit(line, room) for line in lines]
    return Rendered(lines, [columns[place].title for place in _missed(columns, rows, places)])


def _widths(
    columns: Sequence[Column[T]], rows: Sequence[Sequence[str]], *, header: bool
) -> list[int]:
    widths = [
        max([width(column.title) if header else 0, *(width(row[index]) for row in rows)])
        for index, column in enumerate(columns)
    ]
    return [
        cells if column.shrinks_to is None else min(cells, max(WIDEST, column.least))
        for column, cells in zip(columns, widths, strict=True)
    ]


def _stacked(
    columns: Sequence[Column[T]],
    items: Sequence[T],
    *,
    now: float,
    room: int,
    is_whole: bool = False,
    paint: Callable[[str, str], str] | None,
) -> list[str]:
    """Return a block for each item: title and cell of each nonempty column, and an empty line before the next.

    `is_whole`: long texts are wrapped instead of cut.
    """
    most = max(room // 2 - len(_GAP), 1)
    cells = min(max(width(column.title) for column in columns), most)
    left = max(room - cells - len(_GAP), 1)
    lines: list[str] = []
    for item in items:
        lines += [""] if lines else []
        for column in columns:
            text = visible(column.cell(item, now))
            if text in {"", _NOTHING} and not column.is_name:
                continue
            if is_whole and column.shrinks_to is not None:
                text = fit_words(text, max(WIDEST, column.least))
            texts = in_lines(text, left) if is_whole else [_cut(column, item, text, now, left)]
            colour = column.colour(item) if column.colour else ""
            titles = [_title(column, cells), *[""] * (len(texts) - 1)]
            for title, one in zip(titles, texts, strict=True):
                shown = paint(one, colour) if paint is not None and colour else one
                lines.append(f"{pad(title, cells)}{_GAP}{shown}".rstrip())
    return lines


def _cut(column: Column[T], item: T, text: str, now: float, cells: int) -> str:
    if column.within is not None and width(text) > cells:
        text = visible(column.within(item, now, cells)) or text
    return (fit_middle if column.is_name else fit_words)(text, cells)


def _title(column: Column[T], cells: int) -> str:
    if column.title_within is None or width(column.title) <= cells:
        return fit(column.title, cells)
    return fit(column.title_within(cells), cells)


def _line(
    cells: Sequence[str],
    widths: Sequence[int],
    colours: Sequence[str] = (),
    paint: Callable[[str, str], str] | None = None,
) -> str:
    out = [pad(cell, room) for cell, room in zip(cells, widths, strict=True)]
    out[-1] = out[-1].rstrip()
    if paint is not None:
        for index, colour in enumerate(colours):
            if colour:
                out[index] = paint(out[index], colour)
    return _GAP.join(out).rstrip()


def _narrow(columns: Sequence[Column[T]], widths: list[int], room: int) -> list[int]:
    """Make the line fit: cut columns that may shrink, omit optional ones from the right, cut names.

    Returns the indices of the columns that stay. If that does not suffice, the table stays too wide.
    """
    kept = list(range(len(columns)))
    while True:
        chosen = [columns[place] for place in kept]
        cut = [widths[place] for place in kept]
        fits = _shrink(chosen, cut, room)
        optional = [place for place in kept if columns[place].is_optional]
        if fits or not optional:
            break
        kept.remove(optional[-1])
    if not fits:
        _cut_names(chosen, cut, room)
        # The last long text is cut before distinguishing columns.
        texts = [i for i, one in enumerate(chosen) if (one.shrinks_to or 0) >= _LONG_CELLS]
        last = max(texts, default=len(chosen))
        _ = _shrink(chosen, cut, room, part=2, start=last) or _shrink(chosen, cut, room, part=2)
    for place, cells in zip(kept, cut, strict=True):
        widths[place] = cells
    return kept


def _cut_names(columns: Sequence[Column[T]], widths: list[int], room: int) -> None:
    for index, column in enumerate(columns):
        if column.is_name and widths[index] > _NAME_CELLS:
            widths[index] = max(widths[index] - _excess(widths, room), _NAME_CELLS)


def _excess(widths: Sequence[int], room: int) -> int:
    """Return the cells by which a line is too long; at least 0."""
    return max(sum(widths) + len(_GAP) * (len(widths) - 1) - room, 0)


def _shrink(
    columns: Sequence[Column[T]], widths: list[int], room: int, part: int = 1, start: int = 0
) -> bool:
    """Cut the widest columns that may shrink until the line fits; from `start` on to `shrinks_to` / `part`.

    Return whether it fits.
    """
    floors = [
        widths[index]
        if column.shrinks_to is None
        else max(column.shrinks_to // (part if index >= start else 1), column.least)
        for index, column in enumerate(columns)
    ]
    excess = _excess(widths, room)
    while excess > 0:
        able = sorted((cells, i) for i, cells in enumerate(widths) if cells > floors[i])
        if not able:
            return False
        widest, index = able[-1]
        next_widest = able[-2][0] if len(able) > 1 else 0
        cut = min(excess, max(widest - max(next_widest, floors[index]), 1))
        widths[index] -= cut
        excess -= cut
    return True
