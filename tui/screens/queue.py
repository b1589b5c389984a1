"""The queue: who waits, in which place, and why the one under the cursor does."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Static

from nsml.view.queue import COLUMNS, totals_text, waiting_lines
from nsml.view.text import visible
from tui.screens.frame import Frame, tell
from tui.sources import Topic
from tui.widgets.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from nsml.v1.sessions_pb2 import QueuedSession, Session


class QueueScreen(Frame):
    """Who waits."""

    name_of = "queue"
    topics = (Topic.QUEUE,)
    DEFAULT_CSS: ClassVar[str] = """
    QueueScreen {
        #totals { height: 1; color: $text-muted; }
        #why { height: 40%; border-top: solid $rule; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+k", "stop", "Stop", id="queue.stop"),
    ]

    def body(self) -> ComposeResult:
        """The list, and the reason."""
        yield Static(id="totals")
        yield Table(COLUMNS, key=_key, clock=self.dashboard.clock.time, id="queue")
        with VerticalScroll(id="why"):
            yield Static(id="reason")

    @property
    def table(self) -> Table[QueuedSession]:
        """The list."""
        return self.query_one("#queue", Table)

    def command(self) -> tuple[str, str]:
        """That of the list."""
        return "nsml queue", ""

    def on_mount(self) -> None:
        """Keys are for the list."""
        super().on_mount()
        self.table.focus()

    def chosen(self) -> Sequence[Session]:
        """The one under the cursor, where it is one that the user may see."""
        found = self.table.current
        row = self.model.row_named(found.session) if found is not None else None
        return [row.session] if row else []

    def draw(self) -> None:
        """Show the list."""
        queue = self.model.queue
        self.table.none = self.none(Topic.QUEUE, "nobody waits")
        self.table.show(queue.sessions if queue is not None else ())
        text = totals_text(queue) if queue is not None and queue.sessions else ""
        if queue is not None and queue.next_cursor:
            text = f"the first {len(queue.sessions):,}, all: $ nsml queue · {text}"
        tell(self.query_one("#totals", Static), Text(f" {visible(text)}"))
        self._explain()

    def on_table_moved(self) -> None:
        """Say why that one waits."""
        if self.is_in_front:  # behind another screen, that one says what is looked at
            self.dashboard.look_at(*self.chosen())
        self._explain()

    def on_table_chosen(self) -> None:
        """Open it."""
        for session in self.chosen():
            self.dashboard.open_session(session)

    def _explain(self) -> None:
        found, answer = self.table.current, self.model.shown.explanation
        lines: list[str] = []
        if found is not None:
            lines = [found.reason]
            if answer is not None and answer.HasField("waiting"):
                lines = waiting_lines(answer.waiting, self.dashboard.clock.time())
        text = "\n".join(visible(line) for line in lines)
        tell(self.query_one("#reason", Static), Text(text))


def _key(found: QueuedSession) -> str:
    return found.session or f"{found.owner} {found.created_at.seconds}"
