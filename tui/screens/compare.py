"""Sessions side by side: differences as a matrix, series in the same charts, and differences of code."""

from __future__ import annotations

import re
from itertools import accumulate, chain
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import msgspec
from rich.text import Text
from textual.binding import Binding
from textual.widgets import Input, Static

from nsml.common.shell import shell_line
from nsml.common.text import fit, visible
from nsml.common.units import counted
from nsml.view.code import text_of, total_text
from nsml.view.compare import same_text
from nsml.view.complete_sessions import is_short
from nsml.view.matrix import columns, compared, is_key, labels, ordered
from nsml.view.plot import letter
from nsml.view.series import spread
from tui.model import ConfigReceived
from tui.preferences import ComparePreferences
from tui.screens.charting import ChartScreen
from tui.screens.picking import Choice, Picker
from tui.sources import Topic
from tui.widgets.charts import MOST_NAMED, Charts, Crowd
from tui.widgets.diff_view import DiffView
from tui.widgets.field import Field
from tui.widgets.static import set_text
from tui.widgets.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from nsml.v1.sessions_pb2 import ReportedConfig, Session
    from nsml.view.compare import Kind, Row
    from nsml.view.series import Series

Groups: TypeAlias = "Mapping[str, Sequence[Series]]"
LEAST_LINES: Final = 18
"""Of a terminal with room below the matrix, too."""


