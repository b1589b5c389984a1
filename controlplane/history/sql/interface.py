"""What the parts ask of a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from controlplane.history.subscriptions import Changes

T = TypeVar("T")
Parameters: TypeAlias = "Sequence[Any] | Mapping[str, Any]"


class Rows(Protocol):
    """What a statement gave."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""
        ...

    def fetchone(self) -> Any:
        """The next row, None after the last."""
        ...

    def fetchall(self) -> list[Any]:
        """The rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Row by row."""
        ...


class Connection(Protocol):
    """Runs statements in a transaction that is not its caller's to end.

    Parameters are `?` and a sequence, or `:name` and a mapping.
    """

    def execute(self, statement: str, parameters: Parameters = ..., /) -> Rows:
        """Run one statement."""
        ...

    def executemany(self, statement: str, rows: Iterable[Parameters], /) -> object:
        """Run one statement with each of the rows, in their order."""
        ...


class Dialect(Protocol):
    """Where databases differ. `name` is always that of a `:name` parameter."""

    @property
    def for_update(self) -> str:
        """What ends a query whose rows nobody else changes until the transaction ends."""
        ...

    @property
    def size(self) -> str:
        """A query of one number: the bytes that the database takes."""
        ...

    @property
    def now(self) -> str:
        """A query of one number: the time, Unix seconds; "": this process alone writes, and its clock tells."""
        ...

    def many(self, values: Collection[Any]) -> Any:
        """A list as the parameter that `among` takes."""
        ...

    def among(self, column: str, name: str) -> str:
        """The condition that a column is one of a list; a text with NUL is in none."""
        ...

    def each(self, name: str) -> str:
        """What a query reads from to get each text of a list as the column `value`."""
        ...

    def rows_named(
        self, connection: Connection, statement: str, session_id: str, names: Collection[str]
    ) -> Iterator[tuple[Any, ...]]:
        """The rows of a session whose column `name` is one of these, which may have any character.

        `statement` is a query that ends with the condition on the session, `:session_id`.
        """
        ...

    def glob(self, glob: str) -> Any:
        """A glob as the parameter that `fits` takes."""
        ...

    def fits(self, column: str, name: str) -> str:
        """The condition that a column fits a glob, as domain.names.fits_glob has it."""
        ...

    def holds(self, column: str, name: str) -> str:
        """The condition that a text occurs in a column, character by character."""
        ...

    def any_text(self, text: str) -> Any:
        """A text that may have any character, as such a column keeps it; in order of characters."""
        ...

    def text_of(self, kept: Any) -> str:
        """What `any_text` was made from."""
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
        """Who follows which session."""
        ...

    @property
    def dialect(self) -> Dialect:
        """How it says things."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether other processes write to it at the same time."""
        ...

    async def write(self, work: Callable[[Connection], T], *, touches: Collection[str] = ()) -> T:
        """Run `work` in a transaction that it may share; on disk when this returns.

        What `work` raises undoes its own changes only. `touches` names what it reads and changes,
        sessions by id: work that touches the same, in whatever process, runs one after the other, and
        followers of these sessions hear of it after the commit. `work` must not keep the
        connection, and may run again after it was undone.
        """
        ...

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on a consistent view of what is committed."""
        ...

    async def close(self) -> None:
        """Let go of it; nothing may be called after."""
        ...
