"""The queue: sessions, their places, and why the one under the cursor waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding

from nsml.view.queue import COLUMNS, totals_text, waiting_lines
from tui.screens.listing import Listing
from tui.sources import Topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.binding import BindingType

    from nsml.v1.sessions_pb2 import QueuedSession, Session
    from nsml.view.tables import Column


class QueueScreen(Listing["QueuedSession"]):
    """Queued sessions in order; filtering does not change their places."""

    name_of = "queue"
    topics = (Topic.QUEUE,)
    DEFAULT_CSS: ClassVar[str] = """
    QueueScreen {
        &.-wide #listed { layout: vertical; }
        &.-wide #listed Table { width: 1fr; }
        #card, &.-wide #card { width: 1fr; height: 40%; padding: 0; border-left: none; border-top: solid $rule; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+k", "stop", "Stop", id="queue.stop"),
    ]

    def columns(self) -> Sequence[Column[QueuedSession]]:
        """Of the queue."""
        return COLUMNS

    def key(self, item: QueuedSession) -> str:
        """Its name; of a hidden one, owner and creation time."""
        return item.session or f"{item.owner} {item.created_at.seconds}"

    def items(self) -> Sequence[QueuedSession]:
        """The queued sessions."""
        queue = self.model.queue
        return queue.sessions if queue is not None else ()

    def texts(self, item: QueuedSession) -> Sequence[str]:
        """Its columns, and its reason."""
        return item.session, item.owner, item.project, item.gpu_model, item.pod, item.reason

    def nothing(self) -> str:
        """That no session is queued."""
        return self.none(Topic.QUEUE, "no queued sessions")

    def counts(self, shown: int, known: int) -> str:
        """Totals of the whole queue; the number of shown ones if these are not all."""
        queue = self.model.queue
        if queue is None or not known:
            return "queue"
        parts = [f"{shown:,} of {known:,}"] if shown != known else []
        parts += [f"the first {known:,}, all: $ nsml queue"] if queue.next_cursor else []
        return " · ".join([*parts, totals_text(queue)])

    def lines(self, item: QueuedSession) -> Sequence[str]:
        """Why it waits."""
        shown, row = self.model.shown, self.model.row_named(item.session)
        answer = shown.explanation
        is_its = row is not None and shown.session_ids == (row.session.id,)
        if is_its and answer is not None and answer.HasField("waiting"):
            return waiting_lines(answer.waiting, self.dashboard.clock.time())
        return [f"  why: {item.reason}"]

    def command(self) -> tuple[str, str]:
        """That of the list."""
        return "nsml queue", super().command()[1]

    def chosen(self) -> Sequence[Session]:
        """The session under the cursor, if the user may see it."""
        found = self.table.current
        row = self.model.row_named(found.session) if found is not None else None
        return [row.session] if row else []

    def on_table_moved(self) -> None:
        """Request why it waits."""
        self._look()
        super().on_table_moved()

    def on_screen_resume(self) -> None:
        """Request it again, whatever another screen has shown."""
        if self.is_mounted:
            self._look()

    def _look(self) -> None:
        if self.is_in_front:  # else the screen in front decides what is shown
            self.dashboard.look_at(*self.chosen())

    def on_table_chosen(self) -> None:
        """Open it."""
        for session in self.chosen():
            self.dashboard.open_session(session)
