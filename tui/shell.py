"""What screens may use of the app: the model and its feed, preferences, appearance, notes to the user.

`tui.app.Dashboard` adds the screens and the keys. Screens import only this module, so that no two import each other.
"""

from __future__ import annotations

import asyncio
import signal
from abc import abstractmethod
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from textual.app import App, ScreenStackError
from textual.css.query import NoMatches
from textual.events import InputEvent, Key
from textual.screen import Screen

from nsml.client.contexts import ContextError
from nsml.client.errors import ClientError, NotSignedIn
from nsml.client.streams import ENDED_STATES
from nsml.common.clock import in_thread
from nsml.common.concurrency import TaskGroup
from nsml.common.shell import posix_line
from nsml.common.text import visible
from nsml.view.complete_sessions import is_short
from nsml.view.series import Axis
from tui.appearance import Appearance, apply_appearance, filters
from tui.background import in_background, is_going
from tui.key_order import KeyOrder
from tui.model import TOPICS, Model, Refused, SessionsReceived
from tui.sources import ALWAYS_RECEIVED, ASK_AGAIN_S, CLOSELY, Topic
from tui.story import STEPS_A_SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from textual import events
    from textual.actions import ActionParseResult
    from textual.dom import DOMNode
    from textual.filter import LineFilter
    from textual.timer import Timer

    from nsml.client.calls import Client
    from nsml.client.series import ChartQuery
    from nsml.common.clock import Clock
    from nsml.v1.boards_pb2 import Board
    from nsml.v1.competitions_pb2 import Competition
    from nsml.v1.sessions_pb2 import Session
    from nsml.view.saved import Saved
    from tui.commands import Settings
    from tui.feed import Feed
    from tui.model import Detail, Event
    from tui.preferences import Preferences, PreferencesFile
    from tui.recording import Recorder
    from tui.story import Player
    from tui.widgets.log_view import LogView

REPAINTS_A_SECOND: Final = 4
AGES_EVERY: Final = 4
"""Repaints between redraws of ages, without other changes."""
CALM_BEATS: Final = 8
"""Repaints without a change before they pause until something is received or done."""
SETTLED_S: Final = 1.0
"""Quiet time after many events before they count as settled."""
PAUSE_S: Final = 0.15
"""The cursor rests so long on a session before its details are received."""
TOKEN_LOOK_S: Final = 1.0
"""Poll interval for another token while the platform rejects the current one."""
SAME_TOKEN_AGAIN_S: Final = 60.0
SHOWN_S: Final = 3.0
"""Display time of notes."""
MOST_ASKED: Final = 10
"""Sessions whose metric names are requested at once."""
Inspection: TypeAlias = "Callable[[Feed], Awaitable[None]]"
"""Receives details of one object."""


class ModelScreen(Protocol):
    """A screen that draws the model: `tui.screens.frame.Frame`."""

    def redraw(self) -> None:
        """Draw changes."""

    def age(self) -> None:
        """Draw what only time has changed."""


class SessionActions(Protocol):
    """Key actions on sessions and checkpoints: `tui.actions.Actions`."""

    @property
    def fetching(self) -> str:
        """Progress of a download; "" if none is running."""

    def stop(self, sessions: Sequence[Session]) -> None:
        """Stop them, after confirmation."""

    def remove(self, sessions: Sequence[Session]) -> None:
        """Remove them, after confirmation."""

    def write_memo(self, sessions: Sequence[Session]) -> None:
        """Ask for a memo, and write it."""

    def forward(self, sessions: Sequence[Session]) -> None:
        """Open the command line with a port forward of one."""

    def enter(self, sessions: Sequence[Session], *, rank: int = 0) -> None:
        """Start a shell in one."""

    def evaluate(self, sessions: Sequence[Session], *, rank: int = 0) -> None:
        """Ask for code that the program of one evaluates."""

    def hold(self, sessions: Sequence[Session]) -> None:
        """Pause or continue the program of one, after confirmation."""

    def set_knobs(
        self,
        sessions: Sequence[Session],
        settings: Settings,
        *,
        taken: Callable[[], None],
        refused: Callable[[str], bool],
    ) -> bool:
        """Set knobs of the program of one; if requested, `taken` or `refused` is called with the result."""
        ...

    def withdraw(self, sessions: Sequence[Session]) -> None:
        """Withdraw the pending change of the program of one, after confirmation."""

    def pull(self, saved: Saved | None) -> None:
        """Fetch a checkpoint or an artifact into a folder."""


