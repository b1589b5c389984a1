"""Reads the files of a folder once: cuts and hashes them, and detects changes during the read."""

from __future__ import annotations

import errno
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from nsml.content import errors
from nsml.content.chunks import LARGEST_CHUNK, chunks_of
from nsml.content.digests import digest_of
from nsml.content.listing import open_root, unreadable
from nsml.content.manifest import DEFAULT_LIMITS, ChunkRef, Entry
from nsml.content.safe_paths import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from io import FileIO

    from nsml.content.listing import FolderFile, FolderFiles
    from nsml.content.safe_paths import Beneath, Version
    from nsml.content.stat_cache import StatCache

T = TypeVar("T")

_REPLACED = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
"""A file listed before, or a folder above it, is now missing or a link."""
_GROUP_BYTES: Final = 2 << 20
_GROUP_FILES: Final = 256
_KEPT_AT_ONCE: Final = 4_096
"""Batch size of stat cache writes, in files."""
_ENTRY_BYTES, _REF_BYTES = 46, 70
"""Encoded size of an entry without its path, and of a chunk without the digits of its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of reading: files and bytes, done and in total."""

    files: int
    bytes: int
    files_total: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk of a file and its offset; `data` is None if its bytes are read on demand."""

    file: FolderFile
    offset: int
    ref: ChunkRef
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """All of a small file, or the next of a large one."""

    file: FolderFile
    pieces: tuple[Piece, ...]
    is_end: bool = True
    is_as_listed: bool = False
    """Last part only: the file was read, unchanged since listed."""


class FolderReader:
    """Reads listed files: their chunks, and in the end the entries of their manifest.

    Args:
        listed: the files to read.
        cache: files cached here give their chunks without bytes.
        owner: files of other uids are refused.
        progress: called after each file, and each chunk of a large one.

    Attributes:
        entries: manifest entries of the files read to their end.
        is_known: whether the cache has all files, so that none must be read.
    """

    def __init__(
        self,
        listed: FolderFiles,
        *,
        cache: StatCache | None = None,
        owner: int | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.listed = listed
        self._cache = cache
        self._owner = owner
        self._progress = progress
        self._known: Sequence[tuple[ChunkRef, ...] | None] = [None] * len(listed.files)
        if cache is not None:
            self._known = cache.look_up(listed.root, listed.files)
        self.is_known = None not in self._known
        self.entries: list[Entry] = []
        self._refs: list[ChunkRef] = []
        self._unkept: list[tuple[FolderFile, tuple[ChunkRef, ...]]] = []
        self._encoded_bytes = self._bytes = 0
        self._bytes_total = listed.size

    def groups(self, readers: int = 0) -> Generator[list[Piece], None, None]:
        """Read the chunks of all files in order, a few megabytes at a time.

        `readers`: number of read-ahead threads; with 0, files are read in the caller's thread, on demand.

        Raises:
            ChangedWhilePacking: a file was replaced, or written to while it was read.
            Unreadable: a file cannot be read.
            TooLarge: over the limit of a manifest, or the files have grown over `max_bytes`.
        """
        units = self._units()
        groups = _in_order(map(_grouped, units), readers) if readers else _one_by_one(units)
        try:
            with closing(groups):
                for group in groups:
                    for part in group:
                        self._take(part)
                    yield [piece for part in group for piece in part.pieces]
        finally:
            self._keep()

    def _units(self) -> Iterator[Iterator[_Part]]:
        """Units of work for one thread: a large file, or adjacent small ones."""
        run: list[tuple[FolderFile, tuple[ChunkRef, ...] | None]] = []
        held = 0
        for file, known in zip(self.listed.files, self._known, strict=True):
            size = 0 if known is not None else file.size
            if run and (held + size > _GROUP_BYTES or len(run) >= _GROUP_FILES):
                yield self._parts(run)
                run, held = [], 0
            run.append((file, known))
            held += size
        if run:
            yield self._parts(run)

    def _parts(
        self, run: Sequence[tuple[FolderFile, tuple[ChunkRef, ...] | None]]
    ) -> Iterator[_Part]:
        with open_root(self.listed.root, self._owner) as folder:
            for file, known in run:
                if known is not None:
                    yield _Part(file, tuple(pieces_of(file, known)))
                else:
                    yield from _read(folder, file)

    def _take(self, part: _Part) -> None:
        self._refs += [piece.ref for piece in part.pieces]
        size = sum(piece.ref.size for piece in part.pieces)
        self._encoded_bytes += sum(_REF_BYTES + len(str(one.ref.size)) for one in part.pieces)
        if part.is_end:
            file, refs = part.file, tuple(self._refs)
            self._refs = []
            self._encoded_bytes += _ENTRY_BYTES + len(file.path.encode())
            self.entries.append(
                Entry(
                    path=file.path,
                    mode=file.mode,
                    size=sum(ref.size for ref in refs),
                    chunks=refs,
                )
            )
            if part.is_as_listed:
                self._unkept.append((file, refs))
                if len(self._unkept) >= _KEPT_AT_ONCE:
                    self._keep()
        if self._encoded_bytes > DEFAULT_LIMITS.encoded_bytes:
            raise errors.TooLarge(
                "the folder has more than one version can list: its list of files and their parts is over"
                f" {DEFAULT_LIMITS.encoded_bytes >> 30} GiB, as of 15 TiB in large files;"
                " send it as several",
                (),
            )
        self._bytes += size
        if self._bytes > self.listed.max_bytes:
            raise errors.TooLarge(
                f"the folder has grown over the limit of {self.listed.max_bytes:,} bytes", ()
            )
        if self._progress is not None:
            self._progress(
                Progress(
                    files=len(self.entries),
                    bytes=self._bytes,
                    files_total=len(self.listed.files),
                    bytes_total=max(self._bytes_total, self._bytes),
                )
            )

    def _keep(self) -> None:
        if self._cache is not None and self._unkept:
            self._cache.keep(self.listed.root, self._unkept)
        self._unkept = []


def pieces_of(file: FolderFile, refs: Iterable[ChunkRef]) -> Iterator[Piece]:
    """Return the chunks of a file, without their bytes."""
    offset = 0
    for ref in refs:
        yield Piece(file, offset, ref)
        offset += ref.size


def read_again(folder: Beneath, piece: Piece) -> bytes:
    """Read the bytes of a chunk again.

    Raises ChangedWhilePacking if the file has changed, Unreadable.
    """
    try:
        with os.fdopen(folder.open_file(piece.file.parts), "rb", buffering=0) as file:
            file.seek(piece.offset)
            data = _read_exactly(file.read, piece.ref.size)
    except OSError as error:
        raise _lost(piece.file.path, error) from error
    if digest_of(data) != piece.ref.digest:
        raise _changed(piece.file.path)
    return data


def _read(folder: Beneath, file: FolderFile) -> Iterator[_Part]:
    """Read a file up to its size when opened; bytes appended meanwhile are ignored."""
    refs: list[ChunkRef] = []
    last: tuple[Piece, ...] = ()
    offset = 0
    try:
        with os.fdopen(folder.open_file(file.parts), "rb", buffering=0) as opened:
            before = _facts(opened)
            for data in chunks_of(_Beginning(opened, before[0])):
                if last:
                    yield _Part(file, last, is_end=False)
                refs.append(ChunkRef(digest_of(data), len(data)))
                last = (Piece(file, offset, refs[-1], data),)
                offset += len(data)
            after = _facts(opened)
            if after != before:
                # Growth is harmless; a mix of old and new bytes must not be sent.
                opened.seek(0)
                if any(
                    digest_of(_read_exactly(opened.read, one.size)) != one.digest for one in refs
                ):
                    raise _changed(file.path)
    except OSError as error:
        raise _lost(file.path, error) from error
    yield _Part(file, last, is_as_listed=after == (file.size, file.version))


def _facts(opened: FileIO) -> tuple[int, Version]:
    facts = os.fstat(opened.fileno())
    return facts.st_size, version_of(facts)


class _Beginning:
    """The first `size` bytes of a file: a growing file might never end."""

    def __init__(self, file: FileIO, size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int, /) -> bytes:
        """Read at most `size` bytes, none at the end."""
        piece = self._file.read(min(size, self._left)) or b""
        self._left -= len(piece)
        return piece

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the beginning of `buffer`; return the number of bytes, 0 at the end."""
        count = self._file.readinto(buffer[: self._left]) or 0
        self._left -= count
        return count


