"""Every device of every node as a cell, and a cursor on a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from nsml.view.heat_map import grid_of
from tui import appearance
from tui.widgets.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.binding import BindingType

    from nsml.v1.nodes_pb2 import Node
    from nsml.view.heat_map import Cell, Heat


class HeatMap(Lines, ScrollView, can_focus=True):
    """Nodes in lines and columns; the cursor stays with its node."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"heat--cursor"}
    DEFAULT_CSS: ClassVar[str] = """
    HeatMap {
        height: 1fr;
        overflow-x: hidden;
        & > .heat--cursor { background: $block-cursor-background; color: $block-cursor-foreground; text-style: bold; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1, 0)", "Left", show=False, id="heat.left"),
        Binding("right", "move(1, 0)", "Right", show=False, id="heat.right"),
        Binding("down,j", "move(0, 1)", "Down", show=False, id="heat.down"),
        Binding("up,k", "move(0, -1)", "Up", show=False, id="heat.up"),
        Binding("g,home", "edge(-1)", "First", show=False, id="heat.first"),
        Binding("G,end", "edge(1)", "Last", show=False, id="heat.last"),
    ]

    class Moved(Message):
        """The cursor is on another node."""

    class Resized(Message):
        """Its size has changed."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id)
        self._shown: Sequence[Node] = ()
        self._heat: Heat | None = None
        self._chosen = ""
        self._grid = grid_of((), 1)
        self._cells: dict[str, list[list[Cell]]] = {}
        """Cached for nodes since they were received."""
        self._made_of: tuple[list[tuple[str, int]], Size] = [], Size()

    @property
    def current(self) -> Node | None:
        """The node under the cursor."""
        return self._shown[self._at] if self._shown else None

    @property
    def _at(self) -> int:
        names = (place for place, node in enumerate(self._shown) if node.name == self._chosen)
        return next(names, 0)

    @property
    def each(self) -> int:
        """Cells of a device."""
        return self._grid.each

    @property
    def top(self) -> int:
        """The line at the top."""
        return int(self.scroll_offset.y)

    def show(self, nodes: Sequence[Node], heat: Heat) -> None:
        """Show these nodes."""
        self._shown, self._heat = nodes, heat
        self._cells.clear()
        if nodes and all(node.name != self._chosen for node in nodes):
            self._chosen = nodes[0].name
        self._fit()
        self.refresh_changed()

    def on_resize(self) -> None:
        """Fit to the new size."""
        self._fit()
        self.post_message(self.Resized())

    def _fit(self) -> None:
        made_of = [(node.name, len(node.devices)) for node in self._shown], self.size
        if made_of == self._made_of:
            return
        self._made_of = made_of
        count, (width, height) = len(self._shown), self.size
        grid = grid_of(self._shown, width, height)
        if grid.height(count) > height:
            grid = grid_of(self._shown, width - 1, height)  # the scrollbar takes a cell
        self._grid = grid
        self._cells.clear()
        self.virtual_size = Size(width, grid.height(count))
        self.refresh()

    def choose(self, name: str) -> None:
        """Put the cursor on a node."""
        if name != self._chosen:
            self._chosen = name
            grid = self._grid
            line = self._at // grid.across * grid.lines
            if not self.top <= line < self.top + self.size.height:
                self.scroll_to(y=max(line - self.size.height + 1, 0), animate=False, force=True)
            self.refresh()
            self.post_message(self.Moved())

    def make_line(self, y: int) -> Strip:
        """A line of adjacent nodes."""
        grid, heat = self._grid, self._heat
        row, part = divmod(y + self.top, grid.lines)
        first = row * grid.across
        segments: list[Segment] = []
        for node in self._shown[first : first + grid.across] if heat is not None else ():
            segments += self._pieces(node, part)
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)

    def _pieces(self, node: Node, part: int) -> list[Segment]:
        """A line of a node; the first one begins with its name."""
        grid, heat, base = self._grid, self._heat, self.rich_style
        if node.name not in self._cells:
            self._cells[node.name] = heat.lines(node, grid.each) if heat is not None else []
        lines = self._cells[node.name]
        cells = lines[part] if part < len(lines) else []
        name, title = base, " " * grid.titles.cells
        if part == 0:
            title = grid.title(node)
            if node.name == self._chosen:
                name = self.get_component_rich_style("heat--cursor")
        pieces = [Segment(title, name), Segment(" ", base)]
        for cell in cells:
            colour = appearance.style(self.app, cell.colour) if cell.colour else Style()
            pieces.append(Segment(cell.letter, base + colour))
        left = (grid.devices - len(cells)) * grid.each + 2
        return [*pieces, Segment(" " * left, base)]

    def action_move(self, across: int, down: int) -> None:
        """To a node beside, above or below."""
        place = self._at + across + down * self._grid.across
        if 0 <= place < len(self._shown):
            self.choose(self._shown[place].name)

    def action_edge(self, side: int) -> None:
        """To the first or the last."""
        if self._shown:
            self.choose(self._shown[0 if side < 0 else -1].name)

    def on_click(self, event: events.Click) -> None:
        """Put the cursor there."""
        grid = self._grid
        across = event.x // grid.cells
        place = (event.y + self.top) // grid.lines * grid.across + across
        if across < grid.across and place < len(self._shown):
            self.choose(self._shown[place].name)