class Shell(App[None]):
    """The app without its screens: it receives, draws the screen in front, saves preferences and shows notes.

    Args:
        connect: opens the platform, which need not respond.
        clock: for shown times and waits.
        platform: its name for users.
        recorder: records events; None: no recording.
        player: plays a story instead of a platform, which is not called then; it is also `clock`.
        preferences_file: where preferences are saved; None: nowhere.
        cli_environ: environment of `nsml` for the same platform; None: it is not run here.
        appearance: theme and characters at the start.
        start_with: the command that starts the platform, if it is on this machine; else "".
        sign_in_with: the command that signs in to it.
        token: returns the token of the next connection; it raises ContextError.
        remember: saves the name of a new theme; it may raise OSError or ContextError.
        settled: called a moment after the start, and after all sessions are received again.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Client]],
        *,
        clock: Clock,
        platform: str,
        recorder: Recorder | None = None,
        player: Player | None = None,
        preferences_file: Path | None = None,
        cli_environ: Mapping[str, str] | None = None,
        appearance: Appearance | None = None,
        remember: Callable[[str], None] | None = None,
        start_with: str = "",
        sign_in_with: str = "",
        token: Callable[[], str | None] = lambda: None,
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        self._settled = settled
        self._settling: Timer | None = None
        self._appearance = appearance or Appearance()
        # Without colours, the terminal's are left out, not converted to greys.
        super().__init__(ansi_color=True if self._appearance.is_colourless else None)
        self._filters_of_ours = filters(self._appearance)
        apply_appearance(self, self._appearance)
        self._remember = remember
        self._connect = connect
        self.clock = clock
        self.platform = platform
        self.start_with = start_with
        self._sign_in_with = sign_in_with
        self._token = token
        self.player = player
        self.recorder = recorder
        self.user = player.story.user if player is not None else ""
        self.model = Model()
        self.client: Client | None = None
        self._feed: Feed | None = None
        self._wanted: frozenset[Topic] = frozenset()
        self._drawn = -1
        self._painting: Timer | None = None
        self._calm = 0
        self._seconds = 0
        self._width = self.model.shown.chart_query.width
        self._chart_query_changed: asyncio.Event | None = None
        self._completing: set[tuple[str, int]] = set()
        """Sessions requested in full: their ids, and the numbers of their last changes then."""
        self._awaited: set[Topic] = set()
        self.has_mouse = True
        self.last_command = ""
        self._preferences_file = preferences_file
        self.cli_environ = cli_environ
        self.goes_to = ""
        """The context to show next; "": none."""
        self._store: PreferencesFile | None = None
        self._preferences: Preferences | None = None
        self._inspected: tuple[Topic, str, Inspection] | None = None
        self._key_order = KeyOrder(self, super().on_event)

    async def on_event(self, event: events.Event) -> None:
        """Handle a key after those before it."""
        if isinstance(event, InputEvent):
            if not self.screen_stack:
                return  # the dashboard is closing: Textual has removed its screens
            self._expect()
        if isinstance(event, Key) and not event.is_forwarded:
            await self._key_order.take(event)
        else:
            await super().on_event(event)

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Run an action; one of a screen that has no widgets yet, or is being removed, does nothing."""
        screen = default_namespace
        if isinstance(screen, Screen) and (not screen.is_mounted or is_going(screen)):
            return True
        return await super().run_action(action, default_namespace, namespaces)

    # Receiving

    def on_mount(self) -> None:
        """Restore the terminal when SIGTERM ends the app."""
        ended = partial(self.exit, return_code=128 + signal.SIGTERM)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended)

    async def open(self) -> None:
        """Start to receive and to draw, once the first frame is painted."""
        await self._load_preferences()
        if self.player is None:
            self.listen()
        else:
            self.play()
            self.set_interval(1 / STEPS_A_SECOND, self.play)
        if not self.is_running:  # it was closed already
            return
        await self.switch_mode("sessions")
        self._painting = self.set_interval(1 / REPAINTS_A_SECOND, self._beat)
        self.set_interval(AGES_EVERY / REPAINTS_A_SECOND, self._age)
        self._settle()

    def _settle(self) -> None:
        if self._settling is not None:
            self._settling.stop()
        self._settling = self.set_timer(SETTLED_S, self._settled)

    async def _load_preferences(self) -> None:
        """Load the preferences; an unreadable file is left alone and reported."""
        from tui.preferences import PreferencesError, PreferencesFile

        if self._preferences_file is not None:
            self._store = PreferencesFile(self._preferences_file)
            try:
                self._preferences = await in_thread(self._store.load)
            except PreferencesError as error:
                self.say(error.message, is_bad=True)

    @property
    def preferences(self) -> Preferences:
        """The user's preferences, as loaded or changed since."""
        if self._preferences is None:
            from tui.preferences import Preferences

            self._preferences = Preferences()
        return self._preferences

    def set_preferences(self, preferences: Preferences) -> None:
        """Use these from now on; they are saved within a second."""
        self._preferences = preferences

    def on_log_view_wrapping(self, event: LogView.Wrapping) -> None:
        """Save the wrapping of logs."""
        from msgspec import structs

        from tui.preferences import LogPreferences

        self.set_preferences(
            structs.replace(self.preferences, log=LogPreferences(is_wrapped=event.is_on))
        )

    def _save(self) -> None:
        from tui.preferences import PreferencesError

        if self._store is not None and self._preferences is not None:
            try:
                self._store.save(self._preferences)
            except PreferencesError as error:
                self.say(error.message, is_bad=True)

    def on_unmount(self) -> None:
        """Save the preferences."""
        self._save()

    def play(self) -> None:
        """Show the story's next step."""
        if self.player is not None:
            self.model = self.player.step(self.model)
            self._expect()

    def listen(self) -> None:
        """Connect, and receive until the app ends; restarts a running feed."""
        in_background(self, "feed", self._listen)

    async def _listen(self) -> None:
        while True:
            try:
                token = self._token()
                async with self._connect() as client:
                    await self._receive_all(client)
                self._sign_out(has_token=bool(token))
                await self._other_token(token)
            except ContextError as error:  # the configuration can be damaged by now
                self._take(Refused(Topic.CLUSTER, error.message))
                await self.clock.sleep(ASK_AGAIN_S)

    def _sign_out(self, *, has_token: bool) -> None:
        """Mark all received topics as no longer received, and name the sign-in command."""
        what = "the token is not valid" if has_token else "not logged in"
        why = " · ".join(filter(None, (what, self._sign_in_with)))
        self.user = ""
        received = {topic for topic, source in self.model.sources.items() if source.received_at}
        for topic in received | {Topic.CLUSTER}:
            self._take(Refused(topic, why))

    async def _other_token(self, refused: str | None) -> None:
        """Wait for another token, or so long that retrying the same one is no guessing.

        Each wrong one counts against this address.
        Raises ContextError.
        """
        again_at = self.clock.monotonic() + SAME_TOKEN_AGAIN_S
        while self.clock.monotonic() < again_at and self._token() == refused:
            await self.clock.sleep(TOKEN_LOOK_S)

    async def _receive_all(self, client: Client) -> None:
        """Receive from the platform until the token is rejected."""
        from tui.feed import Feed

        signed_out = asyncio.Event()
        feed = Feed(client, self._take, signed_out=signed_out.set)
        self.client, self._feed = client, feed
        self._receive(pause_s=0.0)
        self._subscribe_inspected(pause_s=0.0)
        self._subscribe_wanted(self._wanted, anew=self._wanted)
        self._subscribe_details()
        self.workers.cancel_group(self, "code")
        self.model.show_code(None)  # its screen asks again
        try:
            async with TaskGroup() as group:
                receiving = [
                    group.create_task(feed.receive(ALWAYS_RECEIVED)),
                    group.create_task(self._fetch_user(client, signed_out)),
                ]
                await signed_out.wait()
                for one in receiving:
                    one.cancel()
        finally:
            if self._feed is feed:  # a restarted feed has connected already
                self.client = self._feed = None
                self._completing.clear()
                for group_name in ("whole", "screen", "details", "shown", "inspected"):
                    self.workers.cancel_group(self, group_name)

    def subscribe_screen(self, topics: Iterable[Topic]) -> None:
        """Receive the topics of the screen in front, beside those always received; for a recording, all."""
        self.inspect(None)
        wanted = frozenset(Topic if self.recorder is not None else topics)
        wanted -= ALWAYS_RECEIVED | CLOSELY
        if wanted != self._wanted:
            self._subscribe_wanted(wanted, anew=wanted - self._wanted)

    def _subscribe_wanted(self, wanted: frozenset[Topic], *, anew: frozenset[Topic]) -> None:
        self._wanted = wanted
        if self._feed is not None:
            self._awaited |= anew
            for topic in anew:
                self.model.ask(topic, self.clock.time())
            in_background(self, "screen", partial(self._feed.receive, wanted))

    async def _fetch_user(self, client: Client, signed_out: asyncio.Event) -> None:
        """Fetch the user's name; until then, no session is one's own."""
        while not self.user:
            try:
                self.user = (await client.accounts.caller()).user.name
                if self.recorder is not None:
                    self.recorder.caller(self.user, self.clock.time())
            except NotSignedIn:
                signed_out.set()
                return
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
        if isinstance(event, SessionsReceived) and event.reset:
            self._settle()
        if (topic := TOPICS.get(type(event))) in self._awaited:
            # Users who pressed a key for it need not wait for the next beat.
            self._awaited.discard(topic)
            self.call_later(self._draw)
        if self.model.version != self._drawn:
            self._expect()

    def _expect(self) -> None:
        """Check for changes from now on, until there are none for a while."""
        self._calm = 0
        if self._painting is not None:
            self._painting.resume()

    def _beat(self) -> None:
        """Draw the latest changes."""
        if self.model.version != self._drawn:
            self._calm = 0
            self._draw()
        elif self._painting is not None:
            self._calm += 1
            if self._calm >= CALM_BEATS:
                self._painting.pause()

    def _age(self) -> None:
        """Update ages, if nothing else has changed."""
        self._seconds += 1
        if self.model.version != self._drawn:
            self._expect()
        else:
            self._draw(is_aged=True)
        self._save()

    def _draw(self, *, is_aged: bool = False) -> None:
        """Draw the model; `is_aged`: only the time has changed."""
        # A screen that is being removed lacks some parts.
        with suppress(NoMatches, ScreenStackError):
            if (screen := self.model_screen()) is not None:
                self._drawn = self.model.version
                if is_aged:
                    screen.age()
                else:
                    screen.redraw()

    # Appearance

    @property
    def is_without_colours(self) -> bool:
        """Whether pictures are drawn with letters."""
        return self._appearance.is_colourless or self._appearance.is_ascii

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the filters of lines before output."""
        return [*super().get_line_filters(), *self._filters_of_ours]

    def watch_theme(self, name: str) -> None:
        """Apply a theme, and save it."""
        if name == self._appearance.theme:
            return
        self._appearance = replace(self._appearance, theme=name)
        self.call_after_refresh(self._draw)
        if self._remember is None:
            return
        try:
            self._remember(name)
        except (OSError, ContextError) as error:
            self.say(f"the theme is not saved: {error}", is_bad=True)
        else:
            self.say(f"$ nsml config set theme {name}")

    # Tabs of a session

    def subscribe_details(self, *details: Detail) -> None:
        """Receive these details of the shown session, and no others for tabs."""
        if details != self.model.shown.details:
            is_other = any(one.what for one in details)
            self.model.show_details(details, self.clock.time())
            self._subscribe_details(pause_s=PAUSE_S if is_other else 0.0)

    def _subscribe_details(self, *, pause_s: float = 0.0) -> None:
        in_background(self, "details", partial(self._details, pause_s))

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

    # Shown sessions

    def look_at(self, *sessions: Session, pause_s: float = PAUSE_S, is_plain: bool = False) -> None:
        """Receive series and log of a session, once the cursor rests on it; of several, only series.

        `is_plain`: all series, by step, whatever was chosen before.
        """
        ids = tuple(session.id for session in sessions)
        if not ids:
            return
        axis = Axis.STEP if is_plain else self.preferences.charts.axis
        is_same = ids == self.model.shown.session_ids
        if not is_same:
            self.model.show(*ids)
        shown = self.model.shown
        query = replace(
            shown.chart_query, axis=axis, width=shown.chart_query.width if is_same else self._width
        )
        if is_plain:
            query = replace(query, low=None, high=None, names=())
        if is_same:
            self.request_charts(query)
            return
        shown.set_chart_query(query)
        self._receive(pause_s=pause_s)

    def inspect(self, what: tuple[Topic, str, Inspection] | None) -> None:
        """Receive details of one object (topic, name and how), once the cursor rests on it; None: of none."""
        if what is None:
            self._inspected = None
            self.workers.cancel_group(self, "inspected")
            self.model.inspected.clear()
        elif self.model.inspected.get(what[0]) != what[1]:
            self._inspected = what
            self.model.inspect(what[0], what[1])
            self._awaited.add(what[0])
            self._subscribe_inspected()

    def _subscribe_inspected(self, *, pause_s: float = PAUSE_S) -> None:
        async def receive() -> None:
            await self.clock.sleep(pause_s)
            if self._inspected is not None and self._feed is not None:
                await self._inspected[2](self._feed)

        if self._inspected is not None:
            in_background(self, "inspected", receive)

    def _receive(self, *, pause_s: float) -> None:
        in_background(self, "shown", partial(self._closely, pause_s))

    async def _closely(self, pause_s: float) -> None:
        await self.clock.sleep(pause_s)
        rows = map(self.model.row, self.model.shown.session_ids)
        sessions, feed = [row.session for row in rows if row is not None], self._feed
        if not sessions or feed is None:
            return
        async with TaskGroup() as group:
            group.create_task(feed.whole(sessions))
            group.create_task(self._charts(feed, sessions))
            if len(sessions) == 1:
                (session,) = sessions
                group.create_task(feed.log(session, self.model.shown.rank))
                if session.state not in ENDED_STATES:
                    group.create_task(feed.explanation(session))
            else:
                group.create_task(feed.configs(sessions))

    async def _charts(self, feed: Feed, sessions: Sequence[Session]) -> None:
        """Receive the series of the current query; restart when it changes."""
        while True:
            query = self.model.shown.chart_query
            changed = asyncio.Event()
            self._chart_query_changed = changed
            task = asyncio.create_task(feed.series(sessions, query))
            try:
                await changed.wait()
            finally:
                task.cancel()

    def request_charts(self, query: ChartQuery) -> None:
        """Request another part of the series, or another resolution."""
        if query != self.model.shown.chart_query:
            self.model.shown.set_chart_query(query)
            self._awaited.add(Topic.SERIES)
            if self._chart_query_changed is not None:
                self._chart_query_changed.set()

    async def metric_names(
        self, sessions: Sequence[Session]
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return all metrics of these, also those without room in charts, and their origins; none on errors."""
        if self.client is None:
            return (), {}
        from nsml.client.series import origins_of, reported
        from nsml.view.metrics import in_order

        try:
            found = await reported(self.client, (one.id for one in sessions[:MOST_ASKED]))
        except ClientError as error:
            self.say(error.message, is_bad=True)
            return (), {}
        names = in_order({metric.name for own in found.values() for metric in own})
        return names, origins_of(found.values())

    def fit_charts(self, columns: int) -> None:
        """Set the width of charts, in cells."""
        from nsml.view.plot import worth

        if columns > 0:
            self._width = worth(columns)
            self.request_charts(replace(self.model.shown.chart_query, width=self._width))

    def log_of(self, rank: int) -> None:
        """Receive the log of another replica of the shown session."""
        if rank != self.model.shown.rank:
            self.model.show_rank(rank)
            self._receive(pause_s=0.0)

    def compare_code(self, first: Session, second: Session) -> None:
        """Receive the code differences between two sessions, once the cursor rests on the second."""
        pair = first.id, second.id
        if pair == self.model.shown.pair:
            return
        self.model.show_code(pair)

        async def compare() -> None:
            await self.clock.sleep(PAUSE_S)
            if self._feed is not None:
                await self._feed.code((first, second))

        in_background(self, "code", compare)

    def complete(self, sessions: Iterable[Session]) -> None:
        """Request, once, data that lists lack: the end of long commands, and early changes."""
        lacking = {_as_of(one): one for one in sessions if is_short(one)}
        new = [one for key, one in lacking.items() if key not in self._completing]
        if self._feed is not None and new:
            self._completing.update(map(_as_of, new))
            in_background(self, "whole", partial(self._feed.whole, new), is_alone=False)

    # Notes and the clipboard

    def copy_to_clipboard(self, text: str) -> None:
        """Copy a text without control sequences that act when pasted, such as the end of a bracketed paste."""
        super().copy_to_clipboard(visible_lines(text))

    def copy(self, text: str) -> None:
        """Copy a text to the clipboard, through the terminal (OSC 52)."""
        if text:
            self.copy_to_clipboard(posix_line(text))
            self.say(f"copied: {text}")

    def refuses_action(self, done: str) -> bool:
        """Whether actions are disabled, in a demo or a replay; tells the user that nothing can be `done`."""
        if self.player is None:
            return False
        self.say(
            f"this is a {self.player.kind}, and no platform: nothing can be {done}", is_bad=True
        )
        return True

    def say(self, text: str, *, is_bad: bool = False) -> None:
        """Show a note to the user for a moment; an error for longer."""
        self.notify(
            visible_lines(text),
            severity="error" if is_bad else "information",
            timeout=self.NOTIFICATION_TIMEOUT if is_bad else SHOWN_S,
            markup=False,
        )

    def dismiss_notes(self) -> None:
        """Hide all notes but errors, which stay long enough to be read."""
        for one in list(self._notifications):
            if one.severity != "error":
                self._unnotify(one)

    # Added by `tui.app.Dashboard`

    @property
    @abstractmethod
    def actions(self) -> SessionActions:
        """Key actions on sessions and checkpoints."""

    @property
    @abstractmethod
    def hidden_actions(self) -> Collection[str]:
        """Actions that do nothing with the shown data, and are hidden."""

    @abstractmethod
    def model_screen(self) -> ModelScreen | None:
        """Return the screen in front, if it draws the model."""

    @abstractmethod
    def go(self, mode: str) -> None:
        """Switch to another screen, closing open ones."""

    @abstractmethod
    def show_sessions(self, filter_text: str) -> None:
        """Show the list of sessions, filtered."""

    @abstractmethod
    def open_session(self, session: Session, *, tab: str = "") -> None:
        """Open a session's screen at a tab."""

    @abstractmethod
    def open_board(self, board: Board) -> None:
        """Open a board's screen."""

    @abstractmethod
    def open_competition(self, competition: Competition) -> None:
        """Open the standings of a competition."""

    @abstractmethod
    def compare(self, sessions: Sequence[Session]) -> None:
        """Compare sessions, on a screen of their own."""

    @abstractmethod
    def obey(self, line: str) -> None:
        """Run a command line."""

    @abstractmethod
    def ask_command(self, begun: str = "") -> None:
        """Ask for a command, starting with `begun`."""

    @abstractmethod
    def submit(self, session: Session | None) -> None:
        """Ask for the command line of a new session, prefilled from this one."""


def _as_of(session: Session) -> tuple[str, int]:
    """Its id, and the number of the last change of its programs."""
    return session.id, session.changes[-1].number if session.changes else 0


def visible_lines(text: str) -> str:
    """Make each line safe for a terminal."""
    return "\n".join(visible(line) for line in text.splitlines())
