"""Typed records under a prefix of the store, each with the revision that wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from controlplane.store.interface import (
    Compare,
    Delete,
    Get,
    KeyValue,
    KeyValueStore,
    Put,
    StoreError,
    absent,
    unchanged,
)

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class UndecodableRecord(StoreError):
    """An unreadable stored record: damaged, or of a later version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored(Generic[T]):
    """A record at one revision.

    Attributes:
        key: the record's key inside its table, without the prefix.
        revision: of its last write: compare on it to write safely.
        create_revision: of its first write.
    """

    key: str
    value: T
    revision: int
    create_revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableListing(Generic[T]):
    """The records of a table at one revision, sorted by key."""

    items: tuple[Stored[T], ...]
    revision: int


class Table(Generic[T]):
    """All records of one kind: a prefix, and their encoding.

    A table holds no connection: it builds the parts of transactions, and reads through a
    given store.

    Args:
        prefix: begins every key of the table and ends in "/"; no table's prefix begins another's.
        encode: returns a record's bytes.
        decode: returns the record; any ValueError from it means that the bytes are unreadable.
    """

    def __init__(
        self, prefix: str, *, encode: Callable[[T], bytes], decode: Callable[[bytes], T]
    ) -> None:
        if len(prefix) < 2 or not prefix.endswith("/"):
            raise ValueError(f"a table's prefix is a name and a slash, not {prefix!r}")
        self.prefix = prefix
        self._encode = encode
        self._decode = decode

    def path(self, key: str) -> str:
        """Return the store's key of a record."""
        if not key:
            raise ValueError(f"a record of {self.prefix} has a key")
        return self.prefix + key

    async def get(self, store: KeyValueStore, key: str) -> Stored[T] | None:
        """Return a record as it is now, or None."""
        item = await store.get(self.path(key))
        return None if item is None else self.stored(item)

    async def list(
        self, store: KeyValueStore, *, under: str = "", revision: int = 0
    ) -> TableListing[T]:
        """Return the records whose keys begin with `under`, at one revision (0: now)."""
        listing = await store.list(self.prefix + under, revision=revision)
        return TableListing(items=tuple(map(self.stored, listing.items)), revision=listing.revision)

    def stored(self, item: KeyValue) -> Stored[T]:
        """Decode a record from an answer of the store or from a watch.

        Raises:
            UndecodableRecord: the bytes are not a record of this table.
        """
        try:
            value = self._decode(item.value)
        except ValueError as error:
            raise UndecodableRecord(f"{item.key} cannot be read: {error}") from error
        return Stored(
            key=item.key[len(self.prefix) :],
            value=value,
            revision=item.mod_revision,
            create_revision=item.create_revision,
        )

    def put(self, key: str, value: T, *, lease: int | None = None) -> Put:
        """Write a record; add `unchanged` or `absent` unless any previous state is fine."""
        return Put(key=self.path(key), value=self._encode(value), lease=lease)

    def delete(self, key: str) -> Delete:
        """Delete a record."""
        return Delete(key=self.path(key))

    def read(self, key: str) -> Get:
        """Read a record inside a transaction; decode the answer with `stored`."""
        return Get(key=self.path(key))

    def absent(self, key: str) -> Compare:
        """The record does not exist."""
        return absent(self.path(key))

    def unchanged(self, record: Stored[T]) -> Compare:
        """The record is still as it was read."""
        return unchanged(self.path(record.key), record.revision)
