"""board watch: a board that changes, redrawn in place on a terminal."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from cli.app import App
from cli.boards.options import name_argument, selection_of, selection_options
from cli.boards.submissions import check_line_format
from cli.group import command, pass_app
from cli.live_table import Redrawn
from cli.output import rendered, table_lines, write_line
from nsml.common.text import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.boards import Selection
    from nsml.client.calls import Client
    from nsml.common.clock import Clock
    from nsml.v1.boards_pb2 import Board, BoardEntry

_REDRAW_S = 1.0
"""Interval in seconds in which ages are redrawn."""


class RankChanges:
    """The entries of a watched board, and how their ranks changed since the watch began."""

    def __init__(self) -> None:
        self._first: dict[str, int] | None = None
        self._known: dict[str, BoardEntry] = {}

    def take(self, entries: Sequence[BoardEntry]) -> tuple[list[BoardEntry], list[BoardEntry]]:
        """Return the entries with their changes, and those of them that are new or changed."""
        if self._first is None:
            self._first = {_key(one): one.rank for one in entries}
        shown = [self._marked(one) for one in entries]
        news = [one for one in shown if self._known.get(_key(one)) != one]
        self._known = {_key(one): one for one in shown}
        return shown, news

    def _marked(self, entry: BoardEntry) -> BoardEntry:
        """Return the entry with the rank it had first, if it has another one now; else as of a day ago."""
        before = (self._first or {}).get(_key(entry), 0)
        if entry.rank == before:
            return entry
        made = type(entry)()
        made.CopyFrom(entry)
        made.rank_before = before
        return made


def _key(entry: BoardEntry) -> str:
    return entry.submission_id or entry.session_id or entry.session


class Watched:
    """A board on the screen, or as lines."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._screen = Redrawn(app)
        self._changes = RankChanges()
        self._board: Board | None = None
        self._entries: Sequence[BoardEntry] = ()
        self.link = self._screen.link

    def take(self, board: Board, entries: Sequence[BoardEntry]) -> None:
        """Show the newest entries: redrawn, else those that changed, a line each."""
        self._board = board
        self._entries, news = self._changes.take(entries)
        if self._screen.draws:
            self.draw()
        else:
            self._lines(board, news)

    def draw(self) -> None:
        """Redraw the table; its ages have changed."""
        from nsml.view import boards as view

        if self._board is None:
            return
        table = rendered(self._app, self._entries, view.columns_for(self._board))
        left_out = table.left_out_text(self._app.room)
        head = visible(view.headline(self._board))
        lines = table.lines if self._entries else ["no entries yet"]
        self._screen.show([head, *lines, *([left_out] if left_out else [])])

    def _lines(self, board: Board, news: Sequence[BoardEntry]) -> None:
        from nsml.view import boards as view

        for one in news:
            if not self._app.is_for_people:
                write_line(self._app, view.entry_record(one))
                continue
            for line in table_lines(self._app, [one], view.columns_for(board)):
                self._app.write(line)
            self._app.flags.has_header = False
        self._app.stdout.flush()

    async def keep_true(self, clock: Clock) -> None:
        """Redraw ages until cancelled."""
        while self._screen.draws:
            await clock.sleep(_REDRAW_S)
            self.draw()


def watch_entries(app: App, name: str, selection: Selection) -> None:
    """Show a board and its changes until interrupted.

    Raises:
        CommandError: a format that cannot be written line by line; USAGE.
    """
    from nsml.client.boards import watch_board
    from nsml.common.concurrency import beside_each_other

    check_line_format(app, "nsml board show NAME -w -o jsonl")
    watched = Watched(app)

    async def follow(client: Client) -> None:
        await client.boards.get(name)  # fails at once on a dead platform; a lost one is waited for
        watching = watch_board(client, name, selection, on_link=watched.link)
        async with beside_each_other() as group, aclosing(watching):
            group.create_task(watched.keep_true(client.clock))
            async for answer in watching:
                watched.take(answer.board, answer.entries)

    app.call(follow)


@command(
    "watch",
    examples=["nsml board watch digits", "nsml board watch lee/digits --per team -n 20"],
)
@name_argument()
@selection_options
@pass_app
def watch(app: App, *, name: str, mine: bool, per: str | None, first: int | None) -> None:
    """Show a board and its changes until Ctrl-C.

    As nsml ps -w does for sessions. ± is the change of the rank since the watch began. Without a terminal it prints a line for each new
    or changed entry; for programs: nsml board show NAME -w -o jsonl.
    """
    watch_entries(app, name, selection_of(mine, per, first))
