"""Differences of files, line by line, in the colours of a diff."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment

from nsml.view.code import colour_of
from tui import appearance
from tui.widgets.log_view import LogView, scrolling

if TYPE_CHECKING:
    from textual.binding import BindingType


class DiffView(LogView, inherit_bindings=False):
    """Lines of a diff, from the first on."""

    BINDINGS: ClassVar[list[BindingType]] = scrolling("diff")

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id)
        self.is_following = False

    def _pieces(self, line: str) -> list[Segment]:
        colour = colour_of(line)
        style = self.rich_style
        return [Segment(line, style + appearance.style(self.app, colour) if colour else style)]
