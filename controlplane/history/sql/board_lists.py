"""Lists of boards: those of sessions, and those of datasets, which have no row of their own until a setting is changed."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from controlplane.domain.boards.values import DEFAULT_SETTINGS, BoardKind
from controlplane.domain.policy import SEE
from controlplane.domain.values import PartAccess, Visibility
from controlplane.history.board_values import BoardRow, decode_settings
from controlplane.history.sql.datasets import full_listing
from controlplane.history.sql.visible import may_condition, viewer_parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controlplane.domain.identity import User
    from controlplane.history.sql.interface import Connection, Database, Dialect
    from controlplane.history.values import DatasetListing


class BoardKey(NamedTuple):
    """Boards are listed in the order of their keys."""

    owner: str = ""
    name: str = ""
    kind: int = 0
    """A BoardKind; 0 only in the key before the first board."""


class ListedBoard(NamedTuple):
    """A board, or a dataset that may have one."""

    row: BoardRow
    """With the default settings, unless one was changed; creation and team of a dataset's board are the dataset's."""
    visibility: Visibility
    dataset: DatasetListing | None = None
    """A dataset without a changed setting of a board, and without submissions: it has a board if it has an evaluation."""

    @property
    def key(self) -> BoardKey:
        """Where it is in the list."""
        return BoardKey(self.row.owner, self.row.name, int(self.row.kind))


class SqlBoardLists:
    """Pages of boards, with what decides whether a dataset has one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, viewer: User, *, after: BoardKey, limit: int) -> tuple[ListedBoard, ...]:
        """List boards that the viewer sees, and visible datasets that may have one, by key.

        A dataset may have one if a setting of its board was changed, if it has submissions other than test ones, or if a
        part of it is restricted.

        Args:
            viewer: the user who reads the list.
            after: key of the last one of the previous page.
            limit: most rows.
        """
        statement = _statement(self._database.dialect, viewer, after)
        parameters = {
            **viewer_parameters(viewer),
            **{f"after_{name}": value for name, value in after._asdict().items()},
            "limit": limit,
        }

        def work(connection: Connection) -> tuple[ListedBoard, ...]:
            rows = connection.execute(statement, parameters).fetchall()
            return tuple(_read(connection, row) for row in rows)

        return await self._database.read(work)


_SUBMITTED: Final = (
    "EXISTS (SELECT 1 FROM submissions s WHERE s.dataset_owner = d.owner AND s.dataset = d.name"
    " AND s.is_test = 0 AND s.rerun_of = '')"
)
_RESTRICTED: Final = (
    "EXISTS (SELECT 1 FROM dataset_parts p WHERE p.owner = d.owner AND p.name = d.name"
    f" AND p.access <> {int(PartAccess.OPEN)})"
)
_THERE: Final = (
    "EXISTS (SELECT 1 FROM dataset_versions v WHERE v.owner = d.owner AND v.name = d.name"
    " AND v.removed_at = 0)"
)


def _statement(dialect: Dialect, viewer: User, after: BoardKey) -> str:
    """Each kind along its own key, and of both the first rows."""
    visibility = dialect.number_in("settings", "visibility")
    of_sessions = (
        "SELECT b.owner, b.name, b.kind, b.settings, b.created_at, b.team, b.visibility, 1 AS is_board"
        f" FROM (SELECT boards.*, {visibility} AS visibility FROM boards) AS b"
        f" WHERE b.kind = {int(BoardKind.METRIC)} AND {may_condition('b', viewer, SEE)}"
        " AND (b.owner, b.name, b.kind) > (:after_owner, :after_name, :after_kind)"
        " ORDER BY b.owner, b.name, b.kind LIMIT :limit"
    )
    behind = ">" if after.kind >= BoardKind.DATASET else ">="
    of_datasets = (
        f"SELECT d.owner, d.name, {int(BoardKind.DATASET)} AS kind, b.settings, d.created_at, d.team,"
        f" d.visibility, CASE WHEN b.owner IS NOT NULL OR {_SUBMITTED} THEN 1 ELSE 0 END AS is_board"
        " FROM datasets d LEFT JOIN boards b ON b.owner = d.owner AND b.name = d.name"
        f" AND b.kind = {int(BoardKind.DATASET)}"
        f" WHERE (d.owner, d.name) {behind} (:after_owner, :after_name)"
        f" AND {may_condition('d', viewer, SEE)} AND {_THERE}"
        f" AND (b.owner IS NOT NULL OR {_SUBMITTED} OR {_RESTRICTED})"
        " ORDER BY d.owner, d.name LIMIT :limit"
    )
    return (
        f"SELECT * FROM ({of_sessions}) AS of_sessions"
        f" UNION ALL SELECT * FROM ({of_datasets}) AS of_datasets ORDER BY 1, 2, 3 LIMIT :limit"
    )


def _read(connection: Connection, row: Sequence[Any]) -> ListedBoard:
    owner, name, number, settings, created_at, team, visibility, is_board = row
    kind = BoardKind(number)
    board = BoardRow(
        owner=owner,
        name=name,
        kind=kind,
        settings=DEFAULT_SETTINGS[kind] if settings is None else decode_settings(settings, kind),
        created_at=created_at,
        team=team,
    )
    dataset = None if is_board else full_listing(connection, owner, name)
    return ListedBoard(board, Visibility(visibility), dataset)
