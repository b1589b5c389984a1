"""What the parts say alike of any table."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from _typeshed import DataclassInstance

    from controlplane.history.sql.interface import Database, Parameters

R = TypeVar("R", bound="DataclassInstance")
T = TypeVar("T")

NO_LIMIT = 1 << 62
"""A limit that nothing reaches: databases write "none" differently."""


class RowType(Generic[R]):
    """A dataclass as rows that have a column of each field.

    Args:
        parse: by a field's name, what makes it of its column where they are not the same.
    """

    def __init__(self, kind: type[R], /, **parse: Callable[[Any], Any]) -> None:
        self._kind = kind
        self._parse = parse
        self.names = tuple(field.name for field in fields(kind))
        self.columns = ", ".join(self.names)

    def insert(self, table: str) -> str:
        """The statement that takes `values`."""
        places = ", ".join(f":{name}" for name in self.names)
        return f"INSERT INTO {table} ({self.columns}) VALUES ({places})"

    def upsert(self, table: str, key: Sequence[str]) -> str:
        """The same, which replaces a row with that key."""
        changed = ", ".join(f"{name} = excluded.{name}" for name in self.names if name not in key)
        return f"{self.insert(table)} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changed}"

    def values(self, value: R) -> dict[str, Any]:
        """A value as the parameters of these statements."""
        return {name: getattr(value, name) for name in self.names}

    def read(self, row: Sequence[Any]) -> R:
        """The value of a row of `columns`."""
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
    """The query of the rows behind the one with the key `after`, in the order of `key`.

    Without `after` from the first on. `values` are those of the conditions `where`.
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
    """The first row of one query; None without one."""
    found = await select(database, statement, parameters, read)
    return found[0] if found else None


async def change(
    database: Database,
    statement: str,
    parameters: Parameters,
    *,
    touches: Collection[str] = (),
) -> int:
    """Run one statement; how many rows it changed."""
    return await database.write(
        lambda connection: connection.execute(statement, parameters).rowcount, touches=touches
    )
