"""The knobs of a session's running program, and the changes of the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, cast

from rich.text import Text
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widgets import Input, Static

from nsml.common.text import visible
from nsml.common.units import counted, short_moment
from nsml.view.knobs import COLUMNS, history_lines, knob_line, rows
from nsml.view.program_changes import MADE, RUNS, open_change, step_text, what
from tui.commands import CommandError, settings_of
from tui.hints import key_of
from tui.model import Detail, KnobsReceived
from tui.screens.tabs.tab import SessionTab
from tui.sources import Topic
from tui.widgets.field import Field
from tui.widgets.static import set_text
from tui.widgets.table import Table
from tui.widgets.text_view import TextView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.widget import Widget

    from nsml.v1.sessions_pb2 import Session
    from nsml.view.knobs import Knob
    from tui.screens.frame import Frame
    from tui.screens.tabs.tab import TabScreen
    from tui.shell import Shell


NONE: Final = 'its program has no knob: lr = nsml.knob("lr", 0.01) declares one'


class KnobsTab(SessionTab):
    """A table of knobs, the changes below it, and an input line for values."""

    name_of, key_of = "Knobs", "knobs"
    DEFAULT_CSS: ClassVar[str] = """
    KnobsTab {
        & Table { height: auto; min-height: 2; max-height: 50%; }
        & TextView { height: 1fr; }
        & .head { height: 1; text-style: bold; }
        & .line { height: 1; display: none; }
        & .lead { width: 5; text-style: bold; }
        & Field { width: 1fr; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "withdraw", "Withdraw", id="knobs.withdraw"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._begun = ""
        """The initial text of the line: the knob under the cursor."""
        self._asked = ""
        """The submitted line, while it is pending."""
        self._refused = ""
        """Why the line was not set."""

    def body(self) -> ComposeResult:
        """Both, and the line."""
        yield Table(COLUMNS, key=lambda knob: knob.name, clock=self.now)
        yield Static(classes="head")
        changes = TextView(has_titles=True)
        changes.is_wrapped = True
        yield changes
        with Horizontal(classes="line"):
            yield Static(" set", classes="lead")
            form = "NAME=VALUE [NAME=VALUE]... [--at STEP]"
            yield Field(placeholder=form, compact=True, select_on_focus=False)

    def details(self, session: Session) -> Sequence[Detail]:
        """Knobs of a running program; read again after each change."""
        if session.state not in RUNS:
            return ()
        made = [str(one.number) for one in session.changes if one.phase in MADE]
        return (Detail(Topic.KNOBS, made[-1] if made else ""),)

    def command(self, session: Session) -> Sequence[str]:
        """Shows the same."""
        return () if self.is_asking else ("nsml", "set", session.name)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Withdraw only pending changes."""
        if action == "withdraw" and not any(map(open_change, self._screen().chosen())):
            return False
        return super().check_action(action, parameters)

    def action_withdraw(self) -> None:
        """Withdraw the pending change, after confirmation."""
        cast("Shell", self.app).actions.withdraw(self._screen().chosen())

    @property
    def is_asking(self) -> bool:
        """Whether the input line is visible: with its field, which is removed first when the screen closes."""
        return any(line.display and line.query(Field) for line in self.query(".line"))

    def front(self) -> Widget | None:
        """The line if it is visible, else the table."""
        return self.query_one(Field if self.is_asking else Table)

    def back(self) -> bool:
        """Close the line."""
        was_asking = self.is_asking
        if was_asking:
            self._close()
        return was_asking

    def ask(self) -> None:
        """Ask for a new value of the knob under the cursor, or of any."""
        knob: Knob | None = self.query_one(Table).current
        field = self.query_one(Field)
        self._begun = f"{knob.name}=" if knob is not None else ""
        self._asked = self._refused = ""
        field.value = self._begun
        field.cursor_position = len(field.value)
        self.query_one(".line").display = True  # at once: the next keys go there
        self.screen.set_focus(field)

    def _close(self) -> None:
        had_focus = self.query_one(Field).has_focus
        self.query_one(".line").display = False
        self._asked = self._refused = ""
        if had_focus:
            self.query(Table).focus()
        self._screen().redraw()

    def _screen(self) -> TabScreen:
        return cast("TabScreen", self.screen)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Describe the typed knob."""
        event.stop()
        self._refused = ""
        self._screen().redraw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Set it, as `nsml set` does; the line stays until it is set."""
        event.stop()
        text = event.value
        if text == self._asked:
            return
        try:
            settings = settings_of(self._meant(text))
        except CommandError as error:
            self._refuse(error.message)
            return

        def taken() -> None:
            if self._awaits(text):
                self._close()

        def refused(why: str) -> bool:
            is_seen = self._awaits(text) and self.display
            if is_seen:
                self._refuse(why)
            return is_seen

        actions = cast("Shell", self.app).actions
        if actions.set_knobs(self._screen().chosen(), settings, taken=taken, refused=refused):
            self._asked, self._refused = text, ""
            self._screen().redraw()

    def _meant(self, text: str) -> str:
        """Drop the initial text if all of it was typed again after it: `lr=lr=9`."""
        begun = self._begun
        return text.removeprefix(begun) if begun and text.startswith(begun * 2) else text

    def _awaits(self, text: str) -> bool:
        """Whether the line's text is the submitted one."""
        is_there = self.is_attached and self.is_asking
        return is_there and text == self._asked == self.query_one(Field).value

    def _refuse(self, why: str) -> None:
        self._asked, self._refused = "", why
        self._screen().redraw()

    def on_table_chosen(self, event: Table.Chosen) -> None:
        """Ask for a new value of it."""
        event.stop()
        self._screen().action_set_knob()

    def draw(self, frame: Frame, session: Session) -> None:
        """Show them."""
        received = frame.model.shown.detail(KnobsReceived)
        runs = session.state in RUNS
        found = rows(session, received.knobs if received is not None and runs else {})
        table, view = self.query_one(Table), self.query_one(TextView)
        table.none = frame.none(Topic.KNOBS, NONE) if runs else "no knob was set"
        table.show(found)
        changes = session.changes
        set_text(self.query_one(".head", Static), Text("Changes, newest first" if changes else ""))
        nothing = (
            f"nothing was changed: {key_of(self.app, 'session.set')} sets a knob" if runs else ""
        )
        lines = [visible(line) for line in history_lines(changes, self.now())]
        view.show_text(lines, of=session.id, none=f"  {nothing}")
        self.say(
            frame, session, self._words(session, found, received), Topic.KNOBS if runs else None
        )

    def _words(
        self, session: Session, found: Sequence[Knob], received: KnobsReceived | None
    ) -> Sequence[str]:
        if self.is_asking:
            leave = key_of(self.app, "charts.back")
            value = self.query_one(Field).value
            if self._refused:
                return [f"not set: {visible(self._refused)}", f"{leave} leaves"]
            if value == self._asked != "":
                return ["waiting for the program", f"{leave} leaves"]
            typed = [word.partition("=")[0] for word in value.split()]
            known = {one.name: knob_line(one) for one in found}
            last = next((known[name] for name in reversed(typed) if name in known), "")
            return [last, f"enter sets · {leave} leaves"]
        words = [counted(len(found), "knob")] if found else []
        if (change := open_change(session)) is not None:
            where = step_text(change) or "a safe point"
            withdraw = key_of(self.app, "knobs.withdraw")
            words.append(f"{what(change)} waits for {where}: {withdraw} withdraws")
        elif session.state not in RUNS:
            words.append("as they were set last")
        elif received is not None:
            words.append(f"as of {short_moment(received.at, self.now(), has_seconds=True)}")
        return words
