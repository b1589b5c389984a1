"""The fence: the highest term of a leader that has written here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.history.errors import HistoryFenced

if TYPE_CHECKING:
    from controlplane.history.sql.interface import Connection, Dialect


def pass_fence(connection: Connection, dialect: Dialect, term: int) -> None:
    """Refuse writes of earlier leaders from now on; part of a larger transaction.

    The row is locked until the transaction ends, so that no later term can write in between.

    Raises:
        HistoryFenced: a later leader has written already.
    """
    known = _known(connection, dialect)
    if known is None:
        connection.execute(
            "INSERT INTO properties (name, value) VALUES ('term', '0') ON CONFLICT (name) DO NOTHING"
        )
        known = _known(connection, dialect) or 0
    if term < known:
        raise HistoryFenced(
            "another control plane leads and has written to the history",
            why=f"its term is {known}, ours is {term}",
        )
    if term > known:
        connection.execute("UPDATE properties SET value = ? WHERE name = 'term'", (str(term),))


def _known(connection: Connection, dialect: Dialect) -> int | None:
    row = connection.execute(
        f"SELECT value FROM properties WHERE name = 'term'{dialect.for_update}"  # noqa: S608
    ).fetchone()
    return None if row is None else int(row[0])
