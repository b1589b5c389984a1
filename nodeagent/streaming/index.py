"""An index of a dataset version: file paths in order, and the chunks of each by position.

A manifest lists a million files; a request asks for one, or for some bytes of one. So a manifest is read once into
an SQLite file, which answers both without reading the rest. Blocking; may be used by several threads.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from blake3 import blake3

from nsml.content.stored_manifest import StoredManifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_TABLES: Final = """
CREATE TABLE file (path BLOB PRIMARY KEY, number INTEGER, size INTEGER, etag TEXT) WITHOUT ROWID;
CREATE TABLE chunk (file INTEGER, start INTEGER, size INTEGER, digest BLOB, PRIMARY KEY (file, start)) WITHOUT ROWID;
"""
_PARTIAL: Final = ".partial"


@dataclass(frozen=True, slots=True)
class File:
    """A file of a dataset: `number` is its place in the index, `etag` names its content."""

    path: bytes
    number: int
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """`size` bytes of a file from `start` on."""

    start: int
    size: int
    digest: str


class Index:
    """The index in the file `path`, written by `build_index`. Raises OSError if it is missing or damaged."""

    def __init__(self, path: Path) -> None:
        self._turn = threading.Lock()
        try:
            self._database = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro&immutable=1",
                uri=True,
                check_same_thread=False,
            )
            self.files, self.size = self._database.execute(
                "SELECT count(*), coalesce(sum(size), 0) FROM file"
            ).fetchone()
        except sqlite3.Error as error:
            raise OSError(f"the index cannot be read: {error}") from error

    def close(self) -> None:
        """Close the file."""
        with self._turn:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def find(self, path: bytes) -> File | None:
        """Return the file with that path, or None."""
        rows = self._rows("SELECT path, number, size, etag FROM file WHERE path = ?", path)
        return File(*rows[0]) if rows else None

    def files_from(self, first: bytes, end: bytes | None, most: int) -> Sequence[File]:
        """Return at most `most` files, in order of their paths, from `first` on and before `end`."""
        columns = "SELECT path, number, size, etag FROM file WHERE path >= ?"
        if end is None:
            rows = self._rows(f"{columns} ORDER BY path LIMIT ?", first, most)
        else:
            rows = self._rows(f"{columns} AND path < ? ORDER BY path LIMIT ?", first, end, most)
        return [File(*row) for row in rows]

    def chunks(self, file: File, start: int, end: int) -> Sequence[Chunk]:
        """Return the chunks with the bytes `start` to `end` (exclusive) of a file."""
        rows = self._rows(
            "SELECT start, size, digest FROM chunk WHERE file = ?1 AND start < ?3 AND start >="
            " (SELECT max(start) FROM chunk WHERE file = ?1 AND start <= ?2) ORDER BY start",
            file.number,
            start,
            end,
        )
        return [Chunk(at, size, digest.hex()) for at, size, digest in rows]

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            with self._turn:
                return self._database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise OSError(f"the index cannot be read: {error}") from error


def build_index(manifest: Path, target: Path, look: Callable[[], object] = lambda: None) -> None:
    """Write the index of a stored manifest to `target`; on disk when this returns.

    `look` is called now and then, and may raise to abort.

    Raises:
        ContentError: it is not a manifest.
        OSError: the disk refused.
    """
    staged = target.with_name(f".{secrets.token_hex(8)}{_PARTIAL}")
    try:
        with StoredManifest(manifest) as stored:
            stored.check(look=look)
            database = sqlite3.connect(staged)
            try:
                database.executescript(
                    "PRAGMA journal_mode=OFF; PRAGMA synchronous=FULL;" + _TABLES
                )
                with database:
                    _fill(database, stored, look)
            finally:
                database.close()
        staged.replace(target)
    except sqlite3.Error as error:
        raise OSError(f"the index could not be written: {error}") from error
    finally:
        with suppress(OSError):
            staged.unlink(missing_ok=True)


def _fill(database: sqlite3.Connection, stored: StoredManifest, look: Callable[[], object]) -> None:
    for number, entry in enumerate(stored.entries):
        look()
        content, start, count = blake3(), 0, 0

        def rows() -> Iterator[tuple[int, int, int, bytes]]:
            nonlocal start, count
            for ref in entry.chunks:  # noqa: B023 - used at once
                digest = bytes.fromhex(ref.digest)
                content.update(digest)  # noqa: B023
                yield number, start, ref.size, digest  # noqa: B023
                start += ref.size
                count += 1

        database.executemany("INSERT INTO chunk VALUES (?, ?, ?, ?)", rows())
        # with a part count, as after a multipart upload: clients take other ETags for the MD5 of the content
        etag = f"{content.hexdigest()[:32]}-{max(count, 1)}"
        database.execute(
            "INSERT INTO file VALUES (?, ?, ?, ?)", (entry.path.encode(), number, entry.size, etag)
        )
