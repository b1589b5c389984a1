"""A manifest in a file or stream, read piece by piece in bounded memory for trees of any size.

For a tree in pages (`pages.py`), the file has all pages concatenated. Accepts exactly what `manifest.decode`
accepts. The encoding is canonical, so that a few patterns parse all of it; anything else is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from nsml.content.chunks import LARGEST_CHUNK
from nsml.content.errors import ManifestRefused, PathRefused
from nsml.content.manifest import (
    DEFAULT_LIMITS,
    MODES,
    ChunkRef,
    Entry,
    EntryLike,
    Limits,
    Manifest,
)
from nsml.content.paths import SortedPaths

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    _Source = Callable[[int], Callable[[int], bytes]]  # reads from a position on

_READ_BYTES: Final = 256 << 10
_LONGEST_TOKEN: Final = 24 << 10
"""Longer than the longest escaped path with the fields around it."""
_HELD_REFS: Final = 64
"""Chunks of larger entries are not kept in memory, but read again."""
_LOOKED_EVERY: Final = 1_000

_HEAD: Final = re.compile(rb'\{"entries":\[')
_TAIL: Final = re.compile(rb'\],"version":1\}\Z')
_COMMA: Final = re.compile(rb",")
_ENTRY: Final = re.compile(rb'\{"chunks":\[')
_REF: Final = re.compile(rb'\["([0-9a-f]{64})",([1-9][0-9]{0,6})\]')
_REFS: Final = re.compile(rb'(?:\["[0-9a-f]{64}",[1-9][0-9]{0,6}\],){1,256}+')
"""Several, each followed by a comma, so that most of a long list is matched at C speed."""
_REST: Final = re.compile(
    # Only quotation marks and backslashes are escaped: paths contain no other characters with an escape.
    rb'\],"mode":"(0644|0755)","path":"((?:[^"\\\x00-\x1f]++|\\["\\])++)","size":(0|[1-9][0-9]{0,14})\}'
)
_IN_JSON: Final = re.compile(r'\\(["\\])')


class Layout(Protocol):
    """A tree of regular files: `manifest.Manifest` or `StoredManifest`."""

    @property
    def entries(self) -> Iterable[EntryLike]:
        """Sorted by the UTF-8 bytes of their paths."""
        ...

    def check(self, limits: Limits = DEFAULT_LIMITS) -> None:
        """Raise ManifestRefused or PathRefused unless this tree may be extracted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """One regular file of a stored manifest."""

    path: str
    mode: int
    size: int
    chunks: Iterable[ChunkRef]


class Extent(NamedTuple):
    """The size of a tree: files, folders, and bytes of all files together, duplicates included."""

    files: int
    folders: int
    size: int


