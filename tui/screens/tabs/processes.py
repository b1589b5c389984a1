"""The processes of a session, and its connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, cast

from rich.text import Text
from textual.widgets import Static

from nsml.common.text import visible
from nsml.common.units import counted
from nsml.view.processes import COLUMNS, visitor_lines
from nsml.view.program_changes import RUNS
from tui.hints import key_of
from tui.model import Detail, ProcessesReceived
from tui.screens.tabs.tab import SessionTab
from tui.sources import Topic
from tui.widgets.static import set_text
from tui.widgets.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from nsml.v1.sessions_pb2 import ReplicaProcesses, Session
    from tui.screens.frame import Frame
    from tui.shell import Shell

MOST_VISITORS: Final = 5
"""Listed visitors, the earliest first."""


class ProcessesTab(SessionTab):
    """Processes of one replica, the most active first; above them its connections."""

    name_of, key_of = "Processes", "processes"
    DEFAULT_CSS: ClassVar[str] = """
    ProcessesTab .visitors { height: auto; }
    """

    def body(self) -> ComposeResult:
        """Both."""
        yield Static(classes="visitors")
        yield Table(COLUMNS, key=lambda one: str(one.node_pid), clock=self.now)

    @property
    def _rank(self) -> int:
        return cast("Shell", self.app).model.shown.rank

    def details(self, session: Session) -> Sequence[Detail]:
        """Those of the shown replica."""
        return (Detail(Topic.PROCESSES, str(self._rank)),) if session.state in RUNS else ()

    def command(self, session: Session) -> Sequence[str]:
        """Lists them."""
        return ("nsml", "top", session.name, *(("--rank", str(self._rank)) if self._rank else ()))

    def draw(self, frame: Frame, session: Session) -> None:
        """Show them."""
        received = frame.model.shown.detail(ProcessesReceived)
        runs = session.state in RUNS
        found = received.found if received is not None and runs else None
        table = self.query_one(Table)
        table.none = frame.none(Topic.PROCESSES, "no processes") if runs else "it does not run"
        table.show(found.processes if found is not None else ())
        inside = "\n".join(f" {visible(line)}" for line in _inside(found)) if found else ""
        set_text(self.query_one(".visitors", Static), Text(inside))
        words = [counted(len(table.items), "process", "processes")] if found is not None else []
        if found is not None and found.left_out:
            words.append(f"{found.left_out:,} more left out")
        if session.spec.replica_count > 1:
            words.append(f"of rank {self._rank}: {key_of(self.app, 'log.rank')} chooses another")
        self.say(frame, session, words, Topic.PROCESSES if runs else None)


def _inside(found: ReplicaProcesses) -> Sequence[str]:
    """List connections, a line each."""
    lines = list(visitor_lines(found.visitors[:MOST_VISITORS]))
    more = len(found.visitors) - len(lines)
    if more:
        lines.append(f"and {counted(more, 'more connection')}")
    return lines or ["nobody is connected"]
