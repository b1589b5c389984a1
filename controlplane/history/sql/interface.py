"""The interface of a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from controlplane.history.subscriptions import Changes

T = TypeVar("T")
Parameters: TypeAlias = "Sequence[Any] | Mapping[str, Any]"


class Rows(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """Number of changed rows."""
        ...

    def fetchone(self) -> Any:
        """The next row, None after the last."""
        ...

    def fetchall(self) -> list[Any]:
        """The remaining rows."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Row by row."""
        ...


class Connection(Protocol):
    """Runs statements in a transaction, which the caller must not end.

    Parameters are `?` and a sequence, or `:name` and a mapping.
    """

    def execute(self, statement: str, parameters: Parameters = ..., /) -> Rows:
        """Run one statement."""
        ...

    def executemany(self, statement: str, rows: Iterable[Parameters], /) -> object:
        """Run one statement with each of the rows, in their order."""
        ...


class Dialect(Protocol):
    """Differences between databases. `name` is always the name of a `:name` parameter."""

    @property
    def for_update(self) -> str:
        """The suffix of a query that locks its rows until the transaction ends."""
        ...

    @property
    def size(self) -> str:
        """A query for the size of the database in bytes."""
        ...

    @property
    def now(self) -> str:
        """A query for the time in Unix seconds; "": only this process writes, and its clock is used."""
        ...

    def many(self, values: Collection[Any]) -> Any:
        """Encode a list as the parameter of `among`."""
        ...

    def among(self, column: str, name: str) -> str:
        """The condition that a column is one of a list; a text with NUL is in none."""
        ...

    def each(self, name: str) -> str:
        """The FROM item that yields each text of a list as the column `value`."""
        ...

    def rows_named(
        self, connection: Connection, statement: str, session_id: str, names: Collection[str]
    ) -> Iterator[tuple[Any, ...]]:
        """Select the rows of a session with one of these names, which may have any character.

        `statement` is a query that ends with the condition on the session, `:session_id`.
        """
        ...

    def glob(self, glob: str) -> Any:
        """Encode a glob as the parameter of `fits`."""
        ...

    def fits(self, column: str, name: str) -> str:
        """The condition that a column matches a glob, as in domain.names.fits_glob."""
        ...

    def holds(self, column: str, name: str) -> str:
        """The condition that a text occurs in a column, character by character."""
        ...

    def number_in(self, column: str, key: str) -> str:
        """The whole number at a key of the JSON object in a column; null: it has no such key."""
        ...

    def any_text(self, text: str) -> Any:
        """Encode a text with any characters for its column; keeps the order of characters."""
        ...

    def text_of(self, kept: Any) -> str:
        """Decode a value of `any_text`."""
        ...

    def next_chunks(
        self, connection: Connection, streams: Collection[int], after: int, limit: int
    ) -> list[int]:
        """The ids of the next chunks of several streams in commit order, along an index."""
        ...


class Database(Protocol):
    """Runs work in transactions."""

    @property
    def changes(self) -> Changes:
        """Subscriptions to sessions."""
        ...

    @property
    def dialect(self) -> Dialect:
        """Its SQL dialect."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether other processes write to it at the same time."""
        ...

    async def write(
        self,
        work: Callable[[Connection], T],
        *,
        touches: Collection[str] = (),
        notifies: Collection[str] = (),
    ) -> T:
        """Run `work` in a possibly shared transaction; on disk when this returns.

        An exception of `work` rolls back its own changes only. `touches` names what it reads and
        changes, sessions by id: work that touches the same runs one after the other, across processes,
        and followers of these sessions are notified after the commit. Followers of `notifies` are
        notified too, without waiting for others that do so. `work` must not keep the connection or return
        a cursor, and may run again after a rollback.
        """
        ...

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on a consistent view of committed data; it must not keep the connection or return a cursor."""
        ...

    async def close(self) -> None:
        """Close it; nothing may be called afterwards."""
        ...
