"""The frame of every screen: state of the platform, list of screens, keys."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from rich.style import Style
from rich.text import Text
from textual import on
from textual.containers import Vertical
from textual.errors import NoWidget
from textual.events import Click, Resize
from textual.geometry import Offset, Size
from textual.screen import Screen
from textual.widgets import Static

from nsml.common.text import fit, visible, wrapped
from nsml.view.nodes import condition_title, is_notice, worst_first
from nsml.view.sessions import SIMULATED, SIMULATED_SHORT
from tui import appearance
from tui.background import is_going
from tui.headline import HeadlineItem, headline
from tui.hints import key_of
from tui.sources import State, Topic
from tui.widgets.keys import Keys
from tui.widgets.lines import Lines
from tui.widgets.static import set_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from textual.app import ComposeResult
    from textual.widget import Widget

    from nsml.v1.sessions_pb2 import Session
    from tui.model import Detail, Model
    from tui.shell import Shell

NAMES: Final = {
    "sessions": "1 Sessions",
    "queue": "2 Queue",
    "nodes": "3 Nodes",
    "datasets": "4 Datasets",
    "events": "5 Events",
    "projects": "6 Projects",
    "boards": "7 Boards",
}
"""The permanent screens, with their titles."""
LIVE_ONLY_ACTIONS: Final = frozenset(
    {
        "stop",
        "remove",
        "memo",
        "forward",
        "shell",
        "evaluate",
        "hold",
        "set_knob",
        "withdraw",
        "new_run",
        "screen.pull",
        "refresh_all",
        "copy_last",
    }
)
"""Actions hidden in demos and replays; pressing their key explains why."""
_BOLD: Final = Style(bold=True)
_HERE: Final = Style(reverse=True, bold=True)
_SCREEN_META: Final = "mode"
"""Style metadata key: the screen a click opens."""
LEAST_COLUMNS: Final = 80
LEAST_ROWS: Final = 24
MOST_TROUBLE: Final = 4
"""Rows of warnings; as in the CSS below."""
SLOW_ANSWER_S: Final = 1.0
"""Answers slower than this are marked slow."""
_DOTS: Final = {
    State.LOADING: ("○", appearance.WAITS),
    State.LIVE: ("●", appearance.GOOD),
    State.STALE: ("◌", appearance.WAITS),
    State.OFFLINE: ("✗", appearance.BAD),
    State.DENIED: ("✗", appearance.BAD),
}


def size_warning(columns: int, rows: int) -> str:
    """Return a warning if the terminal is below 80x24, else ""."""
    if columns >= LEAST_COLUMNS and rows >= LEAST_ROWS:
        return ""
    return f"{columns}x{rows} is below {LEAST_COLUMNS}x{LEAST_ROWS}: compact view"


def _bounded(found: Sequence[Text], cells: int) -> list[Text]:
    """Fit these in MOST_TROUBLE rows: if they need more, a row each, and those without room are counted."""
    rows = sum(len(wrapped(one.plain, cells)) for one in found)
    if rows <= MOST_TROUBLE or len(found) == 1:
        return list(found)
    count = MOST_TROUBLE if len(found) <= MOST_TROUBLE else MOST_TROUBLE - 1
    kept = [Text(fit(one.plain, cells), one.style) for one in found[:count]]
    left = len(found) - count
    return [*kept, Text(f" and {left} more: $ nsml status")] if left else kept


def _tens_of_ms(seconds: float) -> str:
    """Format a latency, rounded so that the text seldom changes."""
    tens = round(100 * seconds)
    return f"{tens}0ms" if tens else "<10ms"


class LinesUnderMouse(Screen[Any]):
    """A screen with lines that the mouse selects."""

    def get_widget_and_offset_at(self, x: int, y: int) -> tuple[Widget | None, Offset | None]:
        """Find the widget under the mouse: lines compute places themselves, without styles for each."""
        with suppress(NoWidget):
            widget, _ = self.get_widget_at(x, y)
            if isinstance(widget, Lines):
                at = Offset(x, y) - widget.content_region.offset
                return widget, Offset(max(at.x, 0), max(at.y, 0) + widget.top)
        return super().get_widget_and_offset_at(x, y)


class Frame(LinesUnderMouse, Screen[None]):
    """A screen in its frame.

    `topics`: received while it is in front; problems with them are shown above it.
    """

    DEFAULT_CSS: ClassVar[str] = """
    Frame {
        #platform { height: 1; background: $panel; }
        #screens { height: 1; color: $text-muted; }
        #trouble { height: auto; max-height: 4; color: $text-error; display: none; }
        #body { height: 1fr; }
    }
    """
    name_of: ClassVar[str] = ""
    topics: ClassVar[tuple[Topic, ...]] = ()

    _is_ready = False
    _screens_at: Size | None = None

    def compose(self) -> ComposeResult:
        """The frame around `body`."""
        yield Static(id="platform")
        yield Static(id="screens")
        yield Static(id="trouble")
        with Vertical(id="body"):
            yield from self.body()
        yield Keys(without=self.dashboard.hidden_actions, titles=self.key_titles)

    def body(self) -> ComposeResult:
        """The content of the frame."""
        yield from ()

    def chosen(self) -> Sequence[Session]:
        """Sessions that actions apply to."""
        return ()

    def key_titles(self) -> Mapping[str, str]:
        """Current titles of keys, by action."""
        return {}

    def details(self) -> Sequence[Detail]:
        """Data of one session, beside charts and log."""
        return ()

    def draw(self) -> None:
        """Show the model's data."""

    @property
    def dashboard(self) -> Shell:
        """The app."""
        return cast("Shell", self.app)

    @property
    def model(self) -> Model:
        """The model."""
        return self.dashboard.model

    @property
    def is_in_front(self) -> bool:
        """Whether only dialogs are above it: Textual calls the screen behind another current, too."""
        frames = [one for one in self.app.screen_stack if isinstance(one, Frame)]
        return bool(frames) and frames[-1] is self

    def on_mount(self) -> None:
        """Show the current data, once all widgets exist."""
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self._is_ready = True
        self.redraw()

    def on_screen_resume(self) -> None:
        """Receive its topics, and show changes since another screen was in front."""
        self.dashboard.subscribe_screen(self.subscriptions())
        self.dashboard.subscribe_details(*self.details())
        self.redraw()

    def on_resize(self, _event: Resize) -> None:
        """Fit the first line to the new width."""
        if self._is_ready:
            self.redraw_frame()

    def on_screen_suspend(self) -> None:
        """Hide its notes: another screen is in front."""
        self.dashboard.dismiss_notes()

    @on(Click, "#screens")
    def go(self, event: Click) -> None:
        """Switch to the clicked screen."""
        mode = event.style.meta.get(_SCREEN_META)
        if mode in NAMES:
            self.dashboard.go(mode)

    def redraw(self) -> None:
        """Redraw everything."""
        if self._is_ready and not is_going(self):
            self.redraw_frame()
            self.draw()

    def age(self) -> None:
        """Redraw ages: nothing but the time has changed."""
        self.redraw()

    def redraw_frame(self) -> None:
        """Redraw the frame."""
        now = self.dashboard.clock.time()
        set_text(self.query_one("#platform", Static), self._platform(now))
        if self._screens_at != self.app.size:
            self._screens_at = self.app.size
            set_text(self.query_one("#screens", Static), self._screens())
        trouble = self._trouble(now)
        line = self.query_one("#trouble", Static)
        line.display = bool(trouble)
        set_text(line, Text("\n").join(trouble))

    def subscriptions(self) -> tuple[Topic, ...]:
        """Topics to receive while it is in front."""
        return self.topics

    def monitored_topics(self, now: float) -> tuple[Topic, ...]:  # noqa: ARG002 - of most it is the same
        """Topics reported above it if they are old."""
        return self.topics

    def command(self) -> tuple[str, str]:
        """Return the equivalent command line, and what it lacks; "" if there is none."""
        return "", ""

    def key_of(self, name: str) -> str:
        """Return the name of a binding's key."""
        return key_of(self.app, name)

    def words(self, topic: Topic) -> str:
        """Describe the state of a topic."""
        return visible(self.model.sources[topic].words(self.dashboard.clock.time()))

    def none(self, topic: Topic, nothing: str) -> str:
        """Return the text of an empty pane: the state of its topic, or `nothing`."""
        return self.words(topic) or nothing

    # Key actions

    def action_stop(self) -> None:
        """Stop the chosen sessions, after confirmation."""
        self.dashboard.actions.stop(self.chosen())

    def action_remove(self) -> None:
        """Remove the chosen ended sessions, after confirmation."""
        self.dashboard.actions.remove(self.chosen())

    def action_forward(self) -> None:
        """Forward a port of the chosen session."""
        self.dashboard.actions.forward(self.chosen())

    def action_shell(self) -> None:
        """Start a shell in the chosen session."""
        self.dashboard.actions.enter(self.chosen())

    def action_memo(self) -> None:
        """Write a memo to the chosen session."""
        self.dashboard.actions.write_memo(self.chosen())

    # The frame itself

    def _platform(self, now: float) -> Text:
        return headline([*self._link(now), *self._load()], self.app.size.width)

    def _link(self, now: float) -> Iterator[HeadlineItem]:
        """Name and state of the platform."""
        model, player = self.model, self.dashboard.player
        state = model.sources[Topic.CLUSTER].state(now)
        dot, role = _DOTS[state]
        yield HeadlineItem("nsml", worth=0)
        yield HeadlineItem(visible(self.dashboard.platform), style="bold", gap="  ", is_name=True)
        if player is None:
            style = appearance.style(self.app, role)
            yield HeadlineItem(f"{dot} {state.value}", style=style, gap="  ")
        else:
            # Past data is never called live.
            style = appearance.style(self.app, appearance.WAITS) + _BOLD
            yield HeadlineItem(visible(player.words()), style=style, gap="  ")
        if self.dashboard.recorder is not None:
            yield HeadlineItem(
                "● recording", style=appearance.style(self.app, appearance.BAD), gap=" "
            )
        if model.cluster is not None and state is State.LIVE and player is None:
            is_slow = model.took_s >= SLOW_ANSWER_S
            took = f"{model.took_s:.1f}s" if is_slow else _tens_of_ms(model.took_s)
            slow = appearance.style(self.app, appearance.WAITS)
            yield HeadlineItem(took, worth=3, style=slow if is_slow else "", gap=" ")

    def _load(self) -> Iterator[HeadlineItem]:
        """Its load."""
        cluster = self.model.cluster
        if cluster is None:
            return
        yield HeadlineItem(f"leader {visible(cluster.leader) or 'none'}", worth=1, gap="  ")
        held, every = (
            each.gpu_thousandths / 1000 for each in (cluster.allocated, cluster.capacity)
        )
        gpus = f"GPUs {held:g}/{every:g}"
        if cluster.simulated:
            yield HeadlineItem(f"{gpus} {SIMULATED}", worth=6, short=f"{gpus} {SIMULATED_SHORT}")
        else:
            yield HeadlineItem(gpus, worth=6)
        if every and cluster.HasField("load") and cluster.load.devices:
            yield HeadlineItem(f"{cluster.load.utilization_percent:.0f}% busy", worth=2, gap=" ")
        yield HeadlineItem(f"running {cluster.sessions_running}", worth=4)
        yield HeadlineItem(f"queue {cluster.sessions_queued}", worth=5)
        if cluster.sessions_held:
            yield HeadlineItem(f"held {cluster.sessions_held}", worth=4)

    def _screens(self) -> Text:
        if words := size_warning(*self.app.size):
            name = NAMES.get(self.name_of, "")
            return Text.assemble(" ", (f" {name} ", "reverse bold") if name else "", f" {words}")
        line = Text(" ")
        # Each name has a cell on either side; on a wide terminal there is one more between two.
        cells = sum(len(name) + len("  ") + len(" ") for name in NAMES.values())
        gap = " " if cells <= self.app.size.width else ""
        for mode, name in NAMES.items():
            goes_there = Style(meta={_SCREEN_META: mode})
            line.append(f" {name} ", goes_there + (_HERE if mode == self.name_of else Style()))
            line.append(gap)
        return line

    def _trouble(self, now: float) -> list[Text]:
        """Lost connections, old data, and problems of the platform."""
        sources = {
            topic: self.model.sources[topic]
            for topic in (Topic.CLUSTER, *self.monitored_topics(now))
        }
        wrong = [
            topic
            for topic, source in sources.items()
            if source.state(now) not in {State.LIVE, State.LOADING}
        ]
        found = []
        if wrong:
            # The age is that of the oldest shown data, not of the newest.
            received = [source.true_at for source in sources.values() if source.received_at]
            words = sources[wrong[0]].words(now, shown_of=min(received, default=0.0))
            start = self.dashboard.start_with
            is_away = wrong[0] is Topic.CLUSTER and sources[wrong[0]].state(now) is State.OFFLINE
            advice = f" · {start} starts it" if start and is_away else ""
            found.append(Text(f" ✗ {wrong[0].value}: {visible(words)}{advice}"))
        informs = appearance.style(self.app, appearance.WAITS)
        cluster = self.model.cluster
        for one in worst_first(cluster) if cluster is not None else ():
            sign, style = ("i", informs) if is_notice(one) else ("!", "")
            text = f" {sign} {condition_title(one)}: {one.meaning}"
            found.append(Text(visible(text), style))
        return _bounded(found, self.app.size.width)
