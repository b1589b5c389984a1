"""A table of any length; only visible lines are made: see ../README.md for why it is our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Generic, NamedTuple, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from nsml.common.text import fit, pad, visible, wrapped
from nsml.common.text import width as cells_of
from nsml.view.tables import lay_out
from tui import appearance
from tui.widgets.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from textual import events
    from textual.binding import BindingType

    from nsml.view.tables import Column, Layout

T = TypeVar("T")

MEASURED: Final = 100
"""Items that size the columns, beside the visible ones."""
MOST_KEPT: Final = 1_000
"""Items with cached texts, and lines."""
GAP: Final = "  "
MARK: Final = "✓ "
HIDDEN: Final = "+"
"""After the titles: some columns have no room, and how many."""
SIGN_CELLS: Final = 3


class _Texts(Generic[T]):
    """The texts of items in one column, cached for a second: layout and drawing need the same ones."""

    def __init__(self, column: Column[T]) -> None:
        self._cell = column.cell
        self._known: dict[int, tuple[T, str]] = {}
        self._second = 0

    def __call__(self, item: T, now: float) -> str:
        if self._second != (second := int(now)) or len(self._known) > MOST_KEPT:
            self._second = second
            self._known.clear()
        known = self._known.get(id(item))
        if known is None:
            known = self._known[id(item)] = item, self._cell(item, now)
        return known[1]


class _LineLook(NamedTuple):
    """Everything that makes a line look different from others.

    Attributes:
        texts: of the cells, or of the heading.
        colours: of the cells.
        cursor: 0: not on it; 1: on it, without focus; 2: on it.
    """

    texts: tuple[str, ...]
    colours: tuple[str, ...]
    cursor: int
    is_marked: bool
    is_heading: bool


def _remembering(columns: Sequence[Column[T]]) -> list[Column[T]]:
    return [column._replace(cell=_Texts(column)) for column in columns]


class Table(Lines, ScrollView, Generic[T], can_focus=True, inherit_bindings=False):
    """Items as lines of columns, with a cursor that stays with its item, and marks.

    Args:
        columns: as for `nsml.view.tables`; wide ones are shown if an item is worth them.
        key: a permanent key of an item; by it the cursor and marks stay when items change.
        clock: Unix seconds, for cells with ages.
        none: the text of an empty table.
        heading: the one line of a heading, in place of cells; "" for all other items.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "table--title",
        "table--cursor",
        "table--cursor-blurred",
        "table--mark",
        "table--heading",
        "table--none",
    }
    DEFAULT_CSS: ClassVar[str] = """
    Table {
        height: 1fr;
        overflow: hidden scroll;
        scrollbar-size: 0 0;
        & > .table--title { color: $text-muted; text-style: bold; }
        & > .table--cursor { background: $block-cursor-background; color: $block-cursor-foreground; text-style: $block-cursor-text-style; }
        & > .table--cursor-blurred { background: $block-cursor-blurred-background; color: $block-cursor-blurred-foreground; text-style: $block-cursor-blurred-text-style; }
        & > .table--mark { color: $accent; text-style: bold; }
        & > .table--heading { text-style: bold; }
        & > .table--none { color: $text-muted; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "Down", show=False, id="table.down"),
        Binding("up,k", "move(-1)", "Up", show=False, id="table.up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="table.page-down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="table.page-up"),
        Binding("g,home", "edge(-1)", "First", show=False, id="table.first"),
        Binding("G,end", "edge(1)", "Last", show=False, id="table.last"),
        Binding("enter", "choose", "Open", id="table.open"),
    ]

    # Its length moves nothing around it, unless it sets the height, and none of its lines.
    virtual_size = Reactive(Size(0, 0), repaint=False)

    class Moved(Message):
        """The cursor is on another item, or on none: see `current`."""

    class Chosen(Message):
        """The item under the cursor was opened."""

    def __init__(
        self,
        columns: Sequence[Column[T]],
        *,
        key: Callable[[T], str],
        clock: Callable[[], float],
        none: str = "",
        heading: Callable[[T], str] | None = None,
        id: str | None = None,  # noqa: A002 - as every widget calls it
    ) -> None:
        super().__init__(id=id)
        self._given = columns
        self._columns = _remembering(columns)
        self._key = key
        self._clock = clock
        self.none = none
        self._heading = heading
        self.items: Sequence[T] = ()
        self._layout: Layout[T] | None = None
        self._sampled: dict[int, T] = {}
        self._least: Mapping[str, int] = {}
        self._wanted: set[str] = set()
        self._at = 0
        self._cursor_key = ""
        self._was_moved = False
        self._marks: frozenset[str] = frozenset()
        self._drawn: dict[_LineLook, Strip] = {}
        self._drawn_in: tuple[int, ...] = ()

    # Items

    def show(
        self,
        items: Sequence[T],
        *,
        is_other: bool = False,
        columns: Sequence[Column[T]] | None = None,
    ) -> None:
        """Show these items, in other `columns` if there are some.

        `is_other`: they are new ones, and columns begin anew.
        """
        self.items = items
        if columns is not None and columns != self._given:
            self._given = columns
            self._columns = _remembering(columns)
            self._layout = None
        if is_other:
            self._least = {}
        # Before scrolling, which ends at its end.
        self._fit()
        self._settle()
        if is_other or not self._still_fits():
            self._layout = None
        self.refresh_changed()

    def _fit(self) -> None:
        before, self.virtual_size = self.virtual_size, Size(self.size.width, len(self.items) + 1)
        if self.styles.auto_dimensions and self.virtual_size != before:
            self.refresh(layout=True)
        self.scroll_y = min(self.scroll_y, self.max_scroll_y)

    def mark(self, keys: Collection[str]) -> None:
        """Show these items as marked."""
        if self._marks != frozenset(keys):
            self._marks = frozenset(keys)
            self.refresh()

    @property
    def shown_columns(self) -> Sequence[Column[T]]:
        """Those that fit."""
        return self._laid_out().columns

    @property
    def current(self) -> T | None:
        """The item under the cursor."""
        return self.items[self._at] if self.items else None

    @property
    def place(self) -> int:
        """The place of the item under the cursor."""
        return self._at

    def move_to(self, key: str) -> None:
        """Put the cursor on the item with this key, if there is one."""
        places = (place for place, item in enumerate(self.items) if self._key(item) == key)
        self._go(next(places, self._at))

    def _settle(self) -> None:
        """Keep the cursor on its item, or its place; at the top until the user moves it.

        Items arrive in parts: those above the first part would be out of sight.
        """
        before = self._cursor_key
        if (
            self._was_moved
            and self.items
            and not (self._at < len(self.items) and self._key(self.items[self._at]) == before)
        ):
            places = (n for n, item in enumerate(self.items) if self._key(item) == before)
            found = next(places, None) if before else None
            if found is not None:
                # It stays at its line on the screen, whatever is added above it.
                y = max(self.scroll_y + found - self._at, 0)
                self.scroll_to(y=y, animate=False, force=True, immediate=True)
            self._at = min(self._at, len(self.items) - 1) if found is None else found
        key = self._key(self.items[self._at]) if self.items else ""
        if key != before:
            self._cursor_key = key
            self.post_message(self.Moved())

    # Drawing

    def _seen(self) -> Sequence[T]:
        top = int(self.scroll_offset.y)
        return self._with_cells(self.items[top : top + self.size.height])

    def _measured(self) -> Sequence[T]:
        return self._with_cells(self.items[:MEASURED])

    def _with_cells(self, items: Sequence[T]) -> Sequence[T]:
        heading = self._heading
        return items if heading is None else [item for item in items if not heading(item)]

    def _columns_for(self, items: Sequence[T]) -> list[Column[T]]:
        return [
            one
            for one in self._columns
            if not one.is_wide or (one.is_worth is not None and any(map(one.is_worth, items)))
        ]

    def _still_fits(self) -> bool:
        """Whether the columns fit new items, and visible ones, which age."""
        if self._layout is None:
            return False
        seen = self._seen()
        sample = [*self._measured(), *seen]
        fresh = [item for item in sample if id(item) not in self._sampled]
        self._sampled = {id(item): item for item in sample}
        if {one.key for one in self._columns_for(fresh)} - self._wanted:
            return False
        now, layout = self._clock(), self._layout
        return all(
            cells_of(visible(column.cell(item, now))) <= cells
            for column, cells in zip(layout.columns, layout.widths, strict=True)
            if column.key in layout.uncut
            for item in (*fresh, *seen)
        )

    def _laid_out(self) -> Layout[T]:
        if self._layout is None:
            self._sampled = {id(item): item for item in (*self._measured(), *self._seen())}
            sample = list(self._sampled.values())
            columns = self._columns_for(sample)
            self._wanted = {one.key for one in columns}
            room = self.scrollable_content_region.width - len(MARK)
            now = self._clock()
            self._layout = lay_out(
                columns, sample, now=now, room=room, least=self._least, sign=SIGN_CELLS
            )
            widths = tuple(self._layout.widths)
            if widths != self._drawn_in:
                self._drawn_in = widths
                self._drawn.clear()
            # A widened column stays so: text that is being read does not jump.
            self._least = {
                column.key: cells
                for column, cells in zip(self._layout.columns, self._layout.widths, strict=True)
                if column.shrinks_to is None
            }
        return self._layout

    @property
    def hidden_count(self) -> int:
        """Number of columns without room."""
        return self._laid_out().hidden

    def make_line(self, y: int) -> Strip:
        """The title, or an item."""
        width = self.size.width
        if y == 0:
            return self._titles(width)
        place = y - 1 + int(self.scroll_offset.y)
        if place < len(self.items):
            return self._line(place, width)
        note = [] if self.items else wrapped(f"  {self.none}", width)
        if place < len(note):
            style = self.get_component_rich_style("table--none")
            return _strip([Segment(note[place], style)], width, self.rich_style)
        return Strip.blank(width, self.rich_style)

    def _titles(self, width: int) -> Strip:
        style = self.get_component_rich_style("table--title")
        layout = self._laid_out()
        text = " " * len(MARK) + GAP.join(map(pad, layout.titles(), layout.widths))
        if layout.hidden:
            text = with_sign(text, layout.hidden, width)
        return _strip([Segment(text, style)], width, style)

    def _line(self, place: int, width: int) -> Strip:
        """An item. Equal lines are made once: most of those shown again are equal."""
        layout, item = self._laid_out(), self.items[place]
        texts: tuple[str, ...]
        colours: tuple[str, ...]
        if heading := self._heading(item) if self._heading is not None else "":
            texts, colours = (visible(heading),), ("",)
        else:
            texts = tuple(layout.row(item, self._clock()))
            colours = tuple(one.colour(item) if one.colour else "" for one in layout.columns)
        cursor = place == self._at and 1 + self.has_focus
        line_look = _LineLook(
            texts, colours, cursor, self._key(item) in self._marks, is_heading=bool(heading)
        )
        strip = self._drawn.get(line_look)
        if strip is None:
            if len(self._drawn) == MOST_KEPT:
                self._drawn.clear()
            strip = self._drawn[line_look] = self._paint(line_look, width)
        return strip

    def notify_style_update(self) -> None:
        """Draw all lines again, in other colours."""
        self._drawn.clear()
        super().notify_style_update()

    def _paint(self, line: _LineLook, width: int) -> Strip:
        base = self.rich_style
        # Under the cursor only its own colours are readable.
        if line.cursor:
            focused = line.cursor > 1
            name = "table--cursor" if focused else "table--cursor-blurred"
            base = self.get_component_rich_style(name)
        elif line.is_heading:
            base = self.get_component_rich_style("table--heading")
        if line.is_heading:
            return _strip([Segment(f" {line.texts[0]}", base)], width, base)
        mark = self.get_component_rich_style("table--mark", partial=True)
        segments = [
            Segment(
                MARK if line.is_marked else " " * len(MARK), base if line.cursor else base + mark
            )
        ]
        widths = self._laid_out().widths
        for text, colour, cells in zip(line.texts, line.colours, widths, strict=True):
            is_plain = line.cursor or not colour
            style = base if is_plain else base + appearance.style(self.app, colour)
            segments += [Segment(pad(text, cells), style), Segment(GAP, base)]
        return _strip(segments, width, base)

    def on_resize(self) -> None:
        """Lay it out for the new width, also behind a dialog, where it is not shown again."""
        self._layout = None
        self._least = {}
        self._drawn.clear()
        self._fit()
        self.refresh()

    # Movement

    def _go(self, place: int) -> None:
        if not self.items:
            return
        place = min(max(place, 0), len(self.items) - 1)
        if place == self._at:
            return
        self._was_moved = True
        before, self._at = self._at, place
        self._cursor_key = self._key(self.items[place])
        height = self.size.height - 1
        top = int(self.scroll_offset.y)
        if place < top:
            self.scroll_to(y=place, animate=False, force=True)
        elif place >= top + height:
            self.scroll_to(y=place - height + 1, animate=False, force=True)
        for one in (before, place):
            self.refresh(Region(0, one - int(self.scroll_offset.y) + 1, self.size.width, 1))
        self.post_message(self.Moved())

    def action_move(self, by: int) -> None:
        """Move by lines."""
        self._go(self._at + by)

    def action_page(self, by: int) -> None:
        """Move by screens."""
        self._go(self._at + by * max(self.size.height - 2, 1))

    def action_edge(self, side: int) -> None:
        """To the first or last item."""
        self._go(0 if side < 0 else len(self.items) - 1)

    def action_choose(self) -> None:
        """Open the item under the cursor."""
        if self.items:
            self.post_message(self.Chosen())

    def on_click(self, event: events.Click) -> None:
        """Put the cursor there; a second click opens."""
        place = event.y - 1 + int(self.scroll_offset.y)
        if event.y > 0 and place < len(self.items):
            self._go(place)
            if event.chain > 1:
                self.action_choose()


def with_sign(titles: str, hidden: int, width: int) -> str:
    """Add the number of hidden columns at the end of the titles."""
    titles = titles.rstrip()
    sign = f"{HIDDEN}{hidden}"
    if cells_of(titles) + 1 + len(sign) > width:
        sign = HIDDEN
    left = width - len(sign)
    return pad(fit(titles, left), left) + sign


def _strip(segments: list[Segment], width: int, rest: Style) -> Strip:
    # Cells of one style are merged: each piece costs the terminal an escape sequence.
    return Strip(segments).adjust_cell_length(width, rest).simplify()
