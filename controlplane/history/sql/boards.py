"""Boards and their settings."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from controlplane.domain.boards.values import DEFAULT_SETTINGS, BoardKind
from controlplane.domain.competitions.phases import scores_shown
from controlplane.history.board_values import (
    BoardMaking,
    BoardRow,
    board_key,
    decode_settings,
    encode_settings,
)
from controlplane.history.sql.competition_rows import open_with
from controlplane.history.sql.queries import RowType, change, select, select_one

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from controlplane.domain.boards.values import PublicScore
    from controlplane.domain.competitions.values import Competition
    from controlplane.history.sql.interface import Connection, Database, Dialect

_BOARD: Final = RowType(BoardRow)
_INSERT: Final = _BOARD.insert("boards")
_CHANGE: Final = (
    f"{_INSERT} ON CONFLICT (owner, name, kind)"
    " DO UPDATE SET settings = excluded.settings, team = excluded.team"
)
_SELECT: Final = f"SELECT {_BOARD.columns} FROM boards"


class SqlBoards:
    """Boards of sessions, and of those datasets whose owners changed a setting."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, row: BoardRow, *, most: int) -> BoardMaking:
        """Make a board, unless there is one of its owner, name and kind, or the owner has `most` of its kind."""

        def work(connection: Connection) -> BoardMaking:
            if connection.execute(
                "SELECT 1 FROM boards WHERE owner = ? AND name = ? AND kind = ?",
                (row.owner, row.name, int(row.kind)),
            ).fetchone():
                return BoardMaking()
            (count,) = connection.execute(
                "SELECT count(*) FROM boards WHERE owner = ? AND kind = ?",
                (row.owner, int(row.kind)),
            ).fetchone()
            if count >= most:
                return BoardMaking(is_full=True)
            connection.execute(_INSERT, _values(row))
            return BoardMaking(is_made=True)

        return await self._database.write(
            work, touches={f"boards/{row.owner}", board_key(row.owner, row.name)}
        )

    async def update(
        self,
        key: tuple[str, str, BoardKind],
        change_row: Callable[[BoardRow], BoardRow],
        *,
        default: BoardRow | None = None,
        check: Callable[[BoardRow, BoardRow, PublicScore, str], None] | None = None,
    ) -> BoardRow | None:
        """Change settings and team of a board in one transaction; None: there is none, and no `default` to begin with.

        An exception of `change_row` or `check` is raised, and nothing is changed.

        Args:
            key: its owner, name and kind.
            change_row: returns the changed board.
            default: the board if there is none.
            check: of a dataset's board, called with the board before and after, and with `scores_shown` of the
                competitions that are open until the change is stored.
        """
        owner, name, kind = key
        dialect = self._database.dialect

        def work(connection: Connection) -> BoardRow | None:
            row = _locked(connection, dialect, key) or default
            if row is None:
                return None
            changed = change_row(row)
            if check is not None and kind is BoardKind.DATASET:
                dataset = owner, name
                shown = scores_shown(open_with(connection, {dataset}), dataset)
                check(row, changed, *shown)
            connection.execute(_CHANGE, _values(changed))
            return changed

        return await self._database.write(work, touches={board_key(owner, name)})

    async def get(self, owner: str, name: str, kind: BoardKind) -> BoardRow | None:
        """Return a board; None: there is none, or of a dataset: the default settings hold."""
        return await select_one(
            self._database,
            f"{_SELECT} WHERE owner = ? AND name = ? AND kind = ?",
            (owner, name, int(kind)),
            _read,
        )

    async def remove(self, owner: str, name: str) -> bool:
        """Remove a board of sessions; False: there is none."""
        return (
            await change(
                self._database,
                "DELETE FROM boards WHERE owner = ? AND name = ? AND kind = ?",
                (owner, name, int(BoardKind.METRIC)),
                touches={board_key(owner, name)},
            )
            > 0
        )

    async def named(self, name: str) -> tuple[BoardRow, ...]:
        """List the boards of a name, by owner and kind."""
        return await select(
            self._database, f"{_SELECT} WHERE name = ? ORDER BY owner, kind", (name,), _read
        )

    async def count_of(self, owner: str) -> int:
        """Count the boards of sessions of an owner."""
        [count] = await select(
            self._database,
            "SELECT count(*) FROM boards WHERE owner = ? AND kind = ?",
            (owner, int(BoardKind.METRIC)),
            itemgetter(0),
        )
        return int(count)


def show_no_more(connection: Connection, dialect: Dialect, competition: Competition) -> None:
    """Let the boards of a competition's datasets show no more of scores than its phases do; part of a larger transaction.

    The transaction touches `board_key` of each.
    """
    for owner, name in sorted(competition.settings.datasets):
        mode, _ = scores_shown([competition], (owner, name))
        known = _locked(connection, dialect, (owner, name, BoardKind.DATASET))
        row = known or BoardRow(
            owner=owner,
            name=name,
            kind=BoardKind.DATASET,
            settings=DEFAULT_SETTINGS[BoardKind.DATASET],
            created_at=competition.created_at,
        )
        shown = max(row.settings.public_score, mode)
        changed = replace(row, settings=replace(row.settings, public_score=shown))
        if changed != known:
            connection.execute(_CHANGE, _values(changed))


def _locked(
    connection: Connection, dialect: Dialect, key: tuple[str, str, BoardKind]
) -> BoardRow | None:
    owner, name, kind = key
    found = connection.execute(
        f"{_SELECT} WHERE owner = ? AND name = ? AND kind = ?{dialect.for_update}",
        (owner, name, int(kind)),
    ).fetchone()
    return None if found is None else _read(found)


def delete_board(connection: Connection, owner: str, name: str) -> None:
    """Delete the settings of a dataset's board; part of a larger transaction."""
    connection.execute(
        "DELETE FROM boards WHERE owner = ? AND name = ? AND kind = ?",
        (owner, name, int(BoardKind.DATASET)),
    )


def _values(row: BoardRow) -> dict[str, Any]:
    return {
        **_BOARD.values(row),
        "kind": int(row.kind),
        "settings": encode_settings(row.settings),
    }


def _read(row: Sequence[Any]) -> BoardRow:
    values = dict(zip(_BOARD.names, row, strict=True))
    kind = BoardKind(values["kind"])
    return BoardRow(
        **{**values, "kind": kind, "settings": decode_settings(values["settings"], kind)}
    )
