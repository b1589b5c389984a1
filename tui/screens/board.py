"""One board: its entries as they change, those without a score, and the one under the cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Input, Static

from nsml.common.shell import shell_line
from nsml.common.text import visible
from nsml.view.boards import best_per_word, full_name, is_of_dataset, marks_text
from tui.boards import (
    best_per_of,
    entry_columns,
    entry_lines,
    next_best_per,
    no_entries,
    score_digits,
    state_text,
    unscored_columns,
    unscored_title,
)
from tui.model import BoardQuery, entry_key, place_key
from tui.screens.listing import Listing
from tui.sources import State, Topic
from tui.widgets.filter_line import FilterLine
from tui.widgets.static import set_text
from tui.widgets.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from nsml.v1.boards_pb2 import Board, BoardEntry
    from nsml.v1.sessions_pb2 import Session
    from nsml.view.tables import Column
    from tui.feed import Feed
    from tui.model import BoardReceived


class BoardScreen(Listing["BoardEntry"]):
    """The entries of a board, live."""

    topics = (Topic.BOARD,)
    DEFAULT_CSS: ClassVar[str] = """
    BoardScreen {
        #card { height: auto; max-height: 50%; }
        &.-wide #card { height: 1fr; max-height: 100%; }
        #unscored-title { height: 1; color: $text-muted; display: none; }
        #unscored { height: auto; min-height: 2; max-height: 6; display: none; }
    }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (150, "-wide")]  # noqa: RUF012 - as Textual declares it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", id="board.back"),
        Binding("b", "best", "Best of", id="board.best"),
        Binding("a", "mine", "Mine/all", id="board.mine"),
        Binding("d", "diff", "Diff", id="board.diff"),
    ]

    def __init__(self, board: Board) -> None:
        super().__init__()
        self._board = board
        self._best_per = best_per_of(board)
        self._is_mine = False
        self._digits = score_digits(())

    def body(self) -> ComposeResult:
        """Two lists, and the details of an entry."""
        clock = self.dashboard.clock.time
        yield Static(id="counts")
        with VerticalScroll(id="listed", can_focus=False):
            yield Table(self.columns(), key=self.key, clock=clock, id="list")
            with VerticalScroll(id="card", can_focus=True):
                yield Static(id="card-text")
        yield Static(id="unscored-title")
        yield Table(unscored_columns(), key=self.key, clock=clock, id="unscored")
        yield FilterLine(placeholder=self.asks_for, id="words", compact=True)

    @property
    def unscored(self) -> Table[BoardEntry]:
        """The list of entries without a score."""
        return self.query_one("#unscored", Table)

    @property
    def current(self) -> BoardEntry | None:
        """The entry under the cursor of the list that has the focus."""
        unscored = self.unscored
        return unscored.current if unscored.has_focus else self.table.current

    @property
    def _query(self) -> BoardQuery:
        return BoardQuery(full_name(self._board), self._best_per)

    @property
    def _received(self) -> BoardReceived | None:
        received = self.model.board
        return received if received is not None and received.key == self._query.key else None

    @property
    def _entries(self) -> Sequence[BoardEntry]:
        received = self._received
        return received.answer.entries if received is not None else ()

    def columns(self) -> Sequence[Column[BoardEntry]]:
        """Those of `nsml board show`, with new changes of ranks."""
        return entry_columns(
            self._board,
            lambda one: self.model.moves.get(place_key(one, self._best_per)),
            self.dashboard.clock.time,
            self._entries,
        )

    def key(self, item: BoardEntry) -> str:
        """Its submission, else its session."""
        return entry_key(item)

    def items(self) -> Sequence[BoardEntry]:
        """Those with a rank."""
        return [one for one in self._entries if one.rank and (one.is_own or not self._is_mine)]

    def texts(self, item: BoardEntry) -> Sequence[str]:
        """Owner, team, session, checkpoint, arguments, memo, marks."""
        one = item
        return one.owner, one.team, one.session, one.checkpoint, one.args, one.memo, marks_text(one)

    def nothing(self) -> str:
        """What makes an entry."""
        if self._is_mine and any(one.rank for one in self._entries):
            return f"none of them is yours: {self.key_of('board.mine')} shows all"
        return self.none(Topic.BOARD, " ".join(no_entries(self._board)))

    def counts(self, shown: int, known: int) -> str:
        """What it ranks, and the user's place."""
        parts = [state_text(self._board, self._best_per, self._entries)]
        parts += [f"{shown:,} of {known:,}"] if shown != known else []
        parts += ["mine"] if self._is_mine else []
        state = self.model.sources[Topic.BOARD].state(self.dashboard.clock.time())
        parts += [self.words(Topic.BOARD)] if state is State.LOADING else []
        return " · ".join(parts)

    def lines(self, item: BoardEntry) -> Sequence[str]:
        """All of an entry."""
        ranked = sum(one.rank > 0 for one in self._entries)
        now = self.dashboard.clock.time()
        return entry_lines(item, self._board, ranked, now, self._entries)

    def chosen(self) -> Sequence[Session]:
        """The session of the entry under the cursor, if it is known here."""
        entry = self.current
        row = self.model.row(entry.session_id) if entry is not None else None
        return [row.session] if row is not None else []

    def command(self) -> tuple[str, str]:
        """The same entries."""
        words = ["nsml", "board", "show", full_name(self._board)]
        words += ["--per", best_per_word(self._best_per)]
        words += ["--mine"] if self._is_mine else []
        return shell_line(words), "the words of the filter" if self._words.text else ""

    # Drawing

    def draw(self) -> None:
        """Receive the board, and show it."""
        query = self._query

        async def receive(feed: Feed) -> None:
            await feed.board(query, with_own=is_of_dataset(self._board))

        self.dashboard.inspect((Topic.BOARD, query.key, receive))
        received = self._received
        if received is not None:
            before, self._board = self._board, received.answer.board
            digits, self._digits = self._digits, score_digits(self._entries)
            if before.settings != self._board.settings or digits != self._digits:
                self.table.show(self.table.items, columns=self.columns())
        self._unscored()
        super().draw()

    def _unscored(self) -> None:
        """Show entries without a score: the user's, and for the board's owner all."""
        received = self._received
        found = [
            one
            for one in (received.unscored if received is not None else ())
            if (one.is_own or not self._is_mine) and self._words.take(*self.texts(one))
        ]
        title, table = self.query_one("#unscored-title", Static), self.unscored
        title.display = table.display = bool(found)
        if not found and table.has_focus:
            self.table.focus()
        set_text(title, Text(f" {visible(unscored_title(found))}" if found else ""))
        table.show(found)

    def on_descendant_focus(self) -> None:
        """Show the entry under the cursor of the other list."""
        if self._is_ready:
            self._card()

    # Key actions

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter both lists while typing."""
        super().on_input_changed(event)
        self._unscored()

    def on_table_chosen(self) -> None:
        """Open the session of the entry; one that is not listed here is looked up by `nsml`."""
        entry = self.current
        if entry is None:
            return
        sessions = self.chosen()
        if sessions:
            self.dashboard.open_session(sessions[0])
        elif entry.session:
            self.dashboard.obey(shell_line(["status", entry.session]))
        else:
            self.dashboard.say("you may not see its session")

    def action_back(self) -> None:
        """Show all again; else leave."""
        if self._words.text or self.query_one("#words", Input).display:
            super().action_back()
        elif self._is_mine:
            self.action_mine()
        else:
            self.app.pop_screen()

    def action_best(self) -> None:
        """List the best of each user, of each team, or every entry."""
        self._best_per = next_best_per(self._best_per)
        self.redraw()

    def action_mine(self) -> None:
        """List one's own entries, or all."""
        self._is_mine = not self._is_mine
        self.redraw()

    def action_diff(self) -> None:
        """Compare the session of the entry with that of the entry above it."""
        entry = self.current
        if entry is None or not entry.rank:
            self.dashboard.say("an entry with a rank is compared, with the one above it")
            return
        above = next((one for one in self._entries if one.rank == entry.rank - 1), None)
        if above is None:
            self.dashboard.say("nothing is above it")
        elif above.session == entry.session:
            self.dashboard.say(f"both are of {visible(entry.session)}: only the checkpoints differ")
        elif not (above.session and entry.session):
            self.dashboard.say("you may not see the session of one of them")
        else:
            rows = [self.model.row(one.session_id) for one in (above, entry)]
            known = [row.session for row in rows if row is not None]
            if len(known) == len(rows):
                self.dashboard.compare(known)
            else:
                self.dashboard.obey(shell_line(["diff", above.session, entry.session]))
