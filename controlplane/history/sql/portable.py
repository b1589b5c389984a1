"""Dumps and loads a history in SQL as portable rows; see controlplane.history.portable."""

# ruff: noqa: S608 - statements are put together from constants here; values are parameters

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from controlplane.history.errors import HistoryConflict
from controlplane.history.portable import Batch, check, size_of
from controlplane.history.sql.appending import begin_folding
from controlplane.history.sql.queries import page
from controlplane.history.sql.tables import BACKED_UP, columns_of, names_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable
    from contextlib import AbstractAsyncContextManager

    from controlplane.history.portable import Value
    from controlplane.history.sql.interface import Connection, Dialect
    from controlplane.history.sql.tables import Table

T = TypeVar("T")

_BATCH_BYTES: Final = 1 << 20
_PAGE_ROWS: Final = 128


class Viewing(Protocol):
    """Runs work on an unchanging view."""

    async def __call__(self, work: Callable[[Connection], T], /) -> T:
        """Run `work`, which must not keep the connection."""
        ...


class Snapshots(Protocol):
    """The interface of a database for dumping and loading it as a whole."""

    @property
    def dialect(self) -> Dialect:
        """Its SQL dialect."""
        ...

    @property
    def with_ids(self) -> str:
        """The clause before VALUES of an INSERT with explicit values of generated ids."""
        ...

    def go_on(self, connection: Connection, table: str) -> None:
        """Continue the generated ids of a table after its explicit ones."""
        ...

    def view(self) -> AbstractAsyncContextManager[Viewing]:
        """A snapshot of committed data, for any number of reads."""
        ...

    async def pour(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, which may take long, in one transaction; it is not retried."""
        ...


async def dump(database: Snapshots) -> AsyncGenerator[Batch, None]:
    """Everything as it is at the first batch; see History.dump."""
    async with database.view() as view:
        for table in BACKED_UP.values():
            after: tuple[Value, ...] | None = None
            while (page := await view(partial(_page, table, after))) is not None:
                last = dict(zip(page.columns, page.rows[-1], strict=True))
                after = tuple(last[name] for name in names_of(table.key))
                yield _decoded(page, database.dialect)


async def load(database: Snapshots, given: Iterable[Batch]) -> None:
    """Insert everything into an empty history; see History.load."""
    await database.pour(lambda connection: _insert(connection, database, given))


def _page(table: Table, after: tuple[Value, ...] | None, connection: Connection) -> Batch | None:
    """Read about a batch of rows after a key."""
    names = table.column_names
    query = page(", ".join(names), table.name, names_of(table.key), after=after, limit=_PAGE_ROWS)
    found = connection.execute(*query)
    rows: list[tuple[Value, ...]] = []
    size = 0
    for row in found:
        rows.append(tuple(row))
        size += size_of(rows[-1])
        if size >= _BATCH_BYTES:
            break
    return Batch(table=table.name, columns=names, rows=tuple(rows)) if rows else None


def _insert(connection: Connection, database: Snapshots, given: Iterable[Batch]) -> None:
    for name in BACKED_UP:
        if connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone() is not None:
            raise HistoryConflict("the history is not empty", why=f"{name} has rows")
    for batch in map(check, given):
        columns, places = ", ".join(batch.columns), ", ".join("?" * len(batch.columns))
        connection.executemany(
            f"INSERT INTO {batch.table} ({columns}) {database.with_ids} VALUES ({places})",
            _kept(batch, database.dialect).rows,
        )
    begin_folding(connection)  # a backup of an older version has no levels
    for table in BACKED_UP.values():
        if any(column.kind == "serial" for column in columns_of(table.columns)):
            database.go_on(connection, table.name)


def _decoded(batch: Batch, dialect: Dialect) -> Batch:
    return _changed(batch, dialect.text_of)


def _kept(batch: Batch, dialect: Dialect) -> Batch:
    return _changed(batch, dialect.any_text)


def _changed(batch: Batch, change: Callable[[Any], Any]) -> Batch:
    """Apply `change` to a batch's texts with a dialect-specific encoding."""
    kinds = {column.name: column.kind for column in columns_of(BACKED_UP[batch.table].columns)}
    rows = batch.rows
    for at in (at for at, name in enumerate(batch.columns) if kinds[name] == "any_text"):
        rows = tuple((*row[:at], change(row[at]), *row[at + 1 :]) for row in rows)
    return Batch(table=batch.table, columns=batch.columns, rows=rows)
