"""How files differ, line by line, in the colours of a diff."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from textual.binding import Binding

from nsml.view.code import colour_of
from tui import looks
from tui.widgets.log_view import LogView

if TYPE_CHECKING:
    from textual.binding import BindingType


class DiffView(LogView, inherit_bindings=False):
    """Lines of a diff, from the first on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "scroll_down", "Down", show=False, id="diff.down"),
        Binding("up,k", "scroll_up", "Up", show=False, id="diff.up"),
        Binding("pagedown", "page_down", "Page down", show=False, id="diff.page-down"),
        Binding("pageup", "page_up", "Page up", show=False, id="diff.page-up"),
        Binding("left,h", "scroll_left", "Left", show=False, id="diff.left"),
        Binding("right,l", "scroll_right", "Right", show=False, id="diff.right"),
        Binding("g,home", "first", "First", show=False, id="diff.first"),
        Binding("G,end", "scroll_end", "Last", show=False, id="diff.last"),
    ]

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id)
        self.is_following = False

    def _pieces(self, line: str) -> list[Segment]:
        colour = colour_of(line)
        style = self.rich_style
        return [Segment(line, style + looks.style(self.app, colour) if colour else style)]
