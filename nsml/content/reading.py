"""Files of a folder, read once: cut, hashed, and checked to be the same at the end as at the beginning."""

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
"""Of a file that was found before: it, or a folder above it, is gone or a link."""
_GROUP_BYTES: Final = 2 << 20
_GROUP_FILES: Final = 256
_KEPT_AT_ONCE: Final = 4_096
"""Files that the stat cache gets together."""
_ENTRY_BYTES, _REF_BYTES = 46, 70
"""What an entry without its path, and a chunk without the digits of its size, take in an encoded manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far reading has come: files and bytes, done and in all."""

    files: int
    bytes: int
    files_total: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk of a file, and where it begins; its bytes, unless they are read when they are asked for."""

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
    """Of its end: it was read, and is what it was when it was listed."""


class FolderReader:
    """Reads listed files: their chunks, and in the end the entries of their manifest.

    Args:
        listed: what is read.
        cache: of files that it knows the chunks come without their bytes.
        owner: no file of another uid is read.
        progress: called after each file, and each chunk of a large one.

    Attributes:
        entries: of the files that were read to their end.
        is_known: whether nothing has to be read, for the cache knows all files.
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
        """The chunks of all files in their order, a few megabytes at a time.

        `readers`: threads that read ahead of what is taken; with none each file is read when its turn comes.

        Raises:
            ChangedWhilePacking: a file was replaced, or written to while it was read.
            Unreadable: a file cannot be read.
            TooLarge: there is more than a manifest can list, or by now more than was allowed.
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
        """What one thread reads: a large file, or small ones that lie together."""
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
    """The chunks of a file, without their bytes."""
    offset = 0
    for ref in refs:
        yield Piece(file, offset, ref)
        offset += ref.size


def read_again(folder: Beneath, piece: Piece) -> bytes:
    """The bytes of a chunk.

    Raises ChangedWhilePacking where the file holds something else by now, Unreadable.
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
    """A file as it is when it is opened; what is added to it meanwhile is not part of it."""
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
                # It may only have grown. Half old and half new is nothing to send.
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
    """The first `size` bytes of a file: one that grows while it is read might never end."""

    def __init__(self, file: FileIO, size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end."""
        piece = self._file.read(min(size, self._left)) or b""
        self._left -= len(piece)
        return piece

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the beginning of `buffer`; how many bytes, 0 at the end."""
        count = self._file.readinto(buffer[: self._left]) or 0
        self._left -= count
        return count


def _read_exactly(read: Callable[[int], bytes | None], size: int) -> bytes:
    """`size` bytes, or fewer where the file ends before."""
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
    """Why a file that was found before cannot be read."""
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
    """The parts of a unit, a few megabytes at a time."""
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
    """What the units give, in their order; as many of them as there are threads are one step ahead."""
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
