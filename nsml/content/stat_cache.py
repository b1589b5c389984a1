"""Cache of the chunks of files when last read, so that unchanged files need not be read again.

A file counts as unchanged while its path, device, inode number, size, mtime and ctime are the same.
Two changes within one tick of a file system's clock leave the same times. So a file changed less than
`RACY_NS` before its listing is read each time (git calls such files racily clean), and rows with a later time
than now are ignored: the clock has gone back.

The cache is optional: if it is unusable or damaged, files are read.
"""

from __future__ import annotations

import os
import struct
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from nsml.common.private_files import is_exposed
from nsml.content.manifest import ChunkRef

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nsml.content.listing import FolderFile

T = TypeVar("T")

FILE_NAME: Final = "read-files-1.sqlite"
"""In the user's cache folder. Increase the number with the row format or the chunk boundaries."""
RACY_NS: Final = 2_000_000_000
"""The coarsest clock of a file system in use: FAT's."""
MOST_BYTES: Final = 512 << 20
"""Limit of the cache file; a larger one is recreated. A row with one chunk takes about 130 bytes."""
_WAIT_S: Final = 2.0
"""Timeout for another client's writes."""
_AT_ONCE: Final = 500

_HEAD: Final = struct.Struct("<QQQqqq")
"""Head of a row: device, inode number, size, mtime, ctime, time of the scan; then chunks and checksum."""
_CHUNK: Final = struct.Struct("<32sI")
_CHECK_BYTES: Final = 8


class StatCache:
    """Chunks of files, valid for one lstat result. Never fails. Not thread-safe.

    Several programs may use one cache file at the same time.

    Args:
        file: the cache file; created if missing, for this user only.
        now_ns: the wall clock, in nanoseconds since 1970, before the files were listed.
    """

    def __init__(self, file: Path, *, now_ns: int) -> None:
        self._file = file
        self._now_ns = now_ns

    def look_up(self, root: Path, files: Sequence[FolderFile]) -> list[tuple[ChunkRef, ...] | None]:
        """Return the chunks of each file below `root`, None for files that must be read."""
        keys = _keys(root, files)

        def read(database: sqlite3.Connection) -> list[tuple[ChunkRef, ...] | None]:
            found: list[tuple[ChunkRef, ...] | None] = []
            for start in range(0, len(keys), _AT_ONCE):
                some = keys[start : start + _AT_ONCE]
                marks = ",".join("?" * len(some))
                query = f"SELECT path, row FROM files WHERE path IN ({marks})"  # noqa: S608 - question marks only
                rows: dict[bytes, bytes] = dict(database.execute(query, some))
                found += [
                    self._chunks(key, rows.get(key, b""), file)
                    for key, file in zip(some, files[start : start + _AT_ONCE], strict=True)
                ]
            return found

        return self._tried(read) or [None] * len(files)

    def keep(self, root: Path, read: Sequence[tuple[FolderFile, Sequence[ChunkRef]]]) -> None:
        """Store the chunks of files below `root` that did not change while read."""
        settled = [one for one in read if self._is_settled(one[0])]
        keys = _keys(root, [file for file, _ in settled])
        rows = [
            (key, self._row(key, file, chunks))
            for key, (file, chunks) in zip(keys, settled, strict=True)
        ]

        def write(database: sqlite3.Connection) -> None:
            with database:
                database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?)", rows)

        if rows:
            self._tried(write)

    def forget(self, root: Path, files: Sequence[FolderFile]) -> None:
        """Remove files from the cache."""

        def write(database: sqlite3.Connection) -> None:
            with database:
                database.executemany(
                    "DELETE FROM files WHERE path = ?", [(key,) for key in _keys(root, files)]
                )

        self._tried(write)

    def _is_settled(self, file: FolderFile) -> bool:
        written, changed, *_ = file.version
        return max(written, changed) + RACY_NS < self._now_ns

    def _row(self, key: bytes, file: FolderFile, chunks: Sequence[ChunkRef]) -> bytes:
        refs = b"".join(_CHUNK.pack(bytes.fromhex(one.digest), one.size) for one in chunks)
        row = _HEAD.pack(*_facts(file), self._now_ns) + refs
        return row + _check(key, row)

    def _chunks(self, key: bytes, row: bytes, file: FolderFile) -> tuple[ChunkRef, ...] | None:
        """Decode the chunks of a row; None if it is damaged or does not match the file."""
        body, check = row[:-_CHECK_BYTES], row[-_CHECK_BYTES:]
        if len(body) < _HEAD.size or check != _check(key, body):
            return None
        *facts, noted_ns = _HEAD.unpack_from(body)
        if tuple(facts) != _facts(file) or not self._is_settled(file) or noted_ns > self._now_ns:
            return None
        chunks = _CHUNK.iter_unpack(memoryview(body)[_HEAD.size :])
        return tuple(ChunkRef(digest.hex(), size) for digest, size in chunks)

    def _tried(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Return the result of `work`; None if the database is unusable."""
        import sqlite3

        try:
            with closing(self._open()) as database:
                return work(database)
        except sqlite3.OperationalError:
            return None  # locked for too long by another client, disk full, or no write permission
        except sqlite3.DatabaseError:
            self._remove()
            return None
        except OSError:
            return None

    def _open(self) -> sqlite3.Connection:
        import sqlite3

        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        with os.fdopen(os.open(self._file, flags, 0o600), "rb") as opened:
            facts = os.fstat(opened.fileno())
        if is_exposed(facts):
            raise PermissionError(f"others may change {self._file}")
        if facts.st_size > MOST_BYTES:
            self._remove()
            os.close(os.open(self._file, flags, 0o600))
        database = sqlite3.connect(self._file, timeout=_WAIT_S)
        # A crash may damage it: each row has its own checksum, and the cache can be rebuilt.
        database.execute("PRAGMA synchronous = OFF")
        database.execute(
            "CREATE TABLE IF NOT EXISTS files (path BLOB PRIMARY KEY, row BLOB NOT NULL) WITHOUT ROWID"
        )
        return database

    def _remove(self) -> None:
        for file in (self._file, self._file.with_name(f"{self._file.name}-journal")):
            with suppress(OSError):
                file.unlink()


def _keys(root: Path, files: Sequence[FolderFile]) -> list[bytes]:
    """Return row keys: hashes of 16 bytes, since paths are long and need not be readable here."""
    from blake3 import blake3

    top = f"{os.path.realpath(root)}/"
    return [blake3(os.fsencode(top + "/".join(file.parts))).digest(length=16) for file in files]


def _facts(file: FolderFile) -> tuple[int, int, int, int, int]:
    written, changed, number, device = file.version
    return device, number, file.size, written, changed


def _check(key: bytes, body: bytes) -> bytes:
    from blake3 import blake3

    return blake3(key + body).digest(length=_CHECK_BYTES)
