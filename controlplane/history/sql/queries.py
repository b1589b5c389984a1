"""Helpers for queries of any table."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from _typeshed import DataclassInstance

    from controlplane.history.sql.interface import Connection, Database, Parameters

R = TypeVar("R", bound="DataclassInstance")
T = TypeVar("T")

NO_LIMIT = 1 << 62
"""An unreachable limit: databases write "no limit" differently."""


class RowType(Generic[R]):
    """Maps a dataclass to rows with a column per field.

    Args:
        parse: by field name, converts a column's value to the field's.
    """

    def __init__(self, kind: type[R], /, **parse: Callable[[Any], Any]) -> None:
        self._kind = kind
        self._parse = parse
        self.names = tuple(field.name for field in fields(kind))
        self.columns = ", ".join(self.names)

    def insert(self, table: str) -> str:
        """The INSERT statement for `values`."""
        places = ", ".join(f":{name}" for name in self.names)
        return f"INSERT INTO {table} ({self.columns}) VALUES ({places})"

    def upsert(self, table: str, key: Sequence[str]) -> str:
        """The same, replacing a row with that key."""
        changed = ", ".join(f"{name} = excluded.{name}" for name in self.names if name not in key)
        return f"{self.insert(table)} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changed}"

    def values(self, value: R) -> dict[str, Any]:
        """Return the parameters of these statements."""
        return {name: getattr(value, name) for name in self.names}

    def read(self, row: Sequence[Any]) -> R:
        """Convert a row of `columns`."""
        values = dict(zip(self.names, row, strict=True))
        for name, parse in self._parse.items():
            values[name] = parse(values[name])
        return self._kind(**values)


def page(
    columns: str,
    table: str,
    key: Sequence[str],
    *,
    after: Sequence[Any] | None,
    limit: int | None,
    where: Sequence[str] = (),
    values: Sequence[Any] = (),
) -> tuple[str, tuple[Any, ...]]:
    """Build the query of the rows after the key `after`, in the order of `key`.

    Without `after` from the first row. `values` are the parameters of `where`.
    """
    order = ", ".join(key)
    behind = [f"({order}) > ({', '.join('?' * len(key))})"] if after else []
    conditions = " AND ".join((*where, *behind)) or "true"
    return (
        f"SELECT {columns} FROM {table} WHERE {conditions} ORDER BY {order} LIMIT ?",
        (*values, *(after or ()), NO_LIMIT if limit is None else limit),
    )


async def select(
    database: Database, statement: str, parameters: Parameters, read: Callable[[Any], T]
) -> tuple[T, ...]:
    """The rows of one query."""
    return await database.read(
        lambda connection: tuple(map(read, connection.execute(statement, parameters)))
    )


async def select_one(
    database: Database, statement: str, parameters: Parameters, read: Callable[[Any], T]
) -> T | None:
    """The first row of one query; None if it has no rows."""
    found = await select(database, statement, parameters, read)
    return found[0] if found else None


async def change(
    database: Database,
    statement: str,
    parameters: Parameters,
    *,
    touches: Collection[str] = (),
) -> int:
    """Run one statement; return the number of changed rows."""
    return await database.write(
        lambda connection: connection.execute(statement, parameters).rowcount, touches=touches
    )


async def change_each(database: Database, statement: str, parameters: Sequence[Parameters]) -> None:
    """Run one statement with each of these parameters."""

    def work(connection: Connection) -> None:
        connection.executemany(statement, parameters)

    await database.write(work)
