"""Sessions: what runs, is it learning, what waits and why; and the one under the cursor a little closer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Final

from rich.text import Text
from textual.binding import Binding
from textual.widgets import Input, Static

from nsml.view.filtering import Filter, FilterError
from nsml.view.sessions import COLUMNS
from nsml.view.text import visible
from nsml.view.units import counted
from tui.screens.frame import Frame, tell
from tui.screens.session import Preview
from tui.sources import Topic
from tui.widgets.charts import Charts
from tui.widgets.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from nsml.v1.sessions_pb2 import Session
    from tui.model import Row

PREPARED_AT_ONCE: Final = 100
LEAST_LINES: Final = 24
"""Of a terminal that has room for a preview."""


class SessionsScreen(Frame):
    """The list of sessions."""

    name_of = "sessions"
    topics = (Topic.SESSIONS, Topic.ENDED)
    DEFAULT_CSS: ClassVar[str] = """
    SessionsScreen {
        #counts { height: 1; color: $text-muted; }
        #filter { height: 1; display: none; }
        #error { height: auto; color: $text-error; display: none; }
        Preview { height: 45%; border-top: solid $rule; }
        Preview Charts { width: 3fr; }
        Preview LogView { width: 2fr; border-left: solid $rule; }
        &.-narrow Preview LogView { display: none; }
    }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012 - as Textual declares it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/", id="sessions.filter", priority=True),
        Binding("space", "mark", "Mark", id="sessions.mark"),
        Binding("u", "unmark", "Unmark all", show=False, id="sessions.unmark"),
        Binding("a", "whose", "Mine/all", id="sessions.whose"),
        Binding("E", "ended", "Ended", id="sessions.ended"),
        Binding("v", "preview", "Preview", id="sessions.preview"),
        Binding("x", "compare", "Compare", id="sessions.compare"),
        Binding("ctrl+k", "stop", "Stop", id="sessions.stop"),
        Binding("m", "memo", "Memo", id="sessions.memo"),
        Binding("escape", "back", "Back", show=False, id="sessions.back"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._filter = Filter("")
        self._is_mine = False
        self._with_ended = True
        self._has_preview = True
        self._marks: frozenset[str] = frozenset()

    def body(self) -> ComposeResult:
        """The list, and what is below it."""
        yield Static(id="counts")
        yield Table(
            COLUMNS,
            key=lambda session: session.id,
            clock=self.dashboard.clock.time,
            id="sessions",
        )
        yield Static(id="error")
        yield Input(
            placeholder="state:run lr>=1e-3 !baseline | user:kim", id="filter", compact=True
        )
        yield Preview()

    @property
    def table(self) -> Table[Session]:
        """The list."""
        return self.query_one("#sessions", Table)

    @property
    def row(self) -> Row | None:
        """The one under the cursor."""
        session = self.table.current
        return self.model.row(session.id) if session is not None else None

    def chosen(self) -> Sequence[Session]:
        """What is marked, newest first; else the one under the cursor."""
        rows = sorted(filter(None, map(self.model.row, self._marks)), key=lambda row: -row.created)
        marked = [row.session for row in rows]
        return marked or ([self.row.session] if self.row else [])

    def on_mount(self) -> None:
        """Keys are for the list."""
        super().on_mount()
        self.table.focus()

    def draw(self) -> None:
        """Show the list and the preview."""
        self._list()
        preview = self.query_one(Preview)
        preview.display = self._has_preview and self.size.height >= LEAST_LINES
        if preview.display:
            preview.draw(self, self.row)

    def _list(self, *, is_other: bool = False) -> None:
        now = self.dashboard.clock.time()
        rows = self.model.rows(self._filter, now, with_ended=self._with_ended)
        if self._is_mine:
            rows = [row for row in rows if row.session.owner == self.dashboard.user]
        known = self.model.count
        table = self.table
        table.none = self._none(known)
        table.show([row.session for row in rows], is_other=is_other)
        self._marks = frozenset(one for one in self._marks if self.model.row(one))
        table.mark(self._marks)
        parts = [f"{len(rows):,} of {counted(known, 'session')}"]
        parts += [f"filter: {visible(self._filter.text)}"] if self._filter.text else []
        parts += [f"of {visible(self.dashboard.user)}"] if self._is_mine else []
        parts += [] if self._with_ended else ["without ended ones"]
        parts += [f"{len(self._marks)} marked"] if self._marks else []
        tell(self.query_one("#counts", Static), Text(" " + " · ".join(parts)))

    def _none(self, known: int) -> str:
        if known:
            return "none of them: esc shows all again"
        return self.none(Topic.SESSIONS, "no sessions yet · nsml run -e main.py submits one")

    # What keys do

    def on_table_moved(self) -> None:
        """Look at the one under the cursor."""
        self._look()
        self.query_one(Preview).draw(self, self.row)

    def on_screen_resume(self) -> None:
        """Look at that one again, whatever another screen has looked at."""
        if self.is_mounted:
            self._look()

    def _look(self) -> None:
        if row := self.row:
            self.dashboard.look_at(row.session)

    def on_table_chosen(self) -> None:
        """Open it."""
        if row := self.row:
            self.dashboard.open_session(row.session)

    def action_filter(self) -> None:
        """Ask for a filter."""
        field = self.query_one("#filter", Input)
        field.display = True  # at once, so that what is typed next goes there
        self.set_focus(field)
        self.run_worker(self._prepare(), group="filter", exclusive=True)

    async def _prepare(self) -> None:
        """Have the sessions ready for the first word, a few at a time: keys come first."""
        rows = self.model.rows(Filter(""), 0.0)
        for place, row in enumerate(rows, 1):
            row.filtered.prepare()
            if place % PREPARED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed; the last good one stays."""
        error = self.query_one("#error", Static)
        error.display = False
        try:
            self._filter = Filter(event.value)
        except FilterError as failed:
            error.display = True
            error.update(Text(f" {' ' * failed.place}^ {visible(failed.message)}"))
            return
        self._list(is_other=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Leave it as it is."""
        event.input.display = False
        self.table.focus()

    def action_back(self) -> None:
        """Show all again: what was typed, then what was chosen by other keys."""
        field = self.query_one("#filter", Input)
        field.display = False
        if field.value:
            field.value = ""
        else:
            self._is_mine, self._with_ended = False, True
            self._list(is_other=True)
        self.table.focus()

    def action_mark(self) -> None:
        """Mark the one under the cursor, or mark it no more."""
        if (session := self.table.current) is not None:
            self._marks ^= {session.id}
            self.table.action_move(1)
            self._list()

    def action_unmark(self) -> None:
        """Mark none."""
        self._marks = frozenset()
        self._list()

    def action_compare(self) -> None:
        """What is marked side by side."""
        self.dashboard.compare(self.chosen() if self._marks else ())

    def action_whose(self) -> None:
        """One's own, or all that one may see."""
        self._is_mine = not self._is_mine
        self._list(is_other=True)

    def action_ended(self) -> None:
        """With those that have ended, or without."""
        self._with_ended = not self._with_ended
        self._list(is_other=True)

    def action_preview(self) -> None:
        """With what is below the list, or without."""
        self._has_preview = not self._has_preview
        self.redraw()

    def on_charts_resized(self, event: Charts.Resized) -> None:
        """Ask for as many columns as there is room for."""
        self.dashboard.fit_charts(event.columns)

    def on_resize(self, _event: events.Resize) -> None:
        """A preview has room, or has none."""
        self.call_after_refresh(self.redraw)
