"""Arguments of a session, by key, without dashes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from nsml.common.units import counted, size_text
from nsml.view import compare
from nsml.view.complete_sessions import is_short
from nsml.view.reported_config import count_text
from nsml.view.tables import Column
from tui.model import ConfigReceived, Detail
from tui.screens.tabs.tab import SessionTab
from tui.sources import Topic
from tui.widgets.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from nsml.v1.sessions_pb2 import Session
    from nsml.view.compare import Row
    from tui.screens.frame import Frame
    from tui.shell import Shell


def _value(row: Row, _now: float) -> str:
    return next((compare.cell(row, name) for name in row.values), "")


COLUMNS: tuple[Column[Row], ...] = (
    Column(key="kind", title="What", cell=lambda row, _: row.kind.value),
    Column(key="key", title="Name", cell=lambda row, _: row.title, is_name=True),
    Column(key="value", title="Value", cell=_value, shrinks_to=20),
)


class ArgumentsTab(SessionTab):
    """Arguments, the configuration that its programs reported, and other requested settings."""

    name_of, key_of = "Args", "args"

    def body(self) -> ComposeResult:
        """The table."""
        yield Table(COLUMNS, key=lambda row: f"{row.kind} {row.key}", clock=self.now)

    def details(self, session: Session) -> Sequence[Detail]:
        """The reported configuration, of a session that has run."""
        return (Detail(Topic.CONFIG),) if session.attempt else ()

    def command(self, session: Session) -> Sequence[str]:
        """Prints the line that repeats it."""
        return ("nsml", "command", session.name)

    def on_table_chosen(self, event: Table.Chosen) -> None:
        """Show a value in full."""
        event.stop()
        row: Row | None = self.query_one(Table).current
        if row is not None:
            cast("Shell", self.app).say(f"{row.title}: {_value(row, 0.0)}")

    def draw(self, frame: Frame, session: Session) -> None:
        """Show them in the given order."""
        received = frame.model.shown.detail(ConfigReceived)
        configs = received.configs if received is not None else {}
        rows = compare.by_kind(
            [
                *compare.asked([session]),
                *compare.configs([session], configs),
                *compare.set_live([session]),
            ]
        )
        table = self.query_one(Table)
        table.none = "it was asked for nothing in particular"
        table.show(rows)
        count = sum(row.kind is compare.Kind.ARGUMENT for row in rows)
        lacking = [f"{size_text(session.left_out_bytes)} not here yet"] if is_short(session) else []
        config = configs.get(session.id)
        told = [count_text(config)] if config is not None else []
        self.say(frame, session, [counted(count, "argument"), *told, *lacking])
