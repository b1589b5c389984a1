"""Counts distinct bytes by owner and kind, of any number of references: in a temporary file, not in memory."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import defaultdict
from collections.abc import Hashable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from controlplane.domain.errors import NsmlError
from controlplane.history.values import KeptKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

H = TypeVar("H", bound=Hashable)
"""The owner of counted bytes."""

Note = tuple[int, str, str]
"""Period, caller, and the first 32 digits of a digest."""

LEAST_BYTES: Final = 4 << 10
"""Minimum counted size of an object: it takes a block and an inode."""

KEY_CHARS: Final = 32
"""Kept characters of a digest: 128 bits, without feasible collisions."""

_CACHE_KIB: Final = 32 << 10


class TallyFailed(NsmlError):
    """The count failed: the disk of temporary files is full, or missing."""

    reason = "TALLY_FAILED"


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise TallyFailed("temporary files cannot be written", why=str(error)) from error


class Tally(Generic[H]):
    """Takes first all references, then the records of sent blobs, then the objects.

    Blocks only on the disk: it runs in a thread, one call at a time. Each may raise TallyFailed.
    """

    @_named()
    def __init__(self) -> None:
        # "": a temporary file, removed by SQLite when closed, or at the end of the process.
        self._file = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._file.execute("PRAGMA journal_mode = OFF")
        self._file.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        for table in ("refs", "released"):
            self._file.execute(
                f"CREATE TABLE {table} (digest BLOB NOT NULL, owner INTEGER NOT NULL,"
                " kind INTEGER NOT NULL, PRIMARY KEY (digest, owner)) WITHOUT ROWID"
            )
        self._file.execute(
            "CREATE TABLE page (digest BLOB PRIMARY KEY, size INTEGER) WITHOUT ROWID"
        )
        # One transaction, which never ends: pages are written when the cache is full, not after each row.
        self._file.execute("BEGIN")
        self._owners: dict[H, int] = {}
        self._sums: defaultdict[tuple[int, int], int] = defaultdict(int)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    @_named()
    def refer(self, owner: H, kind: KeptKind, digests: Iterable[str]) -> int:
        """Count blobs for an owner, each once, by its first kind; return the number of digests."""
        return self._add("refs", owner, kind, digests)

    @_named()
    def release(self, owner: H, digests: Iterable[str]) -> int:
        """Add blobs released by an owner: unless still referred to, they do not count as sent, either."""
        return self._add("released", owner, KeptKind.UNUSED, digests)

    @_named()
    def note(self, notes: Iterable[tuple[Note, H]]) -> list[Note]:
        """Count blobs sent by owners and not referred to; return the records of released ones.

        Args:
            notes: each with its owner.
        """
        dropped = []
        for note, owner in notes:
            number, key = self._owners.setdefault(owner, len(self._owners)), bytes.fromhex(note[2])
            where = (key, number)
            if self._has("released", where):
                if not self._has("refs", where):
                    dropped.append(note)
            else:
                self._file.execute(
                    "INSERT OR IGNORE INTO refs VALUES (?, ?, ?)", (*where, int(KeptKind.UNUSED))
                )
        return dropped

    @_named()
    def store(self, objects: Iterable[tuple[str, int]]) -> None:
        """Add the sizes of objects, by digest, to all owners referring to them."""
        self._file.execute("DELETE FROM page")
        self._file.executemany(
            "INSERT OR IGNORE INTO page VALUES (?, ?)",
            ((_key(digest), max(size, LEAST_BYTES)) for digest, size in objects),
        )
        for owner, kind, size in self._file.execute(
            "SELECT owner, kind, sum(size) FROM page CROSS JOIN refs USING (digest)"
            " GROUP BY owner, kind"
        ):
            self._sums[owner, kind] += size

    def figures(self) -> Mapping[H, Mapping[str, int]]:
        """The sums so far: bytes by owner and name of the kind."""
        names = {number: owner for owner, number in self._owners.items()}
        found: dict[H, dict[str, int]] = {}
        for (owner, kind), size in sorted(self._sums.items()):
            found.setdefault(names[owner], {})[KeptKind(kind).name] = size
        return found

    def _add(self, table: str, owner: H, kind: KeptKind, digests: Iterable[str]) -> int:
        number, count = self._owners.setdefault(owner, len(self._owners)), 0

        def rows() -> Iterable[tuple[bytes, int, int]]:
            nonlocal count
            for digest in digests:
                count += 1
                yield _key(digest), number, int(kind)

        self._file.executemany(
            f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?)",  # noqa: S608 - a constant
            rows(),
        )
        return count

    def _has(self, table: str, where: tuple[bytes, int]) -> bool:
        found = self._file.execute(
            f"SELECT 1 FROM {table} WHERE digest = ? AND owner = ?",  # noqa: S608 - a constant
            where,
        )
        return found.fetchone() is not None


def _key(digest: str) -> bytes:
    return bytes.fromhex(digest[:KEY_CHARS])
