"""One session: its state, series, output and arguments."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final

from rich.text import Text
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.css.query import NoMatches
from textual.widgets import Input, Static, TabbedContent, TabPane

from nsml.client.streams import ENDED_STATES
from nsml.common.shell import option_words, shell_line, shell_note
from nsml.common.text import fit_middle, folded, visible
from nsml.common.units import counted, size_text
from nsml.v1 import sessions_pb2 as pb
from nsml.view import session_status as explained
from nsml.view.complete_sessions import is_short
from nsml.view.program_changes import RUNS, is_held, open_change
from nsml.view.progress import with_newer_progress
from nsml.view.sessions import (
    command_words,
    end_text,
    repeat_words,
    state_text,
    summary_text,
    why_text,
    word_of,
)
from tui import appearance
from tui.hints import key_of
from tui.model import TAIL_LINES
from tui.screens.charting import CHART_ACTIONS, ChartScreen, draw_charts
from tui.screens.picking import Choice, Picker
from tui.screens.tabs.arguments import ArgumentsTab
from tui.screens.tabs.devices import DevicesTab
from tui.screens.tabs.events import EventsTab
from tui.screens.tabs.files import FilesTab
from tui.screens.tabs.knobs import KnobsTab
from tui.screens.tabs.media import MediaTab
from tui.screens.tabs.models import ModelsTab
from tui.screens.tabs.processes import ProcessesTab
from tui.screens.tabs.stacks import StacksTab
from tui.screens.tabs.tab import SessionTab
from tui.sources import Topic
from tui.widgets.charts import Charts
from tui.widgets.field import Field
from tui.widgets.log_view import LogView
from tui.widgets.static import set_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from nsml.v1.sessions_pb2 import Session
    from tui.model import Detail, Row
    from tui.screens.frame import Frame

TABS: Final[tuple[type[SessionTab], ...]] = (
    ArgumentsTab,
    ModelsTab,
    FilesTab,
    MediaTab,
    EventsTab,
    DevicesTab,
    KnobsTab,
    ProcessesTab,
    StacksTab,
)
"""After the overview, the charts and the log."""


def draw_log(frame: Frame, log: LogView, row: Row | None) -> None:
    """Show a session's log."""
    shown = frame.model.shown
    lines: Sequence[str] = () if row is None else shown.lines
    if row is not None and shown.unended:
        lines = [*lines, *shown.unended.split("\n")]
    none = "" if row is None else frame.none(Topic.LOG, "nothing was printed")
    log.wrap(is_on=frame.dashboard.preferences.log.is_wrapped)
    log.show(lines, first=shown.first, none=none)


def explanation(frame: Frame, session: Session) -> list[str]:
    """Describe the state of a session, and why."""
    answer = frame.model.shown.explanation
    waiting = answer.waiting if answer is not None and answer.HasField("waiting") else None
    is_live = session.state not in ENDED_STATES
    if answer is not None and is_live and answer.session.revision >= session.revision:
        session = with_newer_progress(answer.session, session)
    found = explained.lines(session, waiting, frame.dashboard.clock.time())
    return [visible(line) for line in found]


class LogBelow(LogView):
    """The log of a preview, which pauses only while focused: nothing beside it says that it is paused."""

    def on_blur(self) -> None:
        """Follow its end again."""
        self.action_follow()


class Preview(Horizontal):
    """Charts of the session under the cursor, beside the end of its log; after a failure the reason, above both."""

    DEFAULT_CSS: ClassVar[str] = """
    Preview .ending { dock: top; height: auto; max-height: 3; color: $text-error; }
    """
    _shown = ""

    def compose(self) -> ComposeResult:
        """Charts and log."""
        yield Static(classes="ending")
        charts = Charts()
        charts.more_by = f"in its own screen: {key_of(self.app, 'table.open')}"
        yield charts
        yield LogBelow()
        yield Static(classes="words")

    def draw(self, frame: Frame, row: Row | None) -> None:
        """Show the session: if it is queued, why."""
        waits = row is not None and row.session.state == pb.SESSION_STATE_QUEUED
        charts, log = self.query_one(Charts), self.query_one(LogView)
        words, ending = self.query_one(".words", Static), self.query_one(".ending", Static)
        if row is not None and row.session.id != self._shown:
            self._shown = row.session.id
            log.action_follow()
        why = visible(why_text(row.session)) if row is not None else ""
        # A cut message keeps its end, which says what went wrong.
        set_text(ending, Text(fit_middle(why, 2 * max(self.content_size.width, 1))))
        ending.display = why != ""
        charts.display, log.display, words.display = not waits, not waits, waits
        if row is not None and waits:
            lines = explanation(frame, row.session)
            room = self.content_size.width
            set_text(words, Text("\n".join(part for line in lines for part in folded(line, room))))
            return
        draw_charts(frame, charts, row)
        draw_log(frame, log, row)


