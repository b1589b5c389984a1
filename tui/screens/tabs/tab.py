"""Common parts of a session's tabs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from rich.text import Text
from textual.widgets import Static, TabPane

from nsml.common.shell import shell_line
from nsml.common.text import fit
from tui.sources import State
from tui.widgets.static import set_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.widget import Widget

    from nsml.v1.sessions_pb2 import Session
    from tui.model import Detail
    from tui.screens.frame import Frame
    from tui.shell import Shell
    from tui.sources import Topic


class TabScreen(Protocol):
    """The screen of a tab, as the tab uses it: `tui.screens.session.SessionScreen`."""

    @property
    def tab(self) -> SessionTab | None:
        """The tab in front; None for the first, which has the charts."""
        ...

    def chosen(self) -> Sequence[Session]:
        """The shown session."""
        ...

    def subscribe_tab(self) -> None:
        """Receive the data of the tab in front."""
        ...

    def redraw(self) -> None:
        """Draw the data."""
        ...

    def action_set_knob(self) -> None:
        """Ask for a new value of a knob."""
        ...

    def action_pull(self) -> None:
        """Fetch the checkpoint under the cursor."""
        ...


class SessionTab(TabPane):
    """A tab of a session, with a line below it: the state of its data, and the equivalent command.

    `name_of` is its title, `key_of` its id.
    """

    name_of: ClassVar[str] = ""
    key_of: ClassVar[str] = ""

    def __init__(self) -> None:
        super().__init__(self.name_of, id=self.key_of)

    def now(self) -> float:
        """The shown time, Unix seconds."""
        return cast("Shell", self.app).clock.time()

    def compose(self) -> ComposeResult:
        """The content, and the line below."""
        yield from self.body()
        yield Static(classes="state")

    def body(self) -> ComposeResult:
        """The content."""
        yield from ()

    def details(self, session: Session) -> Sequence[Detail]:  # noqa: ARG002 - of most it is the same
        """Data of the session to receive while it is in front."""
        return ()

    def command(self, session: Session) -> Sequence[str]:  # noqa: ARG002 - as of `details`
        """Words of the equivalent command; none if there is no such command."""
        return ()

    def draw(self, frame: Frame, session: Session) -> None:
        """Show its data."""

    def front(self) -> Widget | None:
        """The widget to focus."""
        return next((one for one in self.query("*") if one.can_focus and one.display), None)

    def back(self) -> bool:
        """Leave an inner view; False: there was none."""
        return False

    def say(
        self, frame: Frame, session: Session, words: Sequence[str], topic: Topic | None = None
    ) -> None:
        """Set the line below: the topic's state unless it is live, `words`, and the command."""
        parts = list(words)
        if topic is not None:
            source = frame.model.sources[topic]
            if source.state(self.now()) is not State.LIVE:
                parts.insert(0, frame.words(topic))
        if command := self.command(session):
            parts.append(f"$ {shell_line(command)}")
        line = self.query_one(".state", Static)
        set_text(
            line, Text(f" {fit(' · '.join(filter(None, parts)), max(frame.size.width - 2, 1))}")
        )
