"""The input line of a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.geometry import Size
from textual.reactive import Reactive

from tui.widgets.field import Field

if TYPE_CHECKING:
    from textual.binding import BindingType


class FilterLine(Field):
    """A line to keep or to drop, as the footer says meanwhile."""

    # Typing moves nothing around it.
    virtual_size = Reactive(Size(0, 0), repaint=False)

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Keep", key_display="⏎", id="filter.keep"),
        Binding("escape", "screen.back", "Drop", id="filter.drop"),
    ]
