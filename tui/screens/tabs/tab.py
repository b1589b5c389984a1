"""What the tabs of a session have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from rich.text import Text
from textual.widgets import Static, TabPane

from nsml.common.shell import shell_line
from nsml.common.text import fit
from tui.screens.frame import set_text
from tui.sources import State

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
    """What a tab asks of the screen it is on: `tui.screens.session.SessionScreen`."""

    @property
    def tab(self) -> SessionTab | None:
        """The tab in front; None for the first, which has the charts."""
        ...

    def chosen(self) -> Sequence[Session]:
        """The session that it shows."""
        ...

    def subscribe_tab(self) -> None:
        """Receive what the tab in front shows."""
        ...

    def redraw(self) -> None:
        """Draw what is known."""
        ...

    def action_set_knob(self) -> None:
        """Ask for another value of a knob."""
        ...

    def action_pull(self) -> None:
        """Fetch the checkpoint under the cursor."""
        ...


class SessionTab(TabPane):
    """A tab of a session, with a line below it: how it stands with what it shows, and the command that shows the same.

    `name_of` is what the line of tabs calls it, `key_of` its id.
    """

    name_of: ClassVar[str] = ""
    key_of: ClassVar[str] = ""

    def __init__(self) -> None:
        super().__init__(self.name_of, id=self.key_of)

    def now(self) -> float:
        """The moment that is shown, Unix seconds."""
        return cast("Shell", self.app).clock.time()

    def compose(self) -> ComposeResult:
        """What it shows, and the line below."""
        yield from self.body()
        yield Static(classes="state")

    def body(self) -> ComposeResult:
        """What it shows."""
        yield from ()

    def details(self, session: Session) -> Sequence[Detail]:  # noqa: ARG002 - of most it is the same
        """What it needs to receive of the session while it is in front."""
        return ()

    def command(self, session: Session) -> Sequence[str]:  # noqa: ARG002 - as of `details`
        """The words of the command that shows the same; none where there is no such command."""
        return ()

    def draw(self, frame: Frame, session: Session) -> None:
        """Show what is known of it."""

    def front(self) -> Widget | None:
        """The widget that keys are for."""
        return next((one for one in self.query("*") if one.can_focus and one.display), None)

    def back(self) -> bool:
        """Whether there was something in it to leave."""
        return False

    def say(
        self, frame: Frame, session: Session, words: Sequence[str], topic: Topic | None = None
    ) -> None:
        """The line below: whether what is shown of a topic is new, `words`, and the command."""
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
