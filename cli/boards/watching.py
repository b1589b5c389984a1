"""board watch: a board that changes, redrawn in place on a terminal."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from cli.app import App
from cli.boards.options import name_argument, selection_of, selection_options
from cli.group import command, pass_app
from cli.watched_table import WatchedTable, check_line_format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.client.boards import Selection
    from nsml.client.calls import Client
    from nsml.v1.boards_pb2 import BoardEntry


class RankChanges:
    """How the ranks of a watched board's entries changed since the watch began."""

    def __init__(self) -> None:
        self._first: dict[str, int] | None = None

    def marked(self, entries: Sequence[BoardEntry]) -> list[BoardEntry]:
        """Return the entries with these changes; the first call begins the watch."""
        if self._first is None:
            self._first = {_key(one): one.rank for one in entries}
        return [self._marked(one) for one in entries]

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


def watch_entries(app: App, name: str, selection: Selection) -> None:
    """Show a board and its changes until interrupted.

    Raises:
        CommandError: a format that cannot be written line by line; USAGE.
    """
    from nsml.client.boards import watch_board
    from nsml.common.concurrency import beside_each_other
    from nsml.view import boards as view

    check_line_format(app, "nsml board show NAME -w -o jsonl")
    changes = RankChanges()
    watched = WatchedTable(app, key=_key, record=view.entry_record, none="no entries yet")

    async def follow(client: Client) -> None:
        await client.boards.get(name)  # fails at once on a dead platform; a lost one is waited for
        watching = watch_board(client, name, selection, on_link=watched.link)
        async with beside_each_other() as group, aclosing(watching):
            group.create_task(watched.keep_true(client.clock))
            async for answer in watching:
                shown, board = changes.marked(answer.entries), answer.board
                watched.take(shown, view.columns_for(board, shown), view.headline(board))

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
    entry, and for each one that looks different, apart from its age; for programs: nsml board show NAME -w -o jsonl.
    """
    watch_entries(app, name, selection_of(mine, per, first))
