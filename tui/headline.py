"""The first line of a screen: as many parts as fit, each of them whole. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rich.text import Text

from nsml.common.text import fit, fit_middle, width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.style import Style

ALWAYS: Final = 100
"""Worth of parts that are never left out."""
LEAST_NAME: Final = 8
"""Minimum width of a cut name."""


class HeadlineItem(NamedTuple):
    """A part of the line, after a `gap`.

    Parts without room are replaced by their `short` form, if any, and then left out: the least worth first.
    """

    text: str
    worth: int = ALWAYS
    style: Style | str = ""
    short: str = ""
    gap: str = "   "
    is_name: bool = False


def headline(parts: Sequence[HeadlineItem], cells: int) -> Text:
    """Join the parts in one line of this width; if those that always stay do not fit, the name is cut in its middle."""
    kept = list(parts)
    rising = sorted(range(len(kept)), key=lambda place: kept[place].worth)
    for place in rising:
        if _excess(kept, cells) and kept[place].short:
            kept[place] = kept[place]._replace(text=kept[place].short)
    for place in rising:
        if _excess(kept, cells) and kept[place].worth < ALWAYS:
            kept[place] = kept[place]._replace(text="")
    for place, part in enumerate(kept):
        if part.is_name and (excess := _excess(kept, cells)):
            room = max(width(part.text) - excess, LEAST_NAME)
            kept[place] = part._replace(text=fit_middle(part.text, room))
    line = Text(no_wrap=True)
    for part in kept:
        if part.text:
            line.append(part.gap if line else " ").append(part.text, part.style)
    if line.cell_len > cells:
        line.plain = fit(line.plain, cells)
    return line


def _excess(parts: Sequence[HeadlineItem], cells: int) -> int:
    """Cells by which they are too long; not below 0."""
    said = [part for part in parts if part.text]
    taken = sum(width(part.gap) + width(part.text) for part in said)
    return max(taken - (width(said[0].gap) if said else 0) + 1 - cells, 0)
