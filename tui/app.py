"""The dashboard: what it knows, who feeds it, and what its keys do on the platform."""

from __future__ import annotations

import asyncio
import shlex
import signal
import subprocess
import sys
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from textual.app import App, ScreenStackError, SuspendNotSupported, SystemCommand
from textual.binding import Binding
from textual.css.query import NoMatches

from nsml.client.contexts import ContextError, choose, load
from nsml.client.errors import ClientError
from nsml.client.streams import ENDED_STATES
from nsml.clock import in_thread
from nsml.concurrency import TaskGroup
from nsml.view.text import visible
from nsml.view.units import counted, size_text
from tui.looks import Looks, dress, filters
from tui.model import TOPICS, Model, Refused
from tui.screens.frame import NAMES, Frame
from tui.screens.opening import Opening
from tui.sources import ALWAYS_HEARD, ASK_AGAIN_S, CLOSELY, Topic
from tui.story import STEPS_A_SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from textual.binding import BindingType
    from textual.command import Provider
    from textual.filter import LineFilter
    from textual.screen import Screen

    from nsml.client.calls import Client
    from nsml.client.content import Transfer
    from nsml.clock import Clock
    from nsml.v1.checkpoints_pb2 import Checkpoint
    from nsml.v1.sessions_pb2 import Session
    from tui.commands import Nsml, Own
    from tui.feed import Feed
    from tui.kept import Keeper, Kept
    from tui.model import ChartWish, Detail, Event
    from tui.recording import Recorder
    from tui.story import Player

REPAINTS_A_SECOND: Final = 4
AGES_EVERY: Final = 4
"""Repaints after which ages are drawn anew though nothing changed."""
PAUSE_S: Final = 0.15
"""The cursor rests for so long before a session is looked at closely."""
LEAST_COMPARED: Final = 2
MOST_COMPARED: Final = 1_000
"""Sessions whose series come by one request."""
MOUSE: Final = (1000, 1003, 1015, 1006)
"""Modes of a terminal by which it tells what the mouse does."""
MOST_ASKED: Final = 10
"""Sessions that are asked for the names of all their metrics."""
MOST_STOPPED: Final = 100
"""Sessions of one stop."""
MOST_REMOVED: Final = 100
"""Sessions of one removal."""
_MOST_PROGRAMS: Final = 6
"""Programs of a folder that are named."""
OPENING: Final = "opening"
_IMPORTED_LATER: Final = (
    "nsml.client.connect",
    "tui.feed",
    "tui.kept",
    "tui.screens.asking",
    "tui.screens.compare",
    "tui.screens.modes",
    "tui.screens.session",
)
"""What the first paint does without."""


def _import_rest() -> None:
    for name in _IMPORTED_LATER:
        import_module(name)


def _screen(name: str) -> Frame:
    from tui.screens.modes import SCREENS

    return SCREENS[name]()


Look: TypeAlias = "Callable[[Feed], Awaitable[None]]"
"""How more of one thing is heard."""


def _provider(name: str) -> type[Provider]:
    from tui.screens import palette

    found: type[Provider] = getattr(palette, name)
    return found


