"""A cache on disk for chunks of streamed datasets: bounded, the least recently used are evicted first.

A chunk is a file named by its digest, in a folder of the agent, and is read again and hashed each time that it is
opened: changes by a disk, or by anybody who can write there, are detected. Sessions share the chunks; a session
may read those in the manifests of its datasets. Blocking; may be used by several threads.

```
<folder>/<ab>/<digest>
```
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from typing import TYPE_CHECKING, Final

import structlog
from blake3 import blake3

from nodeagent.storage.eviction import NoRoom, room_for_builds
from nodeagent.storage.reservations import Kept, Size
from nsml.content.digests import is_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_READ_BYTES: Final = 256 << 10
_RUNS: Final = 32
"""Evictable entries: each is a run of chunks used one after the other."""
_MADE_ROOM_BYTES: Final = 32 << 20
_PARTIAL: Final = ".partial"

log = structlog.get_logger()


@dataclass(slots=True)
class _Kept:
    """A cached chunk; `turn` grows with each use of any."""

    size: int
    used_at: float
    turn: int


class ChunkCache:
    """The chunks below one folder.

    Args:
        folder: created if missing; private to the agent.
        most_bytes: of all chunks together.
        floor_bytes: free bytes on its disk at which sessions are ended.
        kind: of its entries, for evictions.
    """

    def __init__(self, folder: Path, *, kind: str, most_bytes: int, floor_bytes: int = 0) -> None:
        self._folder = folder
        self._kind = kind
        self._most_bytes = most_bytes
        self._floor_bytes = floor_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._bytes = 0
        self._coming_bytes = 0
        """Bytes of chunks being written: several are at once."""
        self._turn = 0

    def create(self) -> None:
        """Create the folder, and find the chunks of an earlier agent."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found: list[tuple[float, str, int]] = []
        for path in self._folder.glob("*/*"):
            if not is_digest(path.name):
                path.unlink()
                continue
            facts = path.stat()
            found.append((facts.st_mtime, path.name, facts.st_size))
        with self._lock:
            for used_at, digest, size in sorted(found):
                self._note(digest, size, used_at)

    def has(self, digest: str) -> bool:
        """Return whether the chunk is probably here; it need not be whole."""
        return digest in self._kept

    def open(self, digest: str) -> FileIO | None:
        """Return a chunk that matches its digest, open for reading; None: it is not here.

        A file object, which closes itself: the caller may be cancelled before it arrives.
        """
        with self._lock:
            kept = self._kept.get(digest)
            if kept is None:
                return None
            self._turn += 1
            kept.turn, kept.used_at = self._turn, time.time()
            self._kept.move_to_end(digest)
        try:
            file = FileIO(self._path(digest))
        except FileNotFoundError:
            self._drop(digest)
            return None
        try:
            is_whole = _digest_of(file) == digest
        except OSError:
            is_whole = False
        if not is_whole:
            file.close()
            log.warning("chunk.damaged", digest=digest[:16])
            self._drop(digest)
            return None
        return file

    def add(self, digest: str, data: bytes) -> None:
        """Add a verified chunk, and evict chunks beyond the bounds. Raises OSError, NoRoom."""
        with self._lock:
            self._coming_bytes += len(data)
        try:
            self._make_room(len(data))
            self._write(digest, data)
        finally:
            with self._lock:
                self._coming_bytes -= len(data)

    # A `Trees` of reservations.py and a `Cache` of eviction.py, with tens of thousands of chunks as some runs.

    def stored(self) -> dict[str, float]:
        """Return the last use of each run, Unix seconds."""
        return {one.key: one.used_at for one in self.kept()}

    def recount(self) -> None:
        """See reservations.Trees. Chunks share no files."""

    def kept(self) -> list[Kept]:
        """See reservations.Trees: the runs, which have no users."""
        with self._lock:
            each = max(self._bytes // _RUNS, 1)
            runs: list[Kept] = []
            size, count = 0, 0
            for number, one in enumerate(self._kept.values(), 1):
                size, count = size + one.size, count + 1
                if size >= each or number == len(self._kept):
                    run = Kept(
                        kind=self._kind,
                        key=str(one.turn),
                        size=Size.of(size, count),
                        users=frozenset(),
                        used_at=one.used_at,
                        is_used=False,
                    )
                    runs.append(run)
                    size = count = 0
            return runs

    def touch(self, key: str) -> None:
        """Do nothing: no replica names a run."""

    def remove(self, key: str, is_used: Callable[[], bool]) -> bool:
        """Remove a run, and all chunks used before it."""
        del is_used
        with self._lock:
            going = []
            for digest, one in self._kept.items():
                if one.turn > int(key):
                    break
                going.append(digest)
        for digest in going:
            self._drop(digest)
        return True

    # Internals.

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest

    def _note(self, digest: str, size: int, used_at: float) -> None:
        before = self._kept.pop(digest, None)
        self._turn += 1
        self._kept[digest] = _Kept(size, used_at, self._turn)
        self._bytes += size - (before.size if before else 0)

    def _write(self, digest: str, data: bytes) -> None:
        path = self._path(digest)
        staged = path.with_name(f".{secrets.token_hex(8)}{_PARTIAL}")
        path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            # not flushed: a chunk cut short by a power loss is detected by its digest
            descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
                file.write(data)
            staged.replace(path)
        except OSError:
            staged.unlink(missing_ok=True)
            raise
        with self._lock:
            self._note(digest, len(data), time.time())

    def _drop(self, digest: str) -> None:
        with self._lock:
            kept = self._kept.pop(digest, None)
            if kept is None:
                return
            self._bytes -= kept.size
            with suppress(OSError):
                self._path(digest).unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Make room for a chunk to be written, within the bound and on the disk. Raises NoRoom."""
        self._drop_oldest(self._bytes + self._coming_bytes - self._most_bytes)
        if room_for_builds(self._folder, self._floor_bytes) < size:
            self._drop_oldest(_MADE_ROOM_BYTES)
            if room_for_builds(self._folder, self._floor_bytes) < size:
                raise NoRoom("no room for streamed data: the disk of this node is full")

    def _drop_oldest(self, count: int) -> None:
        """Evict at least `count` bytes, or all."""
        for digest in self._oldest(count):
            self._drop(digest)

    def _oldest(self, count: int) -> Iterable[str]:
        going: list[str] = []
        with self._lock:
            for digest, one in self._kept.items():
                if count <= 0:
                    break
                going.append(digest)
                count -= one.size
        return going


def _digest_of(file: FileIO) -> str:
    found = blake3()
    while data := file.read(_READ_BYTES):
        found.update(data)
    return found.hexdigest()