class StoredManifest:
    """The manifest in the file `path`, or an encoding in memory; a context manager that keeps the file open.

    Attributes:
        encoded_bytes: length of its encoding.
        extent: size of the tree; zeros before `check`.
    """

    def __init__(self, path: Path | bytes) -> None:
        self.extent = Extent(0, 0, 0)
        self._descriptor = -1
        self._source: _Source
        if isinstance(path, bytes):
            self.encoded_bytes, self._source = len(path), partial(_reading_bytes, path)
        else:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.encoded_bytes = os.fstat(self._descriptor).st_size
            self._source = partial(_reading, self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    @property
    def size(self) -> int:
        """See Extent."""
        return self.extent.size

    @property
    def files(self) -> int:
        """See Extent."""
        return self.extent.files

    @property
    def folders(self) -> int:
        """See Extent."""
        return self.extent.folders

    @property
    def entries(self) -> Iterator[StoredEntry]:
        """The files in order; iterating raises ManifestRefused if the encoding is not canonical."""
        return _entries(_Text(self._source(0)), self._source)

    def check(
        self, limits: Limits = DEFAULT_LIMITS, look: Callable[[], object] = lambda: None
    ) -> None:
        """Raise ManifestRefused or PathRefused unless this tree may be extracted.

        `look` is called every 1,000 files, and may raise to abort.
        """
        if self.encoded_bytes > limits.encoded_bytes:
            raise _too_long(self.encoded_bytes, limits)
        self.extent = _checked(self.entries, limits, look)

    def refs(self) -> Iterator[ChunkRef]:
        """Every chunk in the order of the files, repeats included."""
        for entry in self.entries:
            yield from entry.chunks

    def read(self) -> Manifest:
        """Load all of it into memory."""
        return Manifest(
            entries=tuple(
                Entry(path=one.path, mode=one.mode, size=one.size, chunks=tuple(one.chunks))
                for one in self.entries
            )
        )


def check_stream(
    read: Callable[[int], bytes],
    take: Callable[[str, int], object],
    limits: Limits = DEFAULT_LIMITS,
    found: Callable[[str, int], object] = lambda _path, _size: None,
) -> Extent:
    """Read and check an encoding in one pass; calls `take` with digest and size of each chunk.

    `read` returns about `size` bytes, none at the end. `found` gets path and size of each file. Raises as
    `StoredManifest.check`, after calls for the part before.
    """
    held = 0

    def limited(size: int) -> bytes:
        nonlocal held
        data = read(size)
        if (held := held + len(data)) > limits.encoded_bytes:
            raise _too_long(held, limits)
        return data

    def entries() -> Iterator[StoredEntry]:
        for entry in _entries(_Text(limited), take=take):
            found(entry.path, entry.size)
            yield entry

    return _checked(entries(), limits)


def _checked(
    entries: Iterable[StoredEntry], limits: Limits, look: Callable[[], object] = lambda: None
) -> Extent:
    paths = SortedPaths(limits.folders)
    files = size = 0
    for entry in entries:
        if files % _LOOKED_EVERY == 0:
            look()
        files += 1
        if files > limits.entries:
            raise ManifestRefused(f"over the limit of {limits.entries} files")
        paths.add(entry.path)
        size += entry.size
        if size > limits.bytes:
            raise ManifestRefused(f"{size} bytes, over the limit of {limits.bytes}")
    return Extent(files, paths.folders, size)


def _too_long(encoded_bytes: int, limits: Limits) -> ManifestRefused:
    return ManifestRefused(f"{encoded_bytes} bytes, over the limit of {limits.encoded_bytes}")


def _reading(descriptor: int, position: int) -> Callable[[int], bytes]:
    """Read from `position` on, without the shared file offset."""

    def read(size: int) -> bytes:
        nonlocal position
        data = os.pread(descriptor, size, position)
        position += len(data)
        return data

    return read


def _reading_bytes(data: bytes, position: int) -> Callable[[int], bytes]:
    file = BytesIO(data)
    file.seek(position)
    return file.read


class _Text:
    """A sliding window over the bytes of `read`, which begin at `position`."""

    def __init__(self, read: Callable[[int], bytes], position: int = 0) -> None:
        self._read = read
        self._data = b""
        self._start = position
        self._at = 0
        self._is_last = False

    @property
    def position(self) -> int:
        return self._start + self._at

    def has(self, pattern: re.Pattern[bytes]) -> bool:
        return self._match(pattern) is not None

    def skip(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        match = self._match(pattern)
        if match is not None:
            self._at = match.end()
        return match

    def take(self, pattern: re.Pattern[bytes]) -> re.Match[bytes]:
        match = self.skip(pattern)
        if match is None:
            raise ManifestRefused(f"not in canonical form at byte {self.position}")
        return match

    def _match(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        if self._at + _LONGEST_TOKEN > len(self._data) and not self._is_last:
            self._fill()
        return pattern.match(self._data, self._at)

    def _fill(self) -> None:
        pieces = [self._data[self._at :]]
        held = len(pieces[0])
        while held < _READ_BYTES and not self._is_last:
            pieces.append(self._read(_READ_BYTES - held))
            held += len(pieces[-1])
            self._is_last = not pieces[-1]
        self._data, self._start, self._at = b"".join(pieces), self.position, 0


class _Refs:
    """The chunks of an entry with many, read again on each iteration."""

    def __init__(self, source: _Source, position: int) -> None:
        self._source = source
        self._position = position

    def __iter__(self) -> Iterator[ChunkRef]:
        text = _Text(self._source(self._position), self._position)
        return (ref for refs in _refs(text) for ref in refs)


def _entries(
    text: _Text, source: _Source | None = None, take: Callable[[str, int], object] | None = None
) -> Iterator[StoredEntry]:
    text.take(_HEAD)
    if not text.has(_ENTRY):
        text.take(_TAIL)
        return
    while True:
        yield _entry(text, source, take)
        if not text.skip(_COMMA):
            break
    text.take(_TAIL)


def _refs(text: _Text) -> Iterator[list[ChunkRef]]:
    """Read the chunks of an entry in batches."""
    if not text.has(_REF):
        return
    while run := text.skip(_REFS):
        yield [ChunkRef(digest.decode(), int(size)) for digest, size in _REF.findall(run[0])]
    last = text.take(_REF)
    yield [ChunkRef(last[1].decode(), int(last[2]))]


def _entry(
    text: _Text, source: _Source | None, take: Callable[[str, int], object] | None
) -> StoredEntry:
    text.take(_ENTRY)
    begin, total, count = text.position, 0, 0
    held: list[ChunkRef] = []
    for refs in _refs(text):
        for ref in refs:
            if ref.size > LARGEST_CHUNK:
                raise ManifestRefused(f"a chunk of {ref.size} bytes")
            total += ref.size
            if take is not None:
                take(ref.digest, ref.size)
        count += len(refs)
        if count <= _HELD_REFS:
            held += refs
    rest = text.take(_REST)
    size = int(rest[3])
    try:
        path = _IN_JSON.sub(r"\1", rest[2].decode())
    except UnicodeDecodeError as error:
        raise PathRefused(repr(rest[2][:80]), "it is not UTF-8") from error
    if total != size:
        raise ManifestRefused(f"the chunks of {path!r} hold {total} bytes, not {size}")
    chunks: Iterable[ChunkRef] = tuple(held) if count <= _HELD_REFS else ()
    if count > _HELD_REFS and source is not None:
        chunks = _Refs(source, begin)
    return StoredEntry(path=path, mode=MODES[rest[1].decode()], size=size, chunks=chunks)