class Dashboard(App[None]):
    """`nsml-tui`.

    Args:
        connect: opens the platform; it need not answer.
        clock: of what is shown and waited for.
        platform: how users call it.
        recorder: takes down what is heard; None: nobody does.
        player: plays what is shown in place of a platform, which is not called then; `clock` is it.
        kept_in: the file of what is kept from one time to the next; None: nothing is.
        cli_environ: in which `nsml` talks to the same platform; None: it is not run here.
        looks: how it looks at first.
        remember: keeps the name of another theme for the next time; it may raise OSError or ContextError.
    """

    TITLE = "nsml"
    ENABLE_COMMAND_PALETTE = True
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        OPENING: Opening,
        **{name: partial(_screen, name) for name in NAMES},
    }
    DEFAULT_MODE: ClassVar[str] = OPENING
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {
        *App.COMMANDS,
        partial(_provider, "Sessions"),
        partial(_provider, "Actions"),
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "go('sessions')", "Sessions", show=False, id="go.sessions"),
        Binding("2", "go('queue')", "Queue", show=False, id="go.queue"),
        Binding("3", "go('nodes')", "Nodes", show=False, id="go.nodes"),
        Binding("4", "go('datasets')", "Datasets", show=False, id="go.datasets"),
        Binding("5", "go('events')", "Events", show=False, id="go.events"),
        Binding("6", "go('projects')", "Projects", show=False, id="go.projects"),
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

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Client]],
        *,
        clock: Clock,
        platform: str,
        recorder: Recorder | None = None,
        player: Player | None = None,
        kept_in: Path | None = None,
        cli_environ: Mapping[str, str] | None = None,
        looks: Looks | None = None,
        remember: Callable[[str], None] | None = None,
    ) -> None:
        self._looks = looks or Looks()
        # Without colours those of the terminal are left out, and not turned to greys.
        super().__init__(ansi_color=True if self._looks.is_colourless else None)
        self._filters_of_ours = filters(self._looks)
        dress(self, self._looks)
        self._remember = remember
        self._connect = connect
        self.clock = clock
        self.platform = platform
        self.player = player
        self.recorder = recorder
        self.user = player.story.user if player is not None else ""
        self.model = Model()
        self._client: Client | None = None
        self._feed: Feed | None = None
        self._wanted: frozenset[Topic] = frozenset()
        self._drawn = -1
        self._beats = 0
        self._width = self.model.shown.wish.width
        self._wish_changed: asyncio.Event | None = None
        self._awaited: set[Topic] = set()
        self._has_mouse = True
        self._last_command = ""
        self._kept_in = kept_in
        self._cli_environ = cli_environ
        self.goes_to = ""
        """The context that is to be shown next; "": none."""
        self._keeper: Keeper | None = None
        self._kept: Kept | None = None
        self.fetching = ""
        """How far what is fetched has come; "" where nothing is."""
        self._look: tuple[Topic, str, Look] | None = None

    # What is heard

    def on_mount(self) -> None:
        """Whoever ends it by a signal gets the terminal back as it was."""
        ended = partial(self.exit, return_code=128 + signal.SIGTERM)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended)

    async def open(self) -> None:
        """Begin to listen, and to draw, once the first frame is painted."""
        await in_thread(_import_rest)
        await self._remember_kept()
        if self.player is None:
            self.run_worker(self._listen(), name="feed", group="feed", exclusive=True)
        else:
            self._play()
            self.set_interval(1 / STEPS_A_SECOND, self._play)
        await self.switch_mode("sessions")
        await self.remove_mode(OPENING)
        self.set_interval(1 / REPAINTS_A_SECOND, self._beat)

    async def _remember_kept(self) -> None:
        """Learn what is kept; what cannot be read is left alone, and said."""
        from tui.kept import Keeper, KeptError

        if self._kept_in is not None:
            self._keeper = Keeper(self._kept_in)
            try:
                self._kept = await in_thread(self._keeper.load)
            except KeptError as error:
                self.say(error.message, is_bad=True)

    @property
    def kept(self) -> Kept:
        """What is kept from one time to the next."""
        if self._kept is None:
            from tui.kept import Kept

            self._kept = Kept()
        return self._kept

    def keep(self, kept: Kept) -> None:
        """Keep this from now on."""
        self._kept = kept

    def _save(self) -> None:
        from tui.kept import KeptError

        if self._keeper is not None and self._kept is not None:
            try:
                self._keeper.save(self._kept)
            except KeptError as error:
                self.say(error.message, is_bad=True)

    def on_unmount(self) -> None:
        """Keep what was chosen last."""
        self._save()

    def _play(self) -> None:
        """Show what comes next in the story."""
        if self.player is not None:
            self.model = self.player.step(self.model)

    async def _listen(self) -> None:
        while True:
            try:
                async with self._connect() as client:
                    await self._hear_all(client)
            except ContextError as error:  # what was fine at the start can be damaged by now
                self._take(Refused(Topic.CLUSTER, error.message))
                await self.clock.sleep(ASK_AGAIN_S)

    async def _hear_all(self, client: Client) -> None:
        from tui.feed import Feed

        feed = Feed(client, self._take)
        self._client, self._feed = client, feed
        self._hear(pause_s=0.0)
        self._hear_look(pause_s=0.0)
        self._hear_wanted(self._wanted, anew=self._wanted)
        self._hear_details()
        self.workers.cancel_group(self, "code")
        self.model.show_code(None)  # whoever shows it asks again
        try:
            async with TaskGroup() as group:
                group.create_task(feed.hear(ALWAYS_HEARD))
                group.create_task(self._know_user(client))
        finally:
            if self._feed is feed:  # whoever listens anew has connected already
                self._client = self._feed = None
                self.workers.cancel_group(self, "screen")
                self.workers.cancel_group(self, "details")

    def hear_screen(self, topics: Iterable[Topic]) -> None:
        """Hear what the screen in front shows, beside what always is heard; in a recording belongs everything."""
        self.look_into(None)
        wanted = frozenset(Topic if self.recorder is not None else topics)
        wanted -= ALWAYS_HEARD | CLOSELY
        if wanted != self._wanted:
            self._hear_wanted(wanted, anew=wanted - self._wanted)

    def _hear_wanted(self, wanted: frozenset[Topic], *, anew: frozenset[Topic]) -> None:
        self._wanted = wanted
        if self._feed is not None:
            self._awaited |= anew
            for topic in anew:
                self.model.ask(topic, self.clock.time())
            self.run_worker(self._feed.hear(wanted), name="screen", group="screen", exclusive=True)

    async def _know_user(self, client: Client) -> None:
        """Learn who looks; until then nothing is one's own."""
        while not self.user:
            try:
                self.user = (await client.accounts.caller()).user.name
                if self.recorder is not None:
                    self.recorder.caller(self.user, self.clock.time())
            except ClientError:
                await self.clock.sleep(1)

    def _take(self, event: Event) -> None:
        now = self.clock.time()
        is_back = self.model.comes_back(event, now)
        self.model.fold(event, now)
        if is_back:
            self.say(is_back)
        if self.recorder is not None:
            self.recorder.take(event, now)
            if self.recorder.ended:
                self.say(self.recorder.ended, is_bad=True)
                self.recorder = None
        if (topic := TOPICS.get(type(event))) in self._awaited:
            # Whoever has pressed a key for it need not wait for the next beat.
            self._awaited.discard(topic)
            self.call_later(self._draw)

    def _beat(self) -> None:
        """Draw what has changed since, and every second what has aged."""
        self._beats += 1
        is_due = self._beats % AGES_EVERY == 0
        if self.model.version != self._drawn or is_due:
            self._draw()
        if is_due:
            self._save()

    def _draw(self) -> None:
        """Draw what the model has."""
        # Of a screen that is being taken down some parts are gone.
        with suppress(NoMatches, ScreenStackError):
            if isinstance(self.screen, Frame):
                self._drawn = self.model.version
                self.screen.redraw()

    # How it looks

    @property
    def is_without_colours(self) -> bool:
        """Whether pictures are drawn in letters."""
        return self._looks.is_colourless or self._looks.is_ascii

    def get_line_filters(self) -> Sequence[LineFilter]:
        """What lines go through on their way to the terminal."""
        return [*super().get_line_filters(), *self._filters_of_ours]

    def watch_theme(self, name: str) -> None:
        """Draw in other colours, and keep them for the next time."""
        if name == self._looks.theme:
            return
        self._looks = replace(self._looks, theme=name)
        self.call_after_refresh(self._draw)
        if self._remember is None:
            return
        try:
            self._remember(name)
        except (OSError, ContextError) as error:
            self.say(f"the theme is not kept: {error}", is_bad=True)
        else:
            self.say(f"$ nsml config set theme {name}")

    # What a tab of a session shows

    def hear_details(self, *details: Detail) -> None:
        """Hear these of the session that is looked at, and nothing else that tabs show."""
        if details != self.model.shown.details:
            is_other = any(one.what for one in details)
            self.model.show_details(details, self.clock.time())
            self._hear_details(pause_s=PAUSE_S if is_other else 0.0)

    def _hear_details(self, *, pause_s: float = 0.0) -> None:
        self.run_worker(self._details(pause_s), name="details", group="details", exclusive=True)

    async def _details(self, pause_s: float) -> None:
        await self.clock.sleep(pause_s)
        shown, feed = self.model.shown, self._feed
        row = self.model.row(shown.session_ids[0]) if len(shown.session_ids) == 1 else None
        if row is None or feed is None:
            return
        async with TaskGroup() as group:
            for detail in shown.details:
                self._awaited.add(detail.topic)
                medium = shown.medium(detail.what)
                group.create_task(feed.detail(row.session, detail, medium))

    # Which sessions are looked at closely

    def look_at(self, *sessions: Session, pause_s: float = PAUSE_S) -> None:
        """Hear what this one reports and prints, once the cursor rests on it; of several, what they report."""
        ids = tuple(session.id for session in sessions)
        if not ids or ids == self.model.shown.session_ids:
            return
        self.model.show(*ids)
        axis = self.kept.charts.axis
        self.model.shown.want(replace(self.model.shown.wish, width=self._width, axis=axis))
        self._hear(pause_s=pause_s)

    def look_into(self, look: tuple[Topic, str, Look] | None) -> None:
        """Hear more of one thing beside sessions (topic, name and how), once the cursor rests on it; None: of none."""
        if look is None:
            self._look = None
            self.workers.cancel_group(self, "look")
            self.model.looks.clear()
        elif self.model.looks.get(look[0]) != look[1]:
            self._look = look
            self.model.look(look[0], look[1])
            self._awaited.add(look[0])
            self._hear_look()

    def _hear_look(self, *, pause_s: float = PAUSE_S) -> None:
        async def hear() -> None:
            await self.clock.sleep(pause_s)
            if self._look is not None and self._feed is not None:
                await self._look[2](self._feed)

        if self._look is not None:
            self.run_worker(hear(), name="look", group="look", exclusive=True)

    def _hear(self, *, pause_s: float) -> None:
        self.run_worker(self._closely(pause_s), name="shown", group="shown", exclusive=True)

    async def _closely(self, pause_s: float) -> None:
        await self.clock.sleep(pause_s)
        rows = map(self.model.row, self.model.shown.session_ids)
        sessions, feed = [row.session for row in rows if row is not None], self._feed
        if not sessions or feed is None:
            return
        async with TaskGroup() as group:
            group.create_task(self._charts(feed, sessions))
            if len(sessions) == 1:
                (session,) = sessions
                group.create_task(feed.log(session, self.model.shown.rank))
                if session.state not in ENDED_STATES:
                    group.create_task(feed.explanation(session))

    async def _charts(self, feed: Feed, sessions: Sequence[Session]) -> None:
        """Hear what is wished for; another wish begins anew."""
        while True:
            wish = self.model.shown.wish
            changed = asyncio.Event()
            self._wish_changed = changed
            task = asyncio.create_task(feed.series(sessions, wish))
            try:
                await changed.wait()
            finally:
                task.cancel()

    def wish(self, wish: ChartWish) -> None:
        """Draw another part of the series, or more finely."""
        if wish != self.model.shown.wish:
            self.model.shown.want(wish)
            self._awaited.add(Topic.SERIES)
            if self._wish_changed is not None:
                self._wish_changed.set()

    async def metric_names(self, sessions: Sequence[Session]) -> Sequence[str]:
        """All that these reported, also what there is no room for at once; none where that cannot be had."""
        if self._client is None:
            return ()
        names = set[str]()
        try:
            for session in sessions[:MOST_ASKED]:
                names.update(one.name for one in await self._client.sessions.metrics(session.id))
        except ClientError as error:
            self.say(error.message, is_bad=True)
        return sorted(names)

    def fit_charts(self, columns: int) -> None:
        """Charts have so many cells of room."""
        from nsml.view.plot import worth

        if columns > 0:
            self._width = worth(columns)
            self.wish(replace(self.model.shown.wish, width=self._width))

    def log_of(self, rank: int) -> None:
        """Hear the log of another replica of the session that is looked at."""
        if rank != self.model.shown.rank:
            self.model.show_rank(rank)
            self._hear(pause_s=0.0)

    def compare_code(self, first: Session, second: Session) -> None:
        """Hear how the code of the second one differs from that of the first, once the cursor rests on it."""
        pair = first.id, second.id
        if pair == self.model.shown.pair:
            return
        self.model.show_code(pair)

        async def compare() -> None:
            await self.clock.sleep(PAUSE_S)
            if self._feed is not None:
                await self._feed.code((first, second))

        self.run_worker(compare(), name="code", group="code", exclusive=True)

    def compare(self, sessions: Sequence[Session]) -> None:
        """Sessions side by side, on a screen of their own."""
        from tui.screens.compare import CompareScreen

        if len(sessions) < LEAST_COMPARED:
            self.say("mark two sessions or more with space, then x compares them")
        elif len(sessions) > MOST_COMPARED:
            self.say(
                f"{len(sessions):,} are marked: at most {MOST_COMPARED:,} at a time", is_bad=True
            )
        else:
            self.push_screen(CompareScreen([session.id for session in sessions]))

    def show_sessions(self, filter_text: str) -> None:
        """The list of sessions, with a filter."""
        from tui.screens.sessions import SessionsScreen

        self.action_go("sessions")
        if isinstance(self.screen, SessionsScreen):
            self.screen.filter_by(filter_text)

    def open_session(self, session: Session, *, tab: str = "") -> None:
        """Its own screen, with a tab in front."""
        from tui.screens.session import SessionScreen

        self.look_at(session)
        self.push_screen(SessionScreen(session.id, tab=tab))

    # What keys do

    def action_go(self, mode: str) -> None:
        """Another screen, out of whatever is open."""
        while len(self.screen_stack) > 1:
            self.pop_screen()
        self.switch_mode(mode)

    def action_help(self) -> None:
        """The keys of what has the focus, or no more."""
        if self.screen.query("HelpPanel"):
            self.action_hide_help_panel()
        else:
            self.action_show_help_panel()

    def action_refresh_all(self) -> None:
        """Ask for everything again."""
        if self.player is not None:
            self.player.again()
            return
        self.run_worker(self._listen(), name="feed", group="feed", exclusive=True)

    def copy(self, text: str) -> None:
        """Copy a text to the clipboard, through the terminal (OSC 52)."""
        if text:
            self.copy_to_clipboard(text)
            self.say(f"copied: {text}")

    def action_copy_command(self) -> None:
        """Copy the command that shows what the screen shows."""
        command, lacks = self.screen.command() if isinstance(self.screen, Frame) else ("", "")
        self.copy(command)
        if not command:
            self.say("the command line has nothing like this")
        elif lacks:
            self.say(f"the command line does not know {lacks}")

    def action_copy_last(self) -> None:
        """Copy the command of the last action."""
        self.copy(self._last_command)
        if not self._last_command:
            self.say("nothing was done yet")

    def action_mouse(self) -> None:
        """Let go of the mouse, so that the terminal selects text by itself, or take it again."""
        if self._driver is None or self.is_web:
            return
        self._has_mouse = not self._has_mouse
        self._driver.write(
            "".join(f"\x1b[?{mode}{'h' if self._has_mouse else 'l'}" for mode in MOUSE)
        )
        self._driver.flush()
        self.say(
            "the mouse is taken" if self._has_mouse else "the mouse is the terminal's: % takes it"
        )

    # What is typed behind :

    def action_command(self) -> None:
        """Ask for a command."""
        from tui.commands import offered
        from tui.screens.command_line import CommandLine

        def offer(text: str) -> Sequence[str]:
            return offered(text, sessions=self._session_names, contexts=self._context_names)

        self.push_screen(CommandLine(self.kept.typed, offer), self.obey)

    def _context_names(self) -> Sequence[str]:
        """The platforms that can be gone to; those of whoever serves a page are no matter of its visitors."""
        if self._cli_environ is None or self.is_web:
            return ()
        try:
            return sorted(load(self._cli_environ).contexts)
        except ContextError:
            return ()

    def _session_names(self) -> Iterable[str]:
        from nsml.view.filtering import Filter

        rows = self.model.rows(Filter(""), self.clock.time())
        return (row.session.name for row in rows)

    def obey(self, text: str | None) -> None:
        """Do what a line says."""
        from tui import commands

        try:
            command = commands.understood(text or "")
        except commands.CommandError as error:
            self._note(text or "")
            self.say(error.message, is_bad=True)
            return
        if command is None:
            return
        self._note(text or "")
        if isinstance(command, commands.Own):
            self._obey_own(command)
        else:
            self._obey_nsml(command)

    def _note(self, text: str) -> None:
        """Keep what was typed, once."""
        from msgspec.structs import replace as changed

        from tui.kept import MOST_TYPED

        typed = [one for one in self.kept.typed if one != text.strip()]
        self.keep(changed(self.kept, typed=(*typed, text.strip())[-MOST_TYPED:]))

    def _obey_own(self, command: Own) -> None:
        match command.name:
            case "q":
                self.exit()
            case "ps":
                self.show_sessions(command.rest)
            case "plot":
                self._open_plot(command.rest)
            case "theme":
                self._choose_theme(command.rest)
            case _:
                self._go_to_context(command.rest)

    def _open_plot(self, name: str) -> None:
        session = self._named(name)
        if session is None:
            self.say(f"no session here is called {name!r}", is_bad=True)
            return
        self.open_session(session, tab="plot")

    def _named(self, name: str) -> Session | None:
        """The session of a name, of the end of one, or of an id."""
        from nsml.view.filtering import Filter

        rows = self.model.rows(Filter(""), self.clock.time()) if name else ()
        for row in rows:
            one = row.session
            if name in {one.name, one.id} or one.name.endswith(f"/{name}"):
                return one
        return None

    def _choose_theme(self, name: str) -> None:
        if name in self.available_themes:
            self.theme = name
        else:
            self.say(f"no theme {name!r}: {', '.join(self.available_themes)}", is_bad=True)

    def _go_to_context(self, name: str) -> None:
        """Show another platform in place of this one."""
        if self._cli_environ is None or self.is_web:
            self.say("no other platform can be shown from here", is_bad=True)
            return
        if self.recorder is not None:
            self.say("what is recorded is one platform: leave first", is_bad=True)
            return
        try:
            context = choose(load(self._cli_environ), self._cli_environ, name or None)
            context.token()
        except ContextError as error:
            self.say(f"{error.message}\n{error.advice}", is_bad=True)
            return
        if not name or context.name == self.platform:
            self.say(f"this is {self.platform} · others: {', '.join(self._context_names())}")
            return
        self.goes_to = context.name
        self.exit()

    def _obey_nsml(self, command: Nsml) -> None:
        from tui.commands import Way
        from tui.running import program
        from tui.screens.asking import Confirm

        environ, nsml = self._cli_environ, program()
        if self._is_of_the_past("run"):
            return
        if environ is None or self.is_web or nsml is None:
            self.say("nsml is not run from here: copy the command to a terminal", is_bad=True)
            return
        words = [nsml, *command.words]

        def go(is_meant: bool | None) -> None:
            if is_meant:
                self._last_command = command.text
                self._show_output(command, [*words, "-y"], environ)

        match command.way:
            case Way.SHOWN:
                self._show_output(command, words, environ)
            case Way.ASKED:
                self.push_screen(Confirm("Do this?", command.text), go)
            case Way.HANDED:
                self._last_command = command.text
                self._hand_over(command.text, words, environ)

    def submit(self, session: Session | None) -> None:
        """Ask for a new run of the folder, as that session was, where it is the user's own; and submit it."""
        from nsml.view.sessions import repeat_words
        from tui.commands import again_line, run_of
        from tui.running import program
        from tui.screens.submit import Submit

        environ, nsml = self._cli_environ, program()
        if self._is_of_the_past("submitted"):
            return
        if environ is None or self.is_web or nsml is None:
            self.say("nothing is submitted from here: nsml run does it in a terminal", is_bad=True)
            return
        is_own = session is not None and session.owner == self.user
        line = again_line(repeat_words(session)) if session is not None and is_own else ""
        # What it says of its progress stays where it stands: here no line is drawn over another.
        known, folder = {**environ, "NSML_ACCESSIBLE": "1"}, Path.cwd()

        def go(text: str | None) -> None:
            if text is not None:
                command = run_of(text)
                self._last_command = command.text
                self._show_output(command, [nsml, *command.words], known)

        form = Submit(line or _first_run(folder), folder=_told(folder), nsml=nsml, environ=known)
        self.push_screen(form, go)

    def _show_output(self, command: Nsml, words: Sequence[str], environ: Mapping[str, str]) -> None:
        from tui.screens.output import Output

        self.push_screen(Output(command.text, words, environ=environ, clock=self.clock))

    def _hand_over(self, text: str, words: Sequence[str], environ: Mapping[str, str]) -> None:
        """Give the terminal to a command until it ends and whoever looks has read it."""
        import click

        # Ctrl-C is for the command; it is not ignored, which the command would inherit.
        before = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            with self.suspend():
                click.echo(f"$ {visible(text)}")
                code = subprocess.run(words, env=environ, check=False).returncode
                click.echo(f"exit code {code} · Enter leads back to the dashboard")
                sys.stdin.readline()
        except SuspendNotSupported:
            self.say("this terminal cannot be handed over", is_bad=True)
        finally:
            signal.signal(signal.SIGINT, before)
        self._has_mouse = True
        self.refresh()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the palette has beside the keys of the screen."""
        # To a browser no files are sent; where there are no colours, no theme shows but the one for that.
        left_out = {"Screenshot"} if self.is_web else set()
        left_out |= {"Theme"} if self._looks.is_colourless else set()
        for command in super().get_system_commands(screen):
            if command.title not in left_out:
                yield command
        for mode, name in NAMES.items():
            yield SystemCommand(name.partition(" ")[2], f"go there: {name[0]}", self._goer(mode))

    def _goer(self, mode: str) -> Callable[[], None]:
        return lambda: self.action_go(mode)

    def stop(self, sessions: Sequence[Session]) -> None:
        """Stop sessions, once that is confirmed."""
        from tui.screens.asking import Confirm

        if self._is_of_the_past("stopped"):
            return
        live = [one for one in sessions if one.state not in ENDED_STATES]
        if not live:
            self.say("nothing to stop: it has ended" if sessions else "nothing is chosen")
            return
        if len(live) > MOST_STOPPED:
            self.say(f"{len(live):,} are marked: at most {MOST_STOPPED} at a time", is_bad=True)
            return
        what = live[0].name if len(live) == 1 else counted(len(live), "session")
        command = shlex.join(["nsml", "stop", *(one.name for one in live)])

        def go(is_meant: bool | None) -> None:
            if is_meant:
                each = {shlex.join(["nsml", "stop", one.name]): self._stopping(one) for one in live}
                self._act(command, each)

        self.push_screen(
            Confirm(f"Stop {what}? It gets SIGTERM and its grace to end.", command), go
        )

    def _stopping(self, session: Session) -> Callable[[Client], Awaitable[object]]:
        return lambda client: client.sessions.stop(session.id)

    def remove(self, sessions: Sequence[Session]) -> None:
        """Remove sessions that have ended with all that they left, once that is confirmed."""
        from tui.screens.asking import Confirm

        if self._is_of_the_past("removed"):
            return
        ended = [one for one in sessions if one.state in ENDED_STATES]
        if not ended:
            live = "nothing to remove: it has not ended · ctrl+k stops it"
            self.say(live if sessions else "nothing is chosen")
            return
        if len(ended) > MOST_REMOVED:
            self.say(f"{len(ended):,} are marked: at most {MOST_REMOVED} at a time", is_bad=True)
            return
        what = ended[0].name if len(ended) == 1 else counted(len(ended), "ended session")
        left = len(sessions) - len(ended)
        stays = f" {counted(left, 'live session')} will stay." if left else ""
        command = shlex.join(["nsml", "rm", *(one.name for one in ended)])

        def go(is_meant: bool | None) -> None:
            if is_meant:
                each = {shlex.join(["nsml", "rm", one.name]): self._removing(one) for one in ended}
                self._act(command, each)

        question = f"Remove {what} with logs, metrics and checkpoints, for good?{stays}"
        self.push_screen(Confirm(question, command), go)

    def _removing(self, session: Session) -> Callable[[Client], Awaitable[object]]:
        async def call(client: Client) -> None:
            await client.sessions.remove(session.id)
            self.model.forget(session.id)

        return call

    def write_memo(self, sessions: Sequence[Session]) -> None:
        """Ask for a note, and write it to one session."""
        from tui.screens.asking import Ask

        if self._is_of_the_past("noted"):
            return
        if len(sessions) != 1:
            self.say("a note is for one session")
            return
        (session,) = sessions

        def go(text: str | None) -> None:
            if text is not None and text != visible(session.memo):
                command = shlex.join(["nsml", "memo", session.name, text])
                each = {command: lambda client: client.sessions.update(session.id, memo=text)}
                self._act(command, each)

        self.push_screen(Ask(f"Note of {session.name}", session.memo), go)

    def pull(self, checkpoint: Checkpoint | None) -> None:
        """Fetch a checkpoint into the folder in which the dashboard was started, once that is confirmed."""
        from nsml.client.checkpoints import folder_of, pull
        from nsml.content.errors import ContentError
        from nsml.v1.checkpoints_pb2 import CHECKPOINT_STATE_DURABLE
        from tui.screens.asking import Confirm

        if self._is_of_the_past("fetched"):
            return
        if checkpoint is None or checkpoint.state != CHECKPOINT_STATE_DURABLE:
            self.say(
                "it is on its way to the object store still" if checkpoint else "no checkpoint"
            )
            return
        words = ["nsml", "model", "pull", checkpoint.session, checkpoint.name, "."]
        target = folder_of(checkpoint, Path())
        command, size = shlex.join(words), size_text(checkpoint.size_bytes)

        async def fetch(client: Client) -> None:
            try:
                await pull(client, checkpoint, Path.cwd(), progress=told)
            except (ContentError, OSError) as error:
                raise ClientError(str(error)) from error
            finally:
                self.fetching = ""
            self.say(f"{target}: {size}")

        def told(seen: Transfer) -> None:
            done = size_text(seen.bytes)
            self.fetching = f"fetching {visible(checkpoint.name)}: {done} of {size}"

        def go(is_meant: bool | None) -> None:
            if is_meant:
                self._act(command, {command: fetch})

        self.push_screen(Confirm(f"Fetch {checkpoint.name}, {size}, to ./{target}?", command), go)

    def _is_of_the_past(self, done: str) -> bool:
        """Whether nothing can be done to what is shown, which is then said."""
        if self.player is None:
            return False
        self.say(
            f"this is a {self.player.kind}, and no platform: nothing can be {done}", is_bad=True
        )
        return True

    # How a story is played

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only a story has a time that is one's own."""
        if action in {"pause", "pace", "jump"} and self.player is None:
            return False
        return super().check_action(action, parameters)

    def action_pause(self) -> None:
        """Let the story stand still, or go on; from its end on, again from its beginning."""
        if self.player is not None:
            self.player.pause()
            self._play()

    def action_pace(self, by: int) -> None:
        """Faster or slower."""
        if self.player is not None:
            self.player.pace(by)

    def action_jump(self, seconds: int) -> None:
        """Forward or back in the story."""
        if self.player is not None:
            self.player.jump(seconds)
            self._play()

    def _act(
        self, command: str, calls: Mapping[str, Callable[[Client], Awaitable[object]]]
    ) -> None:
        """Do something on the platform, and say which command line does the same; of each call alone, too."""

        async def act() -> None:
            client = self._client
            if client is None:
                self.say("not connected yet", is_bad=True)
                return
            self._last_command = command
            self.say(f"$ {command}")
            for alone, call in calls.items():
                try:
                    await call(client)
                except ClientError as error:
                    words = [f"not done: $ {alone}", error.message, *error.advice.splitlines()]
                    self.say("\n".join(words), is_bad=True)

        self.run_worker(act(), name="act", group="act")

    def say(self, text: str, *, is_bad: bool = False) -> None:
        """Tell whoever looks, for a moment."""
        self.notify(
            visible_lines(text), severity="error" if is_bad else "information", markup=False
        )


def _programs(folder: Path) -> list[str]:
    with suppress(OSError):
        return sorted(one.name for one in folder.glob("*.py") if one.is_file())
    return []


def _first_run(folder: Path) -> str:
    """The line that runs what there is: `main.py`, else the first program of the folder."""
    programs = _programs(folder)
    entry = programs[0] if programs and "main.py" not in programs else "main.py"
    return shlex.join(["nsml", "run", "-e", entry]) if entry.isprintable() else "nsml run"


def _told(folder: Path) -> str:
    """What is said of the code that is sent."""
    programs = _programs(folder)
    shown = ", ".join(programs[:_MOST_PROGRAMS]) + (", ..." if programs[_MOST_PROGRAMS:] else "")
    return f"sends {folder} ({shown or 'no program of Python is in it'}) without what .nsmlignore names"


def visible_lines(text: str) -> str:
    """Each line made safe for a terminal."""
    return "\n".join(visible(line) for line in text.splitlines())