class CompareScreen(ChartScreen):
    """Compares sessions by id, the first one as the baseline."""

    topics = (Topic.SESSIONS, Topic.SERIES)
    DEFAULT_CSS: ClassVar[str] = """
    CompareScreen {
        #same, #state, #below-state, #command { height: 1; color: $text-muted; }
        #keys { height: 1; display: none; }
        #error { height: auto; color: $text-error; display: none; }
        #matrix { height: auto; min-height: 2; max-height: 50%; }
        DiffView { display: none; }
        &.-code DiffView { display: block; }
        &.-code Charts { display: none; }
        &.-low Charts, &.-low DiffView, &.-low #below-state { display: none; }
        &.-low #matrix { height: 1fr; max-height: 100%; }
        &.-low.-below #matrix { display: none; }
        &.-low.-below #below-state { display: block; }
        &.-low.-below.-code DiffView { display: block; }
        &.-low.-below.-plot Charts { display: block; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("b", "baseline", "Baseline", id="compare.baseline"),
        Binding("o", "order", "Sort", id="compare.order"),
        Binding("right,l", "aside(1)", "Columns", show=False, id="compare.right"),
        Binding("left,h", "aside(-1)", "Columns before", show=False, id="compare.left"),
        Binding("p", "below('plot')", "Plot", id="compare.plot"),
        Binding("c", "below('code')", "Code", id="compare.code"),
        Binding("slash", "filter", "Seek", key_display="/", id="compare.filter"),
        Binding("A", "mean", "Mean", show=False, id="compare.mean"),
        Binding("I", "ignore", "Leave columns out", show=False, id="compare.ignore"),
        Binding(
            "right_square_bracket",
            "file(1)",
            "Next file",
            show=False,
            key_display="]",
            id="compare.file-next",
        ),
        Binding(
            "left_square_bracket",
            "file(-1)",
            "File before",
            show=False,
            key_display="[",
            id="compare.file-before",
        ),
    ]

    def __init__(self, session_ids: Sequence[str]) -> None:
        super().__init__()
        self._ids = tuple(session_ids)
        self._baseline = self._ids[0]
        self._aside = 0
        self._order: tuple[Kind, str, bool] | None = None
        self._sessions: list[Session] = []
        self._configs: Mapping[str, ReportedConfig] = {}
        self._rows: list[Row] = []
        self._sought: re.Pattern[str] = re.compile("")
        self._differing: list[Row] = []
        self._same: list[Row] = []
        self._files: list[int] = []
        self._is_mean = False
        self._spread: tuple[Groups, Groups] = ({}, {})

    def body(self) -> ComposeResult:
        """The matrix, and the pane below it."""
        yield Static(id="same")
        yield Static(id="state")
        yield Field(placeholder="lr|batch: what the names of columns have", id="keys", compact=True)
        yield Static(id="error")
        yield Table((), key=lambda one: one.id, clock=self.dashboard.clock.time, id="matrix")
        yield Static(id="below-state")
        yield Charts()
        yield DiffView()
        yield Static(id="command")

    def on_mount(self) -> None:
        """Focus the matrix."""
        super().on_mount()
        self.add_class("-plot")
        self.table.focus()

    @property
    def table(self) -> Table[Session]:
        """The matrix."""
        return self.query_one("#matrix", Table)

    @property
    def baseline(self) -> Session | None:
        """The session to compare with; the first if it was removed. None: all were."""
        known = (one for one in self._sessions if one.id == self._baseline)
        return next(known, self._sessions[0] if self._sessions else None)

    @property
    def is_code(self) -> bool:
        """Whether the code is below, not the charts."""
        return self.has_class("-code")

    def chosen(self) -> Sequence[Session]:
        """The session under the cursor."""
        return [self.table.current] if self.table.current else []

    def command(self) -> tuple[str, str]:
        """Return the command that shows the differences."""
        names = [one.name for one in self._sessions]
        if self.is_code and (pair := self._compared()):
            names = [one.name for one in pair]
        return shell_line(["nsml", "diff", *names, *(["--code"] if self.is_code else [])]), ""

    # Drawing

    def draw(self) -> None:
        """Draw matrix and pane below."""
        self._know()
        self.dashboard.look_at(*self._sessions)
        self._matrix()
        self._below()

    def _know(self) -> None:
        """Update the sessions; their common values are computed again if one has changed."""
        rows = filter(None, map(self.model.row, self._ids))
        sessions = [row.session for row in rows]
        received = self.model.shown.detail(ConfigReceived)
        configs = received.configs if received is not None else self._configs
        if (
            configs is not self._configs
            or len(sessions) != len(self._sessions)
            or any(one is not other for one, other in zip(sessions, self._sessions, strict=True))
        ):
            self._sessions, self._configs = sessions, configs
            self._rows, self._same = compared(sessions, configs)
            self._choose()

    def _choose(self) -> None:
        """Select the keys that match and are not ignored."""
        ignored = set(self.dashboard.preferences.compare.ignored)
        sought = self._sought.search
        self._differing = [
            row
            for row in self._rows
            if _name(row) not in ignored and (sought(row.title) or sought(row.key))
        ]

    def _matrix(self) -> None:
        table, baseline = self.table, self.baseline
        table.none = self.none(
            Topic.SESSIONS, f"they were removed: {self.key_of('charts.back')} leads back"
        )
        self._aside = min(self._aside, max(len(self._differing) - 1, 0))
        if baseline is None:
            table.show(())
        else:
            shown = columns(self._sessions, self._differing[self._aside :], baseline)
            table.show(self._ordered(), columns=shown)
            table.mark({baseline.id})
        width = self.size.width - 1
        same = f"the same ({len(self._same)}): {same_text(self._same)}" if self._same else ""
        self._say("#same", visible(same or "no values in common"))
        self._say("#state", self._state())
        command, _ = self.command()
        self._say("#command", f"$ {fit(visible(command), width - 2)}")

    def _state(self) -> str:
        table, differing = self.table, self._differing
        parts = [counted(len(self._sessions), "session")]
        lacking = sum(map(is_short, self._sessions))
        parts += [f"{counted(lacking, 'command')} not complete yet"] if lacking else []
        gone = len(self._ids) - len(self._sessions)
        parts += [f"{gone} removed"] if gone else []
        differ = "differs" if len(differing) == 1 else "differ"
        many = f"{counted(len(differing), 'column')} {differ}"
        sought = visible(self._sought.pattern)
        found = many if differing else f"no column has {sought}" if sought else "nothing differs"
        parts.append(found)
        parts += [f"columns: {sought}"] if sought and differing else []
        ignored = set(self.dashboard.preferences.compare.ignored) & set(map(_name, self._rows))
        parts += [f"{len(ignored)} left out: {self.key_of('compare.ignore')}"] if ignored else []
        seen = sum(map(is_key, table.shown_columns)) if self._sessions else 0
        left = len(differing) - self._aside - seen
        parts += [f"← {self._aside} more"] if self._aside else []
        parts += [f"{left} more →"] if left > 0 else []
        if self._order:
            kind, key, is_down = self._order
            key = next((one.title for one in self._rows if (one.kind, one.key) == (kind, key)), key)
            parts.append(f"by {visible(key)}, {'greatest' if is_down else 'least'} first")
        if baseline := self.baseline:
            parts.append(f"✓ baseline {visible(baseline.name)}")
        return " · ".join(parts)

    def _say(self, where: str, text: str) -> None:
        line = fit(text, max(self.size.width - 1, 1))
        self.query_one(where, Static).update(Text(f" {line}"))

    def _ordered(self) -> list[Session]:
        if self._order:
            *which, is_down = self._order
            for row in self._differing:
                if [row.kind, row.key] == which:
                    return ordered(self._sessions, row, is_down=is_down)
        return self._sessions

    def _below(self) -> None:
        if self.is_code:
            self._code()
        else:
            self._charts()

    def _charts(self) -> None:
        shown, charts, current = self.model.shown, self.query_one(Charts), self.table.current
        groups, crowd, none = shown.chart_query.of(shown.groups or {}), None, ""
        is_mean = self._is_mean and bool(groups)
        if is_mean:
            if self._spread[0] is not groups and self._spread[0] != groups:
                width = max(charts.size.width, 2)
                means = {name: spread(lines, places=width) for name, lines in groups.items()}
                self._spread = groups, {name: lines for name, lines in means.items() if lines}
            groups = self._spread[1]
        if groups and current is not None and not is_mean:
            places = {one.id: place for place, one in enumerate(self._sessions)}
            owners = {
                name: [places.get(one, 0) for one in ids] for name, ids in shown.owners.items()
            }
            notes = tuple(map(visible, labels(self._sessions, self._differing)))
            crowd = Crowd(owners, places.get(current.id, 0), notes)
        elif self._sessions and not groups:
            nothing = "loading..." if shown.groups is None else "none of them reported anything"
            none = self.none(Topic.SERIES, nothing)
        charts.draw(groups, axis=shown.chart_query.axis, none=none, crowd=crowd)
        whose = []
        if crowd:
            is_drawn = any(crowd.front in some for some in crowd.owners.values())
            whose = [f"{letter(crowd.front)} {'bright' if is_drawn else 'reported nothing'}"]
        whose += ["letters: above"] if crowd and len(self._sessions) > MOST_NAMED else []
        whose += (
            [f"mean and standard deviation of all: {self.key_of('compare.mean')}"]
            if is_mean
            else []
        )
        self._say("#below-state", " · ".join([self.chart_words(), *whose]))

    def _compared(self) -> tuple[Session, Session] | None:
        """Return two sessions to compare code: the baseline, and the one under the cursor, else the first other one."""
        baseline, current = self.baseline, self.table.current
        if baseline is None or current is None:
            return None
        if baseline.id == current.id:
            current = next((one for one in self._ordered() if one.id != baseline.id), None)
        return None if current is None else (baseline, current)

    def _code(self) -> None:
        pair, view = self._compared(), self.query_one(DiffView)
        if pair is None:
            view.show((), none="there is no other one")
            self._say("#below-state", "code")
            return
        which = f"code of {visible(pair[1].name)}"
        if (pair[0].id, pair[1].id) != self.model.shown.pair:
            view.action_first()
            self.dashboard.compare_code(*pair)
        received = self.model.shown.code
        if received is None:
            view.show((), none=self.none(Topic.CODE, "loading..."))
            self._say("#below-state", which)
            return
        texts = [text_of(one) for one in received.files]
        self._files = [0, *accumulate(map(len, texts))][:-1]
        lines = list(chain.from_iterable(texts))
        view.show(lines, none="no file differs")
        words = total_text(received.files, received.same)
        self._say(
            "#below-state",
            f"{which} · {words}" + (" · ] [ next and previous file, tab scrolls" if lines else ""),
        )

    # Key actions

    def on_table_moved(self) -> None:
        """Bring its lines to the front, or compare its code."""
        self._matrix()
        self._below()

    def on_table_chosen(self) -> None:
        """Open it."""
        for session in self.chosen():
            self.dashboard.open_session(session)

    def action_back(self) -> None:
        """Clear the search; else leave the pane below, if alone; else the screen."""
        field = self.query_one("#keys", Input)
        if field.display or field.value:
            field.display, field.value = False, ""
            self.table.focus()
        elif self.has_class("-low") and self.has_class("-below"):
            self.remove_class("-below")
            self.table.focus()
        else:
            super().action_back()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """File keys need code below."""
        if action == "file" and not self.is_code:
            return False
        return super().check_action(action, parameters)

    def action_filter(self) -> None:
        """Ask for a search in keys."""
        field = self.query_one("#keys", Input)
        field.display = True  # at once: the next keys go there
        self.set_focus(field)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter keys while typing; an invalid expression keeps the last valid one."""
        error = self.query_one("#error", Static)
        error.display = False
        try:
            self._sought = re.compile(event.value, re.IGNORECASE)
        except (re.error, OverflowError, RecursionError) as wrong:
            # Huge counts and deep nesting raise others.
            error.display = True
            set_text(error, Text(f" no regular expression: {visible(str(wrong))}"))
        self._aside = 0
        self._choose()
        self.redraw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter, if it is valid."""
        if self.query_one("#error", Static).display:
            return
        event.input.display = False
        self.table.focus()

    def action_mean(self) -> None:
        """Show the mean of all with its standard deviation, or their lines again."""
        self._is_mean = not self._is_mean
        self.redraw()

    def action_ignore(self) -> None:
        """Choose the keys whose differences are ignored, and save them."""

        def go(keys: tuple[str, ...] | None) -> None:
            if keys is None:
                return
            # Ignored keys that these sessions lack stay ignored.
            here = set(map(_name, self._rows))
            others = [key for key in preferences.compare.ignored if key not in here]
            compare = ComparePreferences(ignored=(*others, *keys))
            self.dashboard.set_preferences(
                msgspec.structs.replace(self.dashboard.preferences, compare=compare)
            )
            self._choose()
            self.redraw()

        preferences = self.dashboard.preferences
        choices = [Choice(_name(row), f"{row.title}  ({row.kind})") for row in self._rows]
        question = "Columns that are left out"
        self.app.push_screen(
            Picker(question, choices, chosen=preferences.compare.ignored, several=True), go
        )

    def action_file(self, by: int) -> None:
        """Scroll to the next file, or the previous one."""
        view = self.query_one(DiffView)
        if by > 0:
            place = next((one for one in self._files if one > view.top), None)
        else:
            place = next((one for one in reversed(self._files) if one < view.top), None)
        if place is None:
            self.app.bell()
        else:
            view.scroll_to(y=place, animate=False, force=True)

    def action_baseline(self) -> None:
        """Make the session under the cursor the baseline."""
        for session in self.chosen():
            self._baseline = session.id
            self.redraw()

    def action_order(self) -> None:
        """Sort by the first shown column: ascending, descending, then as marked."""
        if not self._differing:
            return
        row = self._differing[self._aside]
        up, down = (row.kind, row.key, False), (row.kind, row.key, True)
        self._order = down if self._order == up else None if self._order == down else up
        self.redraw()

    def action_aside(self, by: int) -> None:
        """Start with the next column, or the previous one."""
        self._aside = min(max(self._aside + by, 0), max(len(self._differing) - 1, 0))
        self.redraw()

    def action_below(self, what: str) -> None:
        """Show charts or code below the matrix; if only one fits, in its place, or the matrix again."""
        self.set_class(not (self.has_class("-below") and self.has_class(f"-{what}")), "-below")
        self.set_class(what == "code", "-code")
        self.set_class(what == "plot", "-plot")
        self.redraw()

    def on_resize(self, event: events.Resize) -> None:
        """Show what fits."""
        self.set_class(event.size.height < LEAST_LINES, "-low")
        self.call_after_refresh(self.redraw)


def _name(row: Row) -> str:
    return f"{row.kind} {row.key}"
