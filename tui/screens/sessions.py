"""Sessions: their states, progress and queue reasons; and a preview of the one under the cursor."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
from rich.text import Text
from textual.binding import Binding
from textual.widgets import Input, Static

from nsml.common.text import visible
from nsml.common.units import counted
from nsml.v1.sessions_pb2 import Session
from nsml.view.differing_arguments import NOTHING_SHARED, Differing
from nsml.view.filtering import Filter, FilterError, complete
from nsml.view.sessions import COLUMNS
from nsml.view.sorting import keys_of, words_of
from tui.background import in_background
from tui.listing import By, Group, Listing, arranged, columns_of, command_of, grouped, title_of
from tui.screens.frame import Frame
from tui.screens.picking import Choice, Picker
from tui.screens.session import Preview
from tui.sources import State, Topic
from tui.widgets.charts import Charts
from tui.widgets.filter_line import FilterLine
from tui.widgets.static import set_text
from tui.widgets.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.timer import Timer

    from nsml.view.differing_arguments import Shared
    from nsml.view.tables import Column
    from tui.listing import Item
    from tui.model import Row

PREPARED_AT_ONCE: Final = 100
MOST_TOLD_APART: Final = 1_000
"""Sessions that decide the order of arguments if no argument is the same in all of them."""
REST_S: Final = 0.15
"""The cursor rests so long before the preview shows its session."""
AGES_S: Final = 10.0
"""Redraw interval of ages in the list without other changes: they are in minutes."""
_BELOW: Final = (Topic.SERIES, Topic.LOG, Topic.EXPLANATION)
_AGING: Final = frozenset({State.STALE, State.OFFLINE})
LEAST_LINES: Final = 24
"""Of a terminal with room for a preview."""


class SessionsScreen(Frame):
    """The list of sessions."""

    name_of = "sessions"
    topics = (Topic.SESSIONS, Topic.ENDED)
    DEFAULT_CSS: ClassVar[str] = """
    SessionsScreen {
        #counts { height: 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
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
        Binding("slash", "filter", "Filter", key_display="/", id="sessions.filter"),
        Binding("n", "new_run", "New run", id="sessions.submit"),
        Binding("space", "mark", "Mark ↓", id="sessions.mark"),
        Binding("x", "compare", "Compare", id="sessions.compare"),
        Binding("ctrl+k", "stop", "Stop", id="sessions.stop"),
        Binding("E", "ended", "Ended", id="sessions.ended"),
        Binding("a", "whose", "Mine/all", id="sessions.whose"),
        Binding("o", "sort", "Sort", id="sessions.sort"),
        Binding("v", "preview", "Preview", id="sessions.preview"),
        Binding("m", "memo", "Memo", id="sessions.memo"),
        Binding("s", "shell", "Shell", show=False, id="sessions.shell"),
        Binding("F", "forward", "Forward port", show=False, id="sessions.forward"),
        Binding("ctrl+d", "remove", "Remove", show=False, id="sessions.remove"),
        Binding("u", "unmark", "Unmark all", show=False, id="sessions.unmark"),
        Binding(
            "asterisk", "mark_all", "Mark all", show=False, key_display="*", id="sessions.mark-all"
        ),
        Binding("V", "range", "Mark a range", show=False, id="sessions.range"),
        Binding("O", "reverse", "Reverse", show=False, id="sessions.reverse"),
        Binding("C", "columns", "Columns", show=False, id="sessions.columns"),
        Binding("b", "group", "By project", show=False, id="sessions.group"),
        Binding("left", "fold(True)", "Fold", show=False, id="sessions.fold"),
        Binding("right", "fold(False)", "Unfold", show=False, id="sessions.unfold"),
        Binding("c", "copy", "Copy name", show=False, id="sessions.copy"),
        Binding("escape", "back", "Back", show=False, id="sessions.back"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._listing = Listing()
        self._filter = Filter("")
        self._user = ""
        self._marks: frozenset[str] = frozenset()
        self._range_from = ""
        self._wrong = ""
        self._listed: tuple[object, ...] = ()
        self._resting: Timer | None = None
        self._rows: Sequence[Row] = ()
        self._shared: Shared[str | bool] = NOTHING_SHARED
        self._columns: tuple[object, list[Column[Session]]] = (None, [])

    def body(self) -> ComposeResult:
        """The list, and the preview."""
        yield Static(id="counts")
        yield Table(
            COLUMNS,
            key=lambda item: item.id,
            clock=self.dashboard.clock.time,
            heading=_heading,
            id="sessions",
        )
        yield Static(id="error")
        yield FilterLine(
            placeholder="state:run lr>=1e-3 !baseline | user:kim", id="filter", compact=True
        )
        yield Preview()

    @property
    def table(self) -> Table[Any]:
        """The list: of sessions, and of headings of groups."""
        return self.query_one("#sessions", Table)

    @property
    def session(self) -> Session | None:
        """The session under the cursor."""
        item = self.table.current
        return item if isinstance(item, Session) else None

    @property
    def listed(self) -> list[Session]:
        """The sessions of the list."""
        return [item for item in self.table.items if isinstance(item, Session)]

    @property
    def row(self) -> Row | None:
        """The row under the cursor."""
        session = self.session
        return self.model.row(session.id) if session is not None else None

    def chosen(self) -> Sequence[Session]:
        """Marked sessions, newest first; else the one under the cursor."""
        rows = sorted(filter(None, map(self.model.row, self._marks)), key=lambda row: -row.created)
        marked = [row.session for row in rows]
        return marked or ([self.row.session] if self.row else [])

    def on_mount(self) -> None:
        """Restore the saved view, and focus the list."""
        super().on_mount()
        self._listing = self.dashboard.preferences.sessions
        field = self.query_one("#filter", Input)
        try:
            self._filter = Filter(self._listing.filter)
        except FilterError as error:
            self._listing = msgspec.structs.replace(self._listing, filter="")
            self.dashboard.say(f"the saved filter is left out: {error.text}")
        with field.prevent(Input.Changed):
            field.value = self._filter.text
        self.table.focus()

    def age(self) -> None:
        """Redraw ages: minutes in the list, and seconds of data that is no longer received."""
        now = self.dashboard.clock.time()
        received = (self.model.sources[topic].state(now) for topic in (*self.topics, *_BELOW))
        if self._listed[-1:] == (now // AGES_S,) and _AGING.isdisjoint(received):
            self.redraw_frame()
        else:
            self.redraw()

    def draw(self) -> None:
        """Show the list, if it has changed, and the preview."""
        ages = self.dashboard.clock.time() // AGES_S
        model, user = self.model, self.dashboard.user
        if user != self._user:  # the user is known after the first sessions
            self._user = user
            self._filter = complete(self._filter.text, me=user)
        listed = (model.listed, user, self._none(self._known), ages)
        if listed != self._listed:
            self._listed = listed
            self._list()
        self._preview()

    def _preview(self) -> None:
        """Preview the shown session: while the cursor moves, it is the previous one."""
        preview = self.query_one(Preview)
        preview.display = self._listing.has_preview and self.size.height >= LEAST_LINES
        if preview.display:
            ids = self.model.shown.session_ids
            row = self.model.row(ids[0]) if len(ids) == 1 and self.row else None
            preview.draw(self, row)

    @property
    def _known(self) -> int:
        """How many sessions the list has without a filter."""
        steps = 0 if self._filter.has_steps else self.model.step_count
        return self.model.count - steps

    def _list(self, *, is_other: bool = False) -> None:
        now, listing = self.dashboard.clock.time(), self._listing
        if listing.looks_into_commands:
            self.dashboard.complete(self.model.short())
        rows = self.model.rows(
            self._filter, now, with_ended=listing.with_ended, with_steps=self._filter.has_steps
        )
        if listing.is_mine:
            rows = [row for row in rows if row.session.owner == self.dashboard.user]
        if rows != self._rows:
            self._rows = rows
            # After these are drawn: their differences follow a moment later.
            self.call_after_refresh(
                in_background, self, "arguments", partial(self._compare_arguments, rows)
            )
        known = self._known
        table = self.table
        table.none = self._none(known)
        shown = arranged(rows, listing, now)
        items: Sequence[Item] = [row.session for row in shown]
        if listing.by:
            quotas = {
                one.name: one.settings.quota.gpu_thousandths
                for one in self.model.projects
                if one.settings.quota.HasField("gpu_thousandths")
            }
            items = grouped(shown, listing, quotas)
        table.show(items, is_other=is_other, columns=self._chosen_columns())
        self._marks = frozenset(one for one in self._marks if self.model.row(one))
        table.mark(self._marks)
        set_text(self.query_one("#counts", Static), Text(f" {self._counts(len(rows), known)}"))

    def _counts(self, count: int, known: int) -> str:
        listing = self._listing
        if not known and not self.model.sources[Topic.SESSIONS].received_at:
            return "sessions"
        parts = [f"{count:,} of {counted(known, 'session')}"]
        parts += [f"filter: {visible(listing.filter)}"] if listing.filter else []
        parts += [f"of {visible(self.dashboard.user)}"] if listing.is_mine else []
        parts += [f"by {listing.by}"] if listing.by else []
        if not listing.with_ended:
            parts.append("without ended ones")
        elif self.model.lacks_older:
            parts.append("older ended ones: $ nsml ps -a")
        if (steps := self.model.step_count) and not self._filter.has_steps:
            parts.append(f"{counted(steps, 'step')} of submissions: submission:*")
        parts += [f"{len(self._marks)} marked"] if self._marks else []
        parts += (
            [f"{self.key_of('sessions.range')} marks from there to here"]
            if self._range_from
            else []
        )
        parts += [f"all: {visible(words_of(self._shared.same))}"] if self._shared.same else []
        return " · ".join(parts)

    def _chosen_columns(self) -> list[Column[Session]]:
        """Return the columns, as the same list until others are chosen: a table lays out new ones."""
        listing = self._listing
        asked = (listing.sort, listing.is_down, listing.columns, listing.filter, self._shared)
        if self._columns[0] != asked:
            self._columns = asked, columns_of(listing, self._shared)
        return self._columns[1]

    async def _compare_arguments(self, rows: Sequence[Row]) -> None:
        """Find arguments that differ among these sessions, a few at a time."""
        counted_so_far: Differing[str | bool] = Differing()
        for place, row in enumerate(rows, 1):
            counted_so_far.add(row.filtered.arguments)
            if place % PREPARED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if place == MOST_TOLD_APART and not counted_so_far.shared.same:
                break
        shared = counted_so_far.shared if len(rows) > 1 else NOTHING_SHARED
        if shared != self._shared:
            self._shared = shared
            self._list()

    def _none(self, known: int) -> str:
        if known:
            return f"no match: {self.key_of('sessions.back')} shows all again"
        return self.none(
            Topic.SESSIONS,
            f"no sessions yet · {self.key_of('sessions.submit')} submits one, as nsml run -e main.py does",
        )

    # Key actions

    def on_table_moved(self) -> None:
        """Show the session under the cursor, once it rests there."""
        if self._resting is not None:
            self._resting.stop()
        if self.model.shown.session_ids:
            self._resting = self.set_timer(REST_S, self._look)
        else:
            self._look()

    def on_screen_resume(self) -> None:
        """Show that one again, whatever another screen has shown."""
        if self.is_mounted:
            self._fit()
            self._look()

    def _look(self) -> None:
        if self.is_in_front:
            if row := self.row:
                self.dashboard.look_at(row.session, pause_s=0.0, is_plain=True)
            self._preview()

    def on_table_chosen(self) -> None:
        """Open it, or fold its group."""
        group = self.table.current
        if isinstance(group, Group):
            self._fold(group.name, is_folded=not group.is_folded)
        elif row := self.row:
            self.dashboard.open_session(row.session)

    def action_group(self) -> None:
        """Group by project, by user, or not at all."""
        following = list(By)[(list(By).index(self._listing.by) + 1) % len(By)]
        self._change(by=following, folded=())
        self.dashboard.subscribe_screen(self.subscriptions())

    def subscriptions(self) -> tuple[Topic, ...]:
        """Its topics, and projects while quotas are shown."""
        has_quotas = self._listing.by is By.PROJECT
        return (*self.topics, Topic.PROJECTS) if has_quotas else self.topics

    def monitored_topics(self, now: float) -> tuple[Topic, ...]:
        """Add unreachable topics of the preview, which reports denied ones itself."""
        below = (Topic.SERIES, Topic.LOG) if self.query_one(Preview).display else ()
        sources = self.model.sources
        gone = (one for one in below if sources[one].state(now) is State.OFFLINE)
        return (*self.topics, *gone)

    def action_fold(self, is_folded: bool) -> None:
        """Fold or unfold the group of the item under the cursor."""
        item = self.table.current
        if not self._listing.by or item is None:
            return
        above = [one for one in self._up_to_cursor() if isinstance(one, Group)]
        if above:
            self._fold(above[-1].name, is_folded=is_folded)
            self.table.move_to(above[-1].id)

    def _up_to_cursor(self) -> Sequence[Item]:
        table = self.table
        return table.items[: table.place + 1]

    def _fold(self, name: str, *, is_folded: bool) -> None:
        others = [one for one in self._listing.folded if one != name]
        folded = (*others, name) if is_folded else tuple(others)
        self._set(msgspec.structs.replace(self._listing, folded=folded))
        self._list()

    def action_filter(self) -> None:
        """Ask for a filter."""
        field = self.query_one("#filter", Input)
        field.display = True  # at once: the next keys go there
        self.set_focus(field)
        in_background(self, "filter", self._prepare)

    def filter_by(self, text: str) -> None:
        """Filter the list; `esc` shows all again."""
        field = self.query_one("#filter", Input)
        field.value = text
        field.display = False
        self.table.focus()

    async def _prepare(self) -> None:
        """Prepare the sessions for the first word, a few at a time: keys come first."""
        for _ in self.model.sheet.filling(PREPARED_AT_ONCE):
            await asyncio.sleep(0)

    async def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing, by the valid terms."""
        error = self.query_one("#error", Static)
        error.display = False
        try:
            self._filter = Filter(event.value, me=self.dashboard.user)
        except FilterError as failed:
            error.display = True
            self._wrong = f" {' ' * failed.place}^\n {visible(failed.text)}"
            set_text(error, Text(self._wrong))
            self._filter = complete(event.value, me=self.dashboard.user)
        self._listing = msgspec.structs.replace(self._listing, filter=self._filter.text.strip())
        if not event.input.display:  # unfinished input is not saved
            self._set(self._listing)
        self._list(is_other=True)
        # Let the list report its change first: then it is drawn together with the typed text.
        await asyncio.sleep(0)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter, if it is valid; else say that it is not applied."""
        error = self.query_one("#error", Static)
        if error.display:
            set_text(
                error,
                Text(
                    f"{self._wrong}\n not applied: correct it, or {self.key_of('filter.drop')} clears it"
                ),
            )
            return
        event.input.display = False
        self._set(self._listing)
        self.table.focus()

    def _change(self, **fields: Any) -> None:
        """Change the view of the list."""
        self._set(msgspec.structs.replace(self._listing, **fields))
        self._list(is_other=True)

    def _set(self, listing: Listing) -> None:
        self._listing = listing
        self.dashboard.set_preferences(
            msgspec.structs.replace(self.dashboard.preferences, sessions=listing)
        )

    def action_back(self) -> None:
        """Show all again: clear the filter, then the other choices."""
        field = self.query_one("#filter", Input)
        field.display = False
        if self._range_from:
            self._range_from = ""
            self._list()
        elif field.value:
            field.value = ""
        else:
            self._change(is_mine=False, with_ended=True)
        self.table.focus()

    def action_mark(self) -> None:
        """Mark or unmark the one under the cursor, and move to the next: `space space` marks two."""
        if (session := self.session) is not None:
            self._marks ^= {session.id}
            self.table.action_move(1)
            self._list()

    def action_unmark(self) -> None:
        """Mark none."""
        self._marks = frozenset()
        self._list()

    def action_mark_all(self) -> None:
        """Mark all that are listed."""
        self._marks |= {session.id for session in self.listed}
        self._list()

    def action_range(self) -> None:
        """Start a range at the cursor; mark it, if one was started."""
        if (session := self.session) is None:
            return
        ids = [one.id for one in self.listed]
        if self._range_from in ids:
            ends = sorted((ids.index(self._range_from), ids.index(session.id)))
            self._marks |= frozenset(ids[ends[0] : ends[1] + 1])
            self._range_from = ""
        else:
            self._range_from = session.id
        self._list()

    def action_sort(self) -> None:
        """Choose the sort column."""

        def go(keys: tuple[str, ...] | None) -> None:
            if keys:
                self._change(sort=keys[0])
                self.table.action_edge(-1)

        self.app.push_screen(Picker("Sort by", self._choices(), chosen=[self._listing.sort]), go)

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._change(is_down=not self._listing.is_down)
        self.table.action_edge(-1)

    def action_columns(self) -> None:
        """Choose the columns; with none, those of `nsml ps`."""

        def go(keys: tuple[str, ...] | None) -> None:
            if keys is not None:
                self._change(columns=keys)

        chosen = self._listing.columns or tuple(one.key for one in self.table.shown_columns)
        self.app.push_screen(
            Picker("Columns, from left to right", self._choices(), chosen=chosen, several=True), go
        )

    def _choices(self) -> list[Choice]:
        """All possible columns."""
        keys = keys_of(row.filtered for row in self._rows).columns
        return [Choice(key, title_of(key)) for key in keys]

    def action_copy(self) -> None:
        """Copy names of chosen sessions."""
        self.dashboard.copy("\n".join(visible(one.name) for one in self.chosen()))

    def command(self) -> tuple[str, str]:
        """The equivalent command line."""
        return command_of(self._listing)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Browsers have no folder to submit; folding needs groups."""
        if action == "new_run" and self.dashboard.is_web:
            return False
        if action == "fold" and not self._listing.by:
            return False
        return super().check_action(action, parameters)

    def action_new_run(self) -> None:
        """Submit the folder, like the one under the cursor."""
        self.dashboard.submit(self.row.session if self.row is not None else None)

    def action_compare(self) -> None:
        """Compare the marked sessions."""
        self.dashboard.compare(self.chosen() if self._marks else ())

    def action_whose(self) -> None:
        """Show one's own, or all visible ones."""
        self._change(is_mine=not self._listing.is_mine)

    def action_ended(self) -> None:
        """Show or hide ended sessions."""
        self._change(with_ended=not self._listing.with_ended)

    def action_preview(self) -> None:
        """Show or hide the preview."""
        self._change(has_preview=not self._listing.has_preview)
        self.redraw()

    def on_charts_resized(self) -> None:
        """Request as many columns as fit."""
        self._fit()

    def _fit(self) -> None:
        if self.is_in_front:  # else the screen in front decides
            for charts in self.query(Charts):
                self.dashboard.fit_charts(charts.size.width)

    def on_resize(self, _event: events.Resize) -> None:
        """Show the preview, if it fits."""
        self.call_after_refresh(self.redraw)


def _heading(item: object) -> str:
    return item.text if isinstance(item, Group) else ""
