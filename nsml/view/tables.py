"""Tables: two spaces between columns, a rule of dashes, left aligned. Columns are data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from nsml.view.text import fit, pad, visible, width

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
_GAP = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[T]):
    """One column: `cell` gives the text of a resource as seen at a moment (Unix seconds)."""

    key: str
    """Name for --fields."""
    title: str
    cell: Callable[[T, float], str]
    is_wide: bool = False
    """Shown by `-o wide` and --fields only."""
    colour: Callable[[T], str] | None = None
    """Name of the terminal colour of a resource's cell; colour never says anything alone."""
    is_optional: bool = False
    """Left out where the terminal is too narrow for the rest."""
    shrinks_to: int | None = None
    """May be cut down to so many cells when the terminal is narrow; None: never."""


def pick(
    columns: Sequence[Column[T]], fields: Sequence[str] = (), *, wide: bool = False
) -> list[Column[T]]:
    """The columns to show: `fields` in their order, else those of the width.

    Raises KeyError with the unknown field.
    """
    if fields:
        by_key = {column.key: column for column in columns}
        return [by_key[field] for field in fields]
    return [column for column in columns if wide or not column.is_wide]


def render(
    columns: Sequence[Column[T]],
    items: Sequence[T],
    *,
    now: float,
    room: int | None = None,
    header: bool = True,
    paint: Callable[[str, str], str] | None = None,
) -> list[str]:
    """The lines of a table. `room` is the terminal's width in cells; None: nothing is cut.

    `paint` colours a text (text, colour name); None: no colours.
    """
    columns = list(columns)
    rows = [[visible(column.cell(item, now)) for column in columns] for item in items]
    widths = [
        max([width(column.title) if header else 0, *(width(row[index]) for row in rows)])
        for index, column in enumerate(columns)
    ]
    if room is not None:
        _narrow(columns, rows, widths, room)
    lines = []
    if header:
        lines.append(_line([column.title for column in columns], widths))
        lines.append(_line(["-" * cells for cells in widths], widths))
    for item, row in zip(items, rows, strict=True):
        colours = [column.colour(item) if column.colour else "" for column in columns]
        lines.append(_line(row, widths, colours, paint))
    return lines


def _line(
    cells: Sequence[str],
    widths: Sequence[int],
    colours: Sequence[str] = (),
    paint: Callable[[str, str], str] | None = None,
) -> str:
    out = [pad(fit(cell, room), room) for cell, room in zip(cells, widths, strict=True)]
    out[-1] = out[-1].rstrip()
    if paint is not None:
        for index, colour in enumerate(colours):
            if colour:
                out[index] = paint(out[index], colour)
    return _GAP.join(out).rstrip()


def _narrow(columns: list[Column[T]], rows: list[list[str]], widths: list[int], room: int) -> None:
    """Make the line fit: cut columns that may shrink, then leave out optional ones from the right.

    A table of which neither suffices stays as wide as it must be.
    """
    full = list(widths)
    while not _shrink(columns, widths, room):
        optional = [index for index, column in enumerate(columns) if column.is_optional]
        if not optional:
            return
        place = optional[-1]
        del columns[place], full[place]
        for row in rows:
            del row[place]
        widths[:] = full


def _shrink(columns: Sequence[Column[T]], widths: list[int], room: int) -> bool:
    """Cut the widest columns that may shrink until the line fits; whether it does."""
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - room
    while excess > 0:
        able = [
            (widths[index], index)
            for index, column in enumerate(columns)
            if column.shrinks_to is not None and widths[index] > column.shrinks_to
        ]
        if not able:
            return False
        widest, index = max(able)
        floor = columns[index].shrinks_to or 0
        next_widest = sorted(able)[-2][0] if len(able) > 1 else floor
        cut = min(excess, max(widest - max(next_widest, floor), 1))
        widths[index] -= cut
        excess -= cut
    return True
