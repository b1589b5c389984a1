"""Text of a `Static`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text
    from textual.widgets import Static


def set_text(static: Static, text: Text) -> None:
    """Update it, skipping the redraw if the text is unchanged."""
    if static.content == text:
        return
    # A line of fixed height moves nothing else.
    moves = static.styles.auto_dimensions
    if moves and static._layout_required:  # noqa: SLF001 - as Textual keeps it
        # Textual counts the changes before the widget is idle as one: a layout between two of them would have the size
        # of the first text kept for the second.
        static._layout_updates += 1  # noqa: SLF001 - that number is part of the key of a kept size
    static.update(text, layout=moves)
