"""A manifest in a file, read piece by piece: no tree, however large, takes memory.

What is accepted is what `manifest.decode` accepts. The encoding is canonical, so that a few patterns
read all of it; what they do not match is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, Self

from nsml.content.chunks import LARGEST_CHUNK
from nsml.content.errors import ManifestRefused, PathRefused
from nsml.content.manifest import DEFAULT_LIMITS, MODES, ChunkRef, Limits
from nsml.content.paths import SortedPaths

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

_READ_BYTES: Final = 256 << 10
_LONGEST_TOKEN: Final = 24 << 10
"""Longer than the longest path with its escapes and what is around it."""
_HELD_REFS: Final = 64
"""An entry with more chunks does not hold them: they are read again."""
_LOOKED_EVERY: Final = 1_000

_HEAD: Final = re.compile(rb'\{"entries":\[')
_TAIL: Final = re.compile(rb'\],"version":1\}\Z')
_COMMA: Final = re.compile(rb",")
_ENTRY: Final = re.compile(rb'\{"chunks":\[')
_REF: Final = re.compile(rb'\["([0-9a-f]{64})",([1-9][0-9]{0,6})\]')
_REST: Final = re.compile(
    # No escapes but of quotation marks and backslashes: other characters that have one are in no path.
    rb'\],"mode":"(0644|0755)","path":"((?:[^"\\\x00-\x1f]++|\\["\\])++)","size":(0|[1-9][0-9]{0,14})\}'
)
_IN_JSON: Final = re.compile(r'\\(["\\])')


class EntryLike(Protocol):
    """One regular file, as `manifest.Entry`; its chunks may be read only where they are asked for."""

    @property
    def path(self) -> str:
        """See Entry."""
        ...

    @property
    def mode(self) -> int:
        """See Entry."""
        ...

    @property
    def chunks(self) -> Iterable[ChunkRef]:
        """See Entry."""
        ...


class Layout(Protocol):
    """A tree of regular files: `manifest.Manifest` or `StoredManifest`."""

    @property
    def entries(self) -> Iterable[EntryLike]:
        """Sorted by the UTF-8 bytes of their paths."""
        ...

    def check(self, limits: Limits = DEFAULT_LIMITS) -> None:
        """Raise ManifestRefused or PathRefused unless this is a tree that may be laid out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """One regular file of a stored manifest."""

    path: str
    mode: int
    size: int
    chunks: Iterable[ChunkRef]


class StoredManifest:
    """The manifest in the file `path`; a context manager that holds it open.

    Attributes:
        size: bytes of all files together, repeats counted; once it is checked.
        files, folders: how many it has; once it is checked.
    """

    def __init__(self, path: Path) -> None:
        self.size = self.files = self.folders = 0
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    @property
    def encoded_bytes(self) -> int:
        """Length of its encoding."""
        return os.fstat(self._descriptor).st_size

    @property
    def entries(self) -> Iterator[StoredEntry]:
        """Each file in turn; raises ManifestRefused where the encoding is not canonical."""
        text = _Text(self._descriptor)
        text.take(_HEAD)
        if not text.has(_ENTRY):
            text.take(_TAIL)
            return
        while True:
            yield _entry(text)
            if not text.skip(_COMMA):
                break
        text.take(_TAIL)

    def check(
        self, limits: Limits = DEFAULT_LIMITS, look: Callable[[], object] = lambda: None
    ) -> None:
        """Raise ManifestRefused or PathRefused unless this is a tree that may be laid out.

        `look` is called now and then, and may raise to end it.
        """
        if self.encoded_bytes > limits.encoded_bytes:
            raise ManifestRefused(
                f"{self.encoded_bytes} bytes, over the limit of {limits.encoded_bytes}"
            )
        paths = SortedPaths(limits.folders)
        files = size = 0
        for entry in self.entries:
            if files % _LOOKED_EVERY == 0:
                look()
            files += 1
            if files > limits.entries:
                raise ManifestRefused(f"over the limit of {limits.entries} files")
            paths.add(entry.path)
            size += entry.size
        if size > limits.bytes:
            raise ManifestRefused(f"{size} bytes, over the limit of {limits.bytes}")
        self.files, self.folders, self.size = files, paths.folders, size

    def refs(self) -> Iterator[ChunkRef]:
        """Every chunk in the order of the files, repeats included."""
        for entry in self.entries:
            yield from entry.chunks


class _Text:
    """The file from a position on, of which a window is in memory."""

    def __init__(self, descriptor: int, position: int = 0) -> None:
        self.descriptor = descriptor
        self._data = b""
        self._start = self._at = position
        self._is_last = False

    @property
    def position(self) -> int:
        return self._at

    def has(self, pattern: re.Pattern[bytes]) -> bool:
        return self._match(pattern) is not None

    def skip(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        match = self._match(pattern)
        if match is not None:
            self._at = self._start + match.end()
        return match

    def take(self, pattern: re.Pattern[bytes]) -> re.Match[bytes]:
        match = self.skip(pattern)
        if match is None:
            raise ManifestRefused(f"not in canonical form at byte {self._at}")
        return match

    def _match(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        if not self._is_last and self._at + _LONGEST_TOKEN > self._start + len(self._data):
            self._data = os.pread(self.descriptor, _READ_BYTES, self._at)
            self._start = self._at
            self._is_last = len(self._data) < _READ_BYTES
        return pattern.match(self._data, self._at - self._start)


class _Refs:
    """The chunks of an entry with many, read anew each time."""

    def __init__(self, descriptor: int, position: int) -> None:
        self._descriptor = descriptor
        self._position = position

    def __iter__(self) -> Iterator[ChunkRef]:
        return _refs(_Text(self._descriptor, self._position))


def _refs(text: _Text) -> Iterator[ChunkRef]:
    match = text.skip(_REF)
    while match is not None:
        yield ChunkRef(match[1].decode(), int(match[2]))
        match = text.take(_REF) if text.skip(_COMMA) else None


def _entry(text: _Text) -> StoredEntry:
    text.take(_ENTRY)
    begin, total, count = text.position, 0, 0
    held: list[ChunkRef] = []
    for ref in _refs(text):
        if ref.size > LARGEST_CHUNK:
            raise ManifestRefused(f"a chunk of {ref.size} bytes")
        total += ref.size
        count += 1
        if count <= _HELD_REFS:
            held.append(ref)
    rest = text.take(_REST)
    size = int(rest[3])
    try:
        path = _IN_JSON.sub(r"\1", rest[2].decode())
    except UnicodeDecodeError as error:
        raise PathRefused(repr(rest[2][:80]), "it is not UTF-8") from error
    if total != size:
        raise ManifestRefused(f"the chunks of {path!r} hold {total} bytes, not {size}")
    chunks = tuple(held) if count <= _HELD_REFS else _Refs(text.descriptor, begin)
    return StoredEntry(path=path, mode=MODES[rest[1].decode()], size=size, chunks=chunks)
