"""Lines of a text from the first on; only visible ones are made."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from rich.segment import Segment
from rich.style import Style

from nsml.view.telemetry import BARS
from tui import appearance
from tui.widgets.log_view import LogView, scrolling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.binding import BindingType


_BARS: Final = re.compile(f"[{BARS}][{BARS} ]*[{BARS}]")


class TextView(LogView, inherit_bindings=False):
    """Shows lines from the first on; `has_titles` highlights lines without indent, and bars."""

    BINDINGS: ClassVar[list[BindingType]] = scrolling("text")

    def __init__(self, *, has_titles: bool = False, id: str | None = None) -> None:  # noqa: A002 - as every widget calls it
        super().__init__(id=id)
        self.is_following = False
        self._has_titles = has_titles
        self._of = ""

    def show_text(self, lines: Sequence[str], *, of: str, none: str = "") -> None:
        """Show these lines; if they are `of` something new, from the first on."""
        if of != self._of:
            self._of = of
            self.scroll_home(animate=False)
        self.show(lines, none=none)

    def _pieces(self, line: str) -> list[Segment]:
        if self._has_titles and (found := _BARS.search(line)):
            before, after = line[: found.start()], line[found.end() :]
            bars = self.rich_style + appearance.style(self.app, appearance.LINES[0])
            return [
                Segment(before, self.rich_style),
                Segment(found[0], bars),
                Segment(after, self.rich_style),
            ]
        is_title = self._has_titles and line[:1].strip() != ""
        style = self.rich_style
        return [Segment(line, style + Style(bold=True) if is_title else style)]
