"""Events of the platform, the newest first."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final

from nsml.common.units import ago, counted, short_moment
from nsml.view.events import COLUMNS, PlatformEvent, newest, of_cluster, of_node, of_session
from tui.screens.listing import Listing
from tui.sources import Topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.view.tables import Column

GATHERED_EVERY_S: Final = 1.0
"""How often all events are collected."""


class EventsScreen(Listing[PlatformEvent]):
    """Events in the records of sessions, nodes and control planes, and observed ones."""

    name_of = "events"
    topics = (Topic.SESSIONS, Topic.ENDED, Topic.NODES)
    DEFAULT_CSS: ClassVar[str] = """
    EventsScreen {
        &.-wide #listed { layout: vertical; }
        &.-wide #listed Table { width: 1fr; }
        #card, &.-wide #card { width: 1fr; height: auto; max-height: 6; border-left: none; border-top: solid $rule; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._gathered: Sequence[PlatformEvent] = ()
        self._gathered_at = -GATHERED_EVERY_S

    def columns(self) -> Sequence[Column[PlatformEvent]]:
        """Of events."""
        return COLUMNS

    def key(self, item: PlatformEvent) -> str:
        """All of it: no two events are equal."""
        return f"{item.at} {item.what} {item.subject} {item.words}"

    def items(self) -> Sequence[PlatformEvent]:
        """The newest of all events."""
        now = self.dashboard.clock.monotonic()
        if now - self._gathered_at >= GATHERED_EVERY_S:
            self._gathered_at = now
            model = self.model
            parts = chain(
                (one for row in model.every_row() for one in of_session(row.session)),
                (one for node in model.nodes for one in of_node(node)),
                of_cluster(model.cluster) if model.cluster is not None else (),
                model.seen,
            )
            self._gathered = newest(parts)
        return self._gathered

    def texts(self, item: PlatformEvent) -> Sequence[str]:
        """Kind, subject, and the rest of its line."""
        return item.what, item.subject, item.words

    def nothing(self) -> str:
        """That there are none."""
        return self.none(Topic.SESSIONS, "nothing happened yet")

    def counts(self, shown: int, known: int) -> str:
        """How many are shown."""
        few = f"{shown:,} of " if shown != known else ""
        return f"{few}the last {counted(known, 'event')}"

    def lines(self, item: PlatformEvent) -> Sequence[str]:
        """Its whole line."""
        now = self.dashboard.clock.time()
        when = f"{short_moment(item.at, now, has_seconds=True)}, {ago(now - item.at)}"
        return [f"{when}  {item.what}  {item.subject}", f"  {item.words}"]

    def _list(self, *, is_other: bool = False) -> None:
        table = self.table
        is_at_top = not table.items or table.current == table.items[0]
        super()._list(is_other=is_other)
        if is_at_top:
            # A cursor at the newest event stays at the newest.
            table.action_edge(-1)

    def on_table_chosen(self) -> None:
        """Open its session, or the nodes."""
        item = self.table.current
        row = self.model.row(item.session_id) if item is not None else None
        if row is not None:
            self.dashboard.open_session(row.session)
        elif item is not None and any(node.name == item.subject for node in self.model.nodes):
            self.dashboard.go("nodes")
