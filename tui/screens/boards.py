"""Boards and competitions: what they rank; and the first entries or the phases of the one under the cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsml.common.units import counted
from nsml.v1.competitions_pb2 import Competition
from nsml.view.boards import board_lines, full_name, kind_word
from tui import competitions
from tui.boards import FIRST, NONE_YET, preview_lines
from tui.competitions import listed_columns, listed_name
from tui.model import BoardQuery
from tui.screens.listing import Listing
from tui.sources import Topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.view.tables import Column
    from tui.competitions import Listed
    from tui.feed import Feed


class BoardsScreen(Listing["Listed"]):
    """The list of boards, and of competitions."""

    name_of = "boards"
    topics = (Topic.BOARDS, Topic.COMPETITIONS)
    shown_by = "nsml board ls"

    def columns(self) -> Sequence[Column[Listed]]:
        """Those of `nsml board ls`."""
        return listed_columns()

    def key(self, item: Listed) -> str:
        """Its full name, which a board of each kind and a competition may have."""
        kind = "competition" if isinstance(item, Competition) else str(item.kind)
        return f"{listed_name(item)} {kind}"

    def items(self) -> Sequence[Listed]:
        """All of them, competitions last."""
        return [*self.model.boards, *self.model.competitions]

    def texts(self, item: Listed) -> Sequence[str]:
        """Name, owner, metric, what it ranks; of a competition its title."""
        if isinstance(item, Competition):
            return listed_name(item), item.settings.title, item.phase, "competition"
        settings = item.settings
        return full_name(item), settings.metric, settings.description, kind_word(item.kind)

    def nothing(self) -> str:
        """What a board is, and how to create one."""
        return self.none(Topic.BOARDS, NONE_YET)

    def counts(self, shown: int, known: int) -> str:
        """How many there are."""
        count = len(self.model.competitions)
        what = counted(known - count, "board")
        if not count:
            return f"{shown:,} of {what}"
        return f"{shown:,} of {known:,}: {what}, {counted(count, 'competition')}"

    def inspect(self, item: Listed) -> None:
        """Receive its first entries; of a competition all that is shown is in the list."""
        if isinstance(item, Competition):
            self.dashboard.inspect(None)
            return
        query = BoardQuery(full_name(item), limit=FIRST)

        async def receive(feed: Feed) -> None:
            await feed.board(query)

        self.dashboard.inspect((Topic.BOARD, query.key, receive))

    def lines(self, item: Listed) -> Sequence[str]:
        """Its settings, and its first entries or its phases."""
        if isinstance(item, Competition):
            now, opens = self.dashboard.clock.time(), self.key_of("table.open")
            return competitions.preview_lines(item, now, opens=opens)
        received, query = self.model.board, BoardQuery(full_name(item), limit=FIRST)
        if received is None or received.key != query.key:
            return [*board_lines(item), "", self.none(Topic.BOARD, "")]
        room = self.query_one("#card-text").size.width
        now, opens = self.dashboard.clock.time(), self.key_of("table.open")
        return preview_lines(received.answer, now, room, opens=opens)

    def on_table_chosen(self) -> None:
        """Open it."""
        item = self.table.current
        if isinstance(item, Competition):
            self.dashboard.open_competition(item)
        elif item is not None:
            self.dashboard.open_board(item)