def _read_exactly(read: Callable[[int], bytes | None], size: int) -> bytes:
    """Read `size` bytes, fewer if the file ends before."""
    pieces = []
    missing = min(size, LARGEST_CHUNK)
    while missing:
        piece = read(missing)
        if not piece:
            break
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _lost(path: str, error: OSError) -> errors.PackRefused:
    """The error for a file that became unreadable."""
    if error.errno not in _REPLACED:
        return errors.Unreadable(path, unreadable(path, error))
    return errors.ChangedWhilePacking(
        path,
        f"{path} was removed or replaced while it was sent; run the command again once nothing changes it",
    )


def _changed(path: str) -> errors.ChangedWhilePacking:
    return errors.ChangedWhilePacking(
        path,
        f"{path} changed while it was sent; run the command again once nothing writes to it",
    )


def _one_by_one(units: Iterable[Iterator[_Part]]) -> Generator[list[_Part], None, None]:
    for unit in units:
        for part in unit:
            yield [part]


def _grouped(unit: Iterator[_Part]) -> Iterator[list[_Part]]:
    """Group the parts of a unit, a few megabytes at a time."""
    group: list[_Part] = []
    held = 0
    for part in unit:
        group.append(part)
        held += sum(len(piece.data or b"") for piece in part.pieces)
        if held >= _GROUP_BYTES:
            yield group
            group, held = [], 0
    if group:
        yield group


def _in_order(units: Iterable[Iterator[T]], threads: int) -> Generator[T, None, None]:
    """Yield the items of all units in order; up to `threads` units are read one item ahead."""
    left = iter(units)
    ahead: deque[tuple[Iterator[T], Future[T | None]]] = deque()
    with ThreadPoolExecutor(threads, "nsml-reader") as pool:
        try:
            while True:
                for unit in islice(left, threads - len(ahead)):
                    ahead.append((unit, pool.submit(next, unit, None)))
                if not ahead:
                    return
                unit, step = ahead.popleft()
                found = step.result()
                if found is not None:
                    ahead.appendleft((unit, pool.submit(next, unit, None)))
                    yield found
        finally:
            pool.shutdown(cancel_futures=True)
