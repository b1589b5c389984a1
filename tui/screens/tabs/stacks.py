"""Stacks of a session's Python threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.binding import Binding

from nsml.common.text import visible
from nsml.common.units import counted
from nsml.view.program_changes import RUNS
from nsml.view.stacks import lines
from tui.hints import key_of
from tui.model import WITH_LOCALS, Detail, StacksReceived
from tui.screens.tabs.tab import SessionTab
from tui.sources import Topic
from tui.widgets.text_view import TextView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from nsml.v1.sessions_pb2 import Session
    from tui.screens.frame import Frame
    from tui.screens.tabs.tab import TabScreen


class StacksTab(SessionTab):
    """The stacks of all replicas, as read when the tab was opened; differences between ranks are marked."""

    name_of, key_of = "Stacks", "stacks"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("v", "locals", "Locals", id="stacks.locals")]

    def __init__(self) -> None:
        super().__init__()
        self._what = ""

    def body(self) -> ComposeResult:
        """Lines."""
        yield TextView(has_titles=True)

    def details(self, session: Session) -> Sequence[Detail]:
        """Those of all replicas, once."""
        return (Detail(Topic.STACKS, self._what),) if session.state in RUNS else ()

    def command(self, session: Session) -> Sequence[str]:
        """Shows the same."""
        return ("nsml", "stacks", session.name, *(("--locals",) if self._what else ()))

    def action_locals(self) -> None:
        """Show or hide the local variables of each call."""
        self._what = "" if self._what else WITH_LOCALS
        screen = cast("TabScreen", self.screen)
        screen.subscribe_tab()
        screen.redraw()

    def draw(self, frame: Frame, session: Session) -> None:
        """Show them."""
        received = frame.model.shown.detail(StacksReceived)
        runs = session.state in RUNS
        replicas = received.replicas if received is not None and runs else ()
        none = frame.none(Topic.STACKS, "loading...") if runs else "it does not run"
        shown = [visible(line) for line in lines(replicas)] if replicas else []
        self.query_one(TextView).show_text(shown, of=session.id + self._what, none=f"  {none}")
        words = [counted(len(replicas), "replica")] if replicas else []
        if replicas:
            words.append(f"{key_of(self.app, 'app.refresh')} reads them again")
        self.say(frame, session, words, Topic.STACKS if runs else None)
