"""The dashboard: its screens and key actions."""

from __future__ import annotations

from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final

from textual.app import SystemCommand
from textual.binding import Binding

from nsml.common.clock import in_thread
from nsml.common.shell import posix_line
from tui.actions import Actions
from tui.hints import key_of
from tui.prompt import Prompt
from tui.screens.frame import LIVE_ONLY_ACTIONS, NAMES, Frame
from tui.screens.modal import Modal
from tui.screens.opening import Opening
from tui.shell import Shell

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from textual.binding import BindingType
    from textual.command import Provider
    from textual.screen import Screen

    from nsml.v1.boards_pb2 import Board
    from nsml.v1.competitions_pb2 import Competition
    from nsml.v1.sessions_pb2 import Session

LEAST_COMPARED: Final = 2
MOST_COMPARED: Final = 1_000
"""Limit of one request for series."""
MOUSE: Final = (1000, 1003, 1015, 1006)
"""Terminal modes that report the mouse."""
OPENING: Final = "opening"
_IMPORTED_LATER: Final = (
    "nsml.client.connect",
    "tui.feed",
    "tui.preferences",
    "tui.screens.asking",
    "tui.screens.compare",
    "tui.screens.help",
    "tui.screens.modes",
    "tui.screens.session",
)
"""Not needed for the first paint."""


def _import_rest() -> None:
    for name in _IMPORTED_LATER:
        import_module(name)


def _screen(name: str) -> Frame:
    from tui.screens.modes import SCREENS

    return SCREENS[name]()


def _everything() -> type[Provider]:
    from tui.screens.palette import Everything

    return Everything


