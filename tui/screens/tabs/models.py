"""Saved checkpoints and artifacts of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.binding import Binding

from nsml.client.streams import ENDED_STATES
from nsml.common.units import counted, size_text
from nsml.view.saved import COLUMNS, is_lost, key_of, newest_first
from tui.model import ArtifactsReceived, CheckpointsReceived, Detail
from tui.screens.tabs.tab import SessionTab
from tui.sources import Topic
from tui.widgets.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from nsml.v1.sessions_pb2 import Session
    from nsml.view.saved import Saved
    from tui.screens.frame import Frame
    from tui.screens.tabs.tab import TabScreen


class ModelsTab(SessionTab):
    """Checkpoints and artifacts, the newest first."""

    name_of, key_of = "Models", "models"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("D", "screen.pull", "Download", id="models.pull"),
    ]

    def body(self) -> ComposeResult:
        """The table."""
        yield Table(COLUMNS, key=key_of, clock=self.now)

    def details(self, session: Session) -> Sequence[Detail]:  # noqa: ARG002 - the same of all
        """Both."""
        return (Detail(Topic.CHECKPOINTS), Detail(Topic.ARTIFACTS))

    def command(self, session: Session) -> Sequence[str]:
        """Lists them."""
        return ("nsml", "model", "ls", session.name)

    @property
    def current(self) -> Saved | None:
        """The one under the cursor."""
        found: Saved | None = self.query_one(Table).current
        return found

    def on_table_chosen(self, event: Table.Chosen) -> None:
        """Fetch it."""
        event.stop()
        cast("TabScreen", self.screen).action_pull()

    def draw(self, frame: Frame, session: Session) -> None:
        """Show them."""
        received = frame.model.shown.detail(CheckpointsReceived)
        others = frame.model.shown.detail(ArtifactsReceived)
        checkpoints = list(received.checkpoints) if received is not None else []
        artifacts = list(others.artifacts) if others is not None else []
        saved = newest_first(checkpoints, artifacts)
        table = self.query_one(Table)
        nothing = "it saved nothing" if session.state in ENDED_STATES else _NOTHING_YET
        table.none = frame.none(Topic.CHECKPOINTS, nothing)
        table.show(saved)
        lost = sum(map(is_lost, saved))
        size = size_text(sum(one.size_bytes for one in saved if not is_lost(one)))
        # `nsml model ls` ends at the prompt, and has the newest there.
        counts = [
            counted(sum(not is_lost(one) for one in some), word)
            for some, word in ((checkpoints, "checkpoint"), (artifacts, "artifact"))
            if some
        ]
        words = [f"{' and '.join(counts)}, {size}, newest first"] if saved else []
        if lost:
            words.append(f"{lost} lost")
        if fetching := frame.dashboard.actions.fetching:
            words.append(fetching)
        self.say(frame, session, words, Topic.CHECKPOINTS)


_NOTHING_YET = "nothing was saved yet: after nsml.bind(save=..., load=...) in its code nsml.save(NAME) makes one"