class Panes(TabbedContent):
    """Tabs whose active pane gets the focus. Textual activates the pane that got it: one that got it late came back."""

    def _on_tab_pane_focused(self, event: TabPane.Focused) -> None:
        event.stop()
        event.prevent_default()


class SessionScreen(ChartScreen):
    """The session with an id."""

    topics = (Topic.SESSIONS, Topic.SERIES, Topic.LOG)
    DEFAULT_CSS: ClassVar[str] = """
    SessionScreen {
        #title { height: 1; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }
        .words { height: auto; padding: 1; }
        .head { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
        .state { height: 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
        TabbedContent, TabPane { height: 1fr; padding: 0; }
        #search { height: 1; display: none; }
        Tab { padding: 0 1 0 0; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "tab('overview')", "Overview", show=False, id="session.overview"),
        Binding("p", "tab('plot')", "Plot", show=False, id="session.plot"),
        Binding("l", "tab('logs')", "Logs", show=False, id="session.logs"),
        Binding("a", "tab('args')", "Args", show=False, id="session.args"),
        Binding("M", "tab('models')", "Models", show=False, id="session.models"),
        Binding("c", "tab('files')", "Files", show=False, id="session.files"),
        Binding("I", "tab('media')", "Media", show=False, id="session.media"),
        Binding("K", "tab('knobs')", "Knobs", show=False, id="session.knobs"),
        Binding("W", "tab('processes')", "Processes", show=False, id="session.processes"),
        Binding("b", "tab('stacks')", "Stacks", show=False, id="session.stacks"),
        Binding("e", "tab('events')", "Events", show=False, id="session.events"),
        Binding("u", "tab('gpu')", "GPU", show=False, id="session.gpu"),
        Binding("t", "turn(1)", "Next tab", id="session.tab-next"),
        Binding("T", "turn(-1)", "Tab before", show=False, id="session.tab-before"),
        Binding("z", "hold", "Pause/continue", id="session.hold"),
        Binding("S", "set_knob", "Set knobs", id="session.set"),
        Binding("slash", "search", "Search log", key_display="/", id="log.search"),
        Binding("r", "rank", "Rank", id="log.rank"),
        Binding("ctrl+k", "stop", "Stop", id="session.stop"),
        Binding("ctrl+d", "remove", "Remove", show=False, id="session.remove"),
        Binding("m", "memo", "Memo", id="session.memo"),
        Binding("s", "shell", "Shell", show=False, id="session.shell"),
        Binding("x", "evaluate", "Python in it", show=False, id="session.evaluate"),
        Binding("F", "forward", "Forward port", show=False, id="session.forward"),
    ]

    def __init__(self, session_id: str, *, name_of_session: str, tab: str = "") -> None:
        super().__init__()
        self._session_id = session_id
        self._called = name_of_session
        self._first_tab = tab
        self._offered: tuple[object, ...] = ()
        """State that decides which keys are offered."""

    def body(self) -> ComposeResult:
        """The tabs."""
        yield Static(id="title")
        with Panes(initial=self._first_tab, id="tabs"):
            with TabPane("Overview", id="overview"), VerticalScroll(can_focus=True):
                yield Static(id="words", classes="words")
            with TabPane("Plot", id="plot"):
                yield Charts()
                yield Static(id="plot-state", classes="state")
            with TabPane("Logs", id="logs"):
                yield LogView()
                yield Field(placeholder="a text", id="search", compact=True)
                yield Static(id="log-state", classes="state")
            for tab in TABS:
                yield tab()

    @property
    def tab(self) -> SessionTab | None:
        """The tab in front; None: overview, charts or log, or nothing yet."""
        panes = self._panes
        with suppress(
            NoMatches
        ):  # a pane is there later than the name of the tab in front, and gone earlier
            pane = panes.active_pane if panes is not None else None
            return pane if isinstance(pane, SessionTab) else None
        return None

    @property
    def _panes(self) -> TabbedContent | None:
        """The tabs; None until they exist. Read for each key of the screen: `query` would walk all widgets."""
        return self.query_one_optional("#tabs", TabbedContent)

    def details(self) -> Sequence[Detail]:
        """Data of the tab in front."""
        row = self.row
        return self.tab.details(row.session) if self.tab is not None and row is not None else ()

    def command(self) -> tuple[str, str]:
        """The command equivalent to the tab in front."""
        row, panes = self.row, self._panes
        if row is None or panes is None:
            return "", ""
        name, rank = row.session.name, self.model.shown.rank
        match panes.active:
            case "plot":
                return self.plot_command(name)
            case "overview":
                words: Sequence[str] = ("nsml", "status", "--explain", name)
            case "logs":
                words = ("nsml", "logs", "-f", name, *(("--rank", str(rank)) if rank else ()))
            case _:
                words = self.tab.command(row.session) if self.tab is not None else ()
        return shell_line(words), ""

    def is_of(self, session: Session) -> bool:
        """Whether it shows this one."""
        return session.id == self._session_id

    @property
    def row(self) -> Row | None:
        """The session; None: it is gone."""
        return self.model.row(self._session_id)

    def chosen(self) -> Sequence[Session]:
        """The one."""
        return [self.row.session] if self.row else []

    def draw(self) -> None:
        """Show the session, whatever the screen below has shown."""
        self.dashboard.look_at(*self.chosen())
        row = self.row
        title = Text(f" {visible(self._called)} was removed" if row is None else "")
        if row is not None:
            session = row.session
            self.dashboard.complete([session])  # repeating it needs all of it
            self._called = session.name
            word = word_of(session)
            title.append(f" {visible(session.name)}  ")
            title.append(visible(state_text(session)), appearance.style(self.app, word.colour))
            title.append(f"  {visible(session.memo)}")
            words = self.query_one("#words", Static)
            room = words.content_size.width
            lines = [part for line in self._overview(session) for part in folded(line, room)]
            set_text(words, Text("\n".join(lines)))
        set_text(self.query_one("#title", Static), title)
        draw_charts(self, self.query_one(Charts), row)
        draw_log(self, self.query_one(LogView), row)
        self._draw_log_state()
        set_text(self.query_one("#plot-state", Static), Text(f" {self.chart_words()}"))
        if self.tab is not None and row is not None:
            self.subscribe_tab()
            self.tab.draw(self, row.session)
        offered = self._runs, bool(row and open_change(row.session)), *self.key_titles().values()
        if self._offered != offered:
            self._offered = offered
            self.refresh_bindings()

    def _draw_log_state(self) -> None:
        """Show below the log its matches, whether it follows the end, and how much is loaded."""
        row, shown, log = self.row, self.model.shown, self.query_one(LogView)
        parts = [log.found_words]
        parts.append(_log_words(row, self.key_of("log.follow"), is_following=log.is_following))
        count = shown.first + len(shown.lines)
        # The copied command has the name and the rank.
        tail = f"last {count:,} lines, all: $ nsml logs"
        parts.append(tail if count >= TAIL_LINES else counted(count, "line"))
        if row is not None and row.session.spec.replica_count > 1:
            parts.append(f"of rank {shown.rank}: {self.key_of('log.rank')} chooses another")
        if shown.missing_bytes:
            parts.append(f"{size_text(shown.missing_bytes)} lost")
        if row is not None and shown.attempt > 1:
            earlier = ["nsml", "logs", row.session.name, "--attempt", str(shown.attempt - 1)]
            rank = ["--rank", str(shown.rank)] if shown.rank else []
            parts.append(f"attempt {shown.attempt}, before it: $ {shell_line([*earlier, *rank])}")
        set_text(self.query_one("#log-state", Static), Text(" " + " · ".join(filter(None, parts))))

    def on_log_view_changed(self) -> None:
        """Show it."""
        self._draw_log_state()

    def _overview(self, session: Session) -> list[str]:
        lines = explanation(self, session)
        for title, text in (
            ("end", "" if session.end.message else end_text(session)),
            ("summary", summary_text(session)),
            *explained.course(session, self.dashboard.clock.time()),
            ("args", shell_line(command_words(session))),
            ("memo", session.memo),
            ("project", session.project),
            ("id", session.id),
            ("again", _again(session)),
            ("note", "" if is_short(session) else shell_note(repeat_words(session))),
        ):
            if text:
                lines.append(visible(f"  {title}: {text}"))
        return lines

    # Key actions

    def action_back(self) -> None:
        """Close the search, or the screen."""
        search = self.query_one_optional("#search", Input)
        if search is not None and search.display:
            search.display = False
            self.query_one(LogView).focus()
        elif self.tab is None or not self.tab.back():
            super().action_back()

    def action_tab(self, name: str) -> None:
        """Switch the tab, if there are tabs: keys may come before them, or while the screen goes."""
        if (panes := self._panes) is not None:
            panes.active = name

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        """Focus the content of the tab, and receive its data."""
        if event.pane.id == "logs":
            search = self.query_one("#search", Input)
            (search if search.display else self.query_one(LogView)).focus()
        elif self.tab is not None and (front := self.tab.front()) is not None:
            front.focus()
        self.refresh_bindings()
        self.subscribe_tab()
        self.redraw()

    def subscribe_tab(self) -> None:
        """Receive the data of the tab in front."""
        if self.is_in_front:
            self.dashboard.subscribe_details(*self.details())

    def action_turn(self, by: int) -> None:
        """The next tab, or the previous one."""
        if (panes := self._panes) is not None and panes.active:
            ids = [pane.id for pane in panes.query(TabPane) if pane.id]
            panes.active = ids[(ids.index(panes.active) + by) % len(ids)]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable chart keys only on charts; browsers download no files."""
        if action in CHART_ACTIONS and (panes := self._panes) and panes.active != "plot":
            return False
        if action == "rank" and not self._has_ranks():
            return False
        if action == "search" and self.tab is not None:  # it has no log
            return False
        if action in {"hold", "set_knob"} and not self._runs:
            return False
        if action == "pull" and self.app.is_web:
            return False
        return super().check_action(action, parameters)

    def action_span(self) -> None:
        """Switch the time span of its devices."""
        if isinstance(self.tab, DevicesTab) and self.row is not None:
            self.tab.turn(self.row.session)
            self.subscribe_tab()
            self.redraw()

    def action_pull(self) -> None:
        """Fetch the checkpoint under the cursor."""
        if isinstance(self.tab, ModelsTab):
            self.dashboard.actions.pull(self.tab.current)

    def _has_ranks(self) -> bool:
        """Whether log or processes in front are of one of several replicas."""
        panes, row = self._panes, self.row
        is_front = panes is not None and panes.active in {"logs", ProcessesTab.key_of}
        return is_front and row is not None and row.session.spec.replica_count > 1

    @property
    def _runs(self) -> bool:
        """Whether its program can be changed."""
        return self.row is not None and self.row.session.state in RUNS

    def key_titles(self) -> Mapping[str, str]:
        """Whether the key pauses or continues."""
        row = self.row
        hold = "Continue" if row is not None and is_held(row.session) else "Pause"
        return {"hold": hold, "set_knob": "Set"}

    def action_hold(self) -> None:
        """Pause or continue its program, after confirmation."""
        self.dashboard.actions.hold(self.chosen())

    def action_set_knob(self) -> None:
        """Ask for new values of its knobs."""
        if not self.dashboard.refuses_action("set"):
            self.action_tab("knobs")
            self.query_one(KnobsTab).ask()

    def action_rank(self) -> None:
        """Choose the replica whose log and processes are shown."""
        if (row := self.row) is None:
            return
        nodes = {one.rank: one.node for one in row.session.replicas}
        choices = [
            Choice(str(rank), f"rank {rank}  {nodes.get(rank, '')}")
            for rank in range(row.session.spec.replica_count)
        ]

        def go(keys: tuple[str, ...] | None) -> None:
            if keys:
                self.dashboard.log_of(int(keys[0]))
                self.subscribe_tab()

        chosen = [str(self.model.shown.rank)]
        self.app.push_screen(Picker("Replica", choices, chosen=chosen), go)

    def action_shell(self) -> None:
        """Start a shell in it; with a replica's log in front, in that one."""
        self.dashboard.actions.enter(self.chosen(), rank=self._rank_in_front)

    def action_evaluate(self) -> None:
        """Ask for Python that its program evaluates; with a replica's log in front, that one's."""
        self.dashboard.actions.evaluate(self.chosen(), rank=self._rank_in_front)

    @property
    def _rank_in_front(self) -> int:
        return self.model.shown.rank if self._has_ranks() else 0

    def action_search(self) -> None:
        """Ask for a text to search in the log."""
        self.action_tab("logs")
        search = self.query_one("#search", Input)
        search.display = True  # at once: the next keys go there
        self.set_focus(search)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Mark matches while typing."""
        self.query_one(LogView).seek(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go to a match."""
        event.input.display = False
        log = self.query_one(LogView)
        log.focus()
        log.action_find(-1 if log.is_following else 1)
        if event.value and not log.has_found:
            row = self.row
            name = row.session.name if row else "SESSION"
            command = shell_line(
                ["nsml", "logs", name, "-F", "-i", *option_words("--grep", event.value)]
            )
            self.dashboard.say(f"not in the loaded lines · search all: $ {command}")


def _again(session: Session) -> str:
    """Return the command that repeats it, or shows it if data is missing."""
    words = ["nsml", "command", session.name] if is_short(session) else repeat_words(session)
    return shell_line(words)


def _log_words(row: Row | None, follow: str, *, is_following: bool) -> str:
    if row is None or row.session.state in ENDED_STATES:
        return "ended"
    return "following" if is_following else f"paused: {follow} follows again"
