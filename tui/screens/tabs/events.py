"""Events of a session, from its submission on."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, cast

from nsml.common.units import counted, size_text
from nsml.view.checkpoints import is_lost, state_text
from nsml.view.events import COLUMNS, PlatformEvent, newest, of_session
from nsml.view.times import seconds_of
from tui.model import CheckpointsReceived, Detail
from tui.screens.tabs.tab import SessionTab
from tui.sources import Topic
from tui.widgets.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from nsml.v1.checkpoints_pb2 import Checkpoint
    from nsml.v1.sessions_pb2 import Session
    from tui.screens.frame import Frame
    from tui.shell import Shell


class EventsTab(SessionTab):
    """Events in its record, and its checkpoints; the newest first."""

    name_of, key_of = "Events", "events"

    def body(self) -> ComposeResult:
        """The table."""
        columns = [column for column in COLUMNS if column.key != "subject"]
        yield Table(columns, key=lambda one: f"{one.at} {one.what} {one.words}", clock=self.now)

    def details(self, session: Session) -> Sequence[Detail]:  # noqa: ARG002 - the same of all
        """The checkpoints: all else is in the record."""
        return (Detail(Topic.CHECKPOINTS),)

    def command(self, session: Session) -> Sequence[str]:
        """Explains its state."""
        return ("nsml", "status", "--explain", session.name)

    def on_table_chosen(self, event: Table.Chosen) -> None:
        """Show an event in full."""
        event.stop()
        one: PlatformEvent | None = self.query_one(Table).current
        if one is not None:
            cast("Shell", self.app).say(f"{one.what}: {one.words}" if one.words else one.what)

    def draw(self, frame: Frame, session: Session) -> None:
        """Show them."""
        received = frame.model.shown.detail(CheckpointsReceived)
        saved = map(_saved, received.checkpoints if received is not None else ())
        found = newest(chain(of_session(session), saved))
        self.query_one(Table).show(found)
        self.say(frame, session, [counted(len(found), "event")], Topic.CHECKPOINTS)


def _saved(one: Checkpoint) -> PlatformEvent:
    what = "checkpoint lost" if is_lost(one) else "checkpoint"
    words = f"{one.name}, {size_text(one.size_bytes)}, {state_text(one)}"
    return PlatformEvent(seconds_of(one.saved_at), what, one.session, words)
