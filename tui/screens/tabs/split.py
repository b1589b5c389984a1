"""Tabs with a list, and the item under the cursor beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, cast

from textual.containers import Horizontal, Vertical

from tui.screens.tabs.tab import SessionTab
from tui.widgets.table import Table

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult

    from tui.screens.tabs.tab import TabScreen

LEAST_COLUMNS: Final = 100
"""Of a terminal with room for both; in a narrower one an opened item replaces the list."""


class SplitTab(SessionTab):
    """A table, and in `Vertical` the item under its cursor."""

    DEFAULT_CSS: ClassVar[str] = """
    SplitTab {
        Horizontal { height: 1fr; }
        Horizontal > Table { width: 2fr; }
        Horizontal > Vertical { width: 3fr; border-left: solid $rule; padding-left: 1; }
        &.-narrow Horizontal > Table { width: 1fr; }
        &.-narrow Horizontal > Vertical { display: none; border-left: none; padding-left: 0; }
        &.-narrow.-open Horizontal > Table { display: none; }
        &.-narrow.-open Horizontal > Vertical { display: block; width: 1fr; }
    }
    """

    def body(self) -> ComposeResult:
        """The two."""
        with Horizontal():
            yield from self.listed()
            with Vertical():
                yield from self.shown()

    def listed(self) -> ComposeResult:
        """The table."""
        yield from ()

    def shown(self) -> ComposeResult:
        """The item under the cursor."""
        yield from ()

    @property
    def is_shown(self) -> bool:
        """Whether the item under the cursor is visible."""
        return not self.has_class("-narrow") or self.has_class("-open")

    def on_resize(self, event: events.Resize) -> None:
        """Show both if they fit."""
        is_narrow = event.size.width < LEAST_COLUMNS
        if event.size.width and is_narrow != self.has_class("-narrow"):
            self.set_class(is_narrow, "-narrow")
            self._look()

    def on_table_moved(self, event: Table.Moved) -> None:
        """Show another item."""
        event.stop()
        self._look()

    def on_table_chosen(self, event: Table.Chosen) -> None:
        """Focus the item, which replaces the list if both do not fit."""
        event.stop()
        self.add_class("-open")
        self.call_after_refresh(self._enter)
        self._look()

    def _enter(self) -> None:
        view = next(
            (one for one in self.query("Vertical > *") if one.can_focus and one.display), None
        )
        if view is not None:
            view.focus()

    def back(self) -> bool:
        """Back to the list."""
        if not self.has_class("-open"):
            return False
        self.remove_class("-open")
        self.query_one(Table).focus()
        self._look()
        return True

    def _look(self) -> None:
        """Receive the visible data, and draw it."""
        screen = cast("TabScreen", self.screen)
        if screen.tab is self:
            screen.subscribe_tab()
            screen.redraw()