class Dashboard(Shell):
    """`nsml-tui`: see `Shell` for its parts."""

    TITLE = "nsml"
    ENABLE_COMMAND_PALETTE = True
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        OPENING: Opening,
        **{name: partial(_screen, name) for name in NAMES},
    }
    DEFAULT_MODE: ClassVar[str] = OPENING
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {_everything}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "go('sessions')", "Sessions", show=False, id="go.sessions"),
        Binding("2", "go('queue')", "Queue", show=False, id="go.queue"),
        Binding("3", "go('nodes')", "Nodes", show=False, id="go.nodes"),
        Binding("4", "go('datasets')", "Datasets", show=False, id="go.datasets"),
        Binding("5", "go('events')", "Events", show=False, id="go.events"),
        Binding("6", "go('projects')", "Projects", show=False, id="go.projects"),
        Binding("7", "go('boards')", "Boards", show=False, id="go.boards"),
        Binding("question_mark", "help", "Keys", key_display="?", id="app.help"),
        Binding("colon", "command", "Command", show=False, key_display=":", id="app.command"),
        Binding("ctrl+r", "refresh_all", "Refresh", show=False, id="app.refresh"),
        Binding("Y", "copy_command", "Copy command", show=False, id="app.copy-command"),
        Binding("ctrl+y", "copy_last", "Copy last action", show=False, id="app.copy-last"),
        Binding(
            "percent_sign", "mouse", "Mouse on/off", show=False, key_display="%", id="app.mouse"
        ),
        Binding("P", "pause", "Pause", id="story.pause"),
        Binding(
            "less_than_sign", "pace(-1)", "Slower", show=False, key_display="<", id="story.slower"
        ),
        Binding(
            "greater_than_sign", "pace(1)", "Faster", show=False, key_display=">", id="story.faster"
        ),
        Binding(
            "left_square_bracket",
            "jump(-10)",
            "Back 10s",
            show=False,
            key_display="[",
            id="story.back",
        ),
        Binding(
            "right_square_bracket", "jump(10)", "On 10s", show=False, key_display="]", id="story.on"
        ),
        Binding(
            "left_curly_bracket",
            "jump(-60)",
            "Back 1m",
            show=False,
            key_display="{",
            id="story.minute-back",
        ),
        Binding(
            "right_curly_bracket",
            "jump(60)",
            "On 1m",
            show=False,
            key_display="}",
            id="story.minute-on",
        ),
        Binding(
            "ctrl+p", "command_palette", "Palette", show=False, priority=True, id="app.palette"
        ),
        Binding("ctrl+q", "quit", "Quit", priority=True, id="app.quit"),
    ]

    async def open(self) -> None:
        """Start, after importing the rest."""
        await in_thread(_import_rest)
        await super().open()

    @cached_property
    def actions(self) -> Actions:
        """Key actions on sessions and checkpoints."""
        return Actions(self)

    @cached_property
    def prompt(self) -> Prompt:
        """The command line and the form of a new session."""
        return Prompt(self)

    def model_screen(self) -> Frame | None:
        """Return the screen in front, or visible behind it, if it shows the model."""
        screen = self.screen
        if isinstance(screen, Modal) and screen.shows_behind:
            screen = self.screen_stack[-2]
        return screen if isinstance(screen, Frame) else None

    def go(self, mode: str) -> None:
        """Switch to another screen, closing open ones."""
        while len(self.screen_stack) > 1:
            self.pop_screen()
        self.switch_mode(mode)

    def obey(self, line: str) -> None:
        """Run a command line."""
        self.prompt.obey(line)

    def ask_command(self, begun: str = "") -> None:
        """Ask for a command, starting with `begun`."""
        self.prompt.ask(begun)

    def submit(self, session: Session | None) -> None:
        """Ask for the command line of a new session, prefilled from this one."""
        self.prompt.submit(session)

    def compare(self, sessions: Sequence[Session]) -> None:
        """Compare sessions, on a screen of their own."""
        from tui.screens.compare import CompareScreen

        if len(sessions) < LEAST_COMPARED:
            mark, compare = key_of(self, "sessions.mark"), key_of(self, "sessions.compare")
            self.say(f"mark two sessions or more with {mark}, then {compare} compares them")
        elif len(sessions) > MOST_COMPARED:
            self.say(
                f"{len(sessions):,} are marked: at most {MOST_COMPARED:,} at a time", is_bad=True
            )
        else:
            self.push_screen(CompareScreen([session.id for session in sessions]))

    def show_sessions(self, filter_text: str) -> None:
        """Show the list of sessions, filtered."""
        from tui.screens.sessions import SessionsScreen

        self.go("sessions")
        if isinstance(self.screen, SessionsScreen):
            self.screen.filter_by(filter_text)

    def open_session(self, session: Session, *, tab: str = "") -> None:
        """Open the session's screen at a tab."""
        from tui.screens.session import SessionScreen

        self.look_at(session)
        is_open = isinstance(self.screen, SessionScreen) and self.screen.is_of(session)
        if not is_open or tab:  # a double Enter opens it once
            self.push_screen(SessionScreen(session.id, name_of_session=session.name, tab=tab))

    def open_board(self, board: Board) -> None:
        """Open a board's screen."""
        from tui.screens.board import BoardScreen

        if not isinstance(self.screen, BoardScreen):  # a double Enter opens it once
            self.push_screen(BoardScreen(board))

    def open_competition(self, competition: Competition) -> None:
        """Open the standings of a competition."""
        from tui.screens.standings import StandingsScreen

        if not isinstance(self.screen, StandingsScreen):
            self.push_screen(StandingsScreen(competition))

    def action_go(self, mode: str) -> None:
        """Switch to another screen, closing open ones."""
        self.go(mode)

    def action_help(self) -> None:
        """Show the active keys."""
        from tui.screens.help import HERE, Help, KeyEntry, command_lines, key_entries
        from tui.widgets.table import HIDDEN, Table

        active = self.screen.active_bindings.values()
        entries = key_entries(self, active, without=self.hidden_actions)
        if isinstance(self.focused, Table) and (hidden := self.focused.hidden_count):
            entries.insert(0, KeyEntry(HERE, f"{HIDDEN}{hidden}", "Hidden columns"))
        commands = command_lines(key_of(self, "app.command")) if self.player is None else ()
        self.push_screen(Help(entries, commands))

    @property
    def hidden_actions(self) -> Collection[str]:
        """Actions that do nothing with the shown data, and are hidden."""
        return LIVE_ONLY_ACTIONS if self.player is not None else ()

    def action_refresh_all(self) -> None:
        """Request everything again."""
        if self.player is not None:
            self.player.again()
            return
        self.listen()

    def action_copy_command(self) -> None:
        """Copy the command equivalent to the screen."""
        command, lacks = self.screen.command() if isinstance(self.screen, Frame) else ("", "")
        if not command:
            self.say("the command line has nothing like this")
            return
        self.copy_to_clipboard(posix_line(command))
        notes = [f"it does not know {lacks}"] if lacks else []
        self.say("\n".join([f"copied: {command}", *notes]))

    def action_copy_last(self) -> None:
        """Copy the command of the last action."""
        self.copy(self.last_command)
        if not self.last_command:
            self.say("nothing was done yet")

    def action_mouse(self) -> None:
        """Release the mouse, so that the terminal selects text itself, or capture it again."""
        if self._driver is None:
            return
        self.has_mouse = not self.has_mouse
        self._driver.write(
            "".join(f"\x1b[?{mode}{'h' if self.has_mouse else 'l'}" for mode in MOUSE)
        )
        self._driver.flush()
        self.say(
            "the mouse is taken"
            if self.has_mouse
            else f"the mouse is the terminal's now: {key_of(self, 'app.mouse')} gives it back to nsml-tui"
        )

    def action_command(self) -> None:
        """Ask for a command."""
        self.ask_command()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield palette commands beside screens, sessions, and key actions."""
        left_out = {"Keys", "Quit"}  # these have keys
        # Browsers are sent no files; without colours, only the theme for that applies.
        left_out |= {"Screenshot"} if self.is_web else set()
        left_out |= {"Theme"} if self._appearance.is_colourless else set()
        for command in super().get_system_commands(screen):
            if command.title not in left_out:
                yield command

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable time keys only in stories, and the mouse key only in terminals."""
        if action in {"pause", "pace", "jump"} and self.player is None:
            return False
        if action == "mouse" and self.is_web:
            return False
        return super().check_action(action, parameters)

    def action_pause(self) -> None:
        """Pause or resume the story; at its end, restart it."""
        if self.player is not None:
            self.player.pause()
            self.play()

    def action_pace(self, by: int) -> None:
        """Change the speed."""
        if self.player is not None:
            self.player.pace(by)

    def action_jump(self, seconds: int) -> None:
        """Jump in the story."""
        if self.player is not None:
            is_there = self.player.jump(seconds)
            if not (is_there or self.player.is_over or self.player.is_paused):
                self.say(f"this is the beginning of the {self.player.kind}")
            self.play()
