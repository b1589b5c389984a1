"""Cached trees with files or chunks of a tree being fetched."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nsml.content.digests import digest_of
from nsml.content.errors import ContentError
from nsml.content.paths import native_parts
from nsml.content.stored_manifest import StoredManifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from nsml.content.manifest import ChunkRef
    from nsml.content.stored_manifest import StoredEntry

LARGEST_MANIFEST_BYTES: Final = 16 << 20
"""Larger manifests, of more than about 100,000 files, are read side by side: an index of one takes 50 MiB."""

_FileKey = tuple[int, int, str]
"""Mode, size and first chunk: a candidate for a whole file, to be compared chunk by chunk."""


@dataclass(frozen=True, slots=True)
class DonorFile:
    """A file of a cached tree."""

    tree: Path
    path: str

    def open(self) -> int:
        """Return a descriptor for reading; OSError if it is gone."""
        place = self.tree.joinpath(*native_parts(self.path))
        return os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


@dataclass(slots=True)
class Donors:
    """Content of a manifest in cached trees. Chunks are compared with their digests. `close` it.

    For a large manifest, only files with the same path in one other large tree are found.

    Attributes:
        damaged: files that do not match their tree's manifest.
    """

    _beside: _Beside | None = None
    _files: dict[_FileKey, DonorFile] = field(default_factory=dict)
    _chunks: dict[str, tuple[DonorFile, int]] = field(default_factory=dict)
    damaged: list[DonorFile] = field(default_factory=list)

    @classmethod
    def of(cls, manifest: StoredManifest, trees: Iterable[tuple[Path, Path]]) -> Donors:
        """Find content of `manifest` in trees, passed with their manifest files; the first has precedence."""
        donors = cls()
        trees = list(trees)
        if is_large(manifest.encoded_bytes):
            return cls(_beside=_Beside(*trees[0])) if trees else donors
        keys: set[_FileKey] = set()
        chunks: set[str] = set()
        for entry in manifest.entries:
            if (key := _key(entry)) is not None:
                keys.add(key)
                chunks.update(ref.digest for ref in entry.chunks)
        for tree, path in trees:
            if not keys and not chunks:
                break
            with suppress(OSError, ContentError), StoredManifest(path) as donor:
                for entry in donor.entries:
                    donors._add(tree, entry, keys, chunks)
        return donors

    def _add(self, tree: Path, entry: StoredEntry, keys: set[_FileKey], chunks: set[str]) -> None:
        """Index the wanted content of a file, and drop it from `keys` and `chunks`."""
        file = DonorFile(tree, entry.path)
        if (key := _key(entry)) in keys:
            keys.discard(key)
            self._files[key] = file
        for ref, offset in placed(entry):
            if ref.digest in chunks:
                chunks.discard(ref.digest)
                self._chunks[ref.digest] = file, offset

    def close(self) -> None:
        """Close the other tree's manifest."""
        if self._beside is not None:
            self._beside.close()

    def look_at(self, entry: StoredEntry) -> None:
        """Move to this file; files come in order, possibly several times."""
        if self._beside is not None:
            self._beside.look_at(entry.path)

    @property
    def trees(self) -> set[str]:
        """The names of the donor trees."""
        if self._beside is not None:
            return {self._beside.tree.name}
        files = (*self._files.values(), *(file for file, _ in self._chunks.values()))
        return {file.tree.name for file in files}

    def file_of(self, entry: StoredEntry) -> DonorFile | None:
        """Return a file that probably has the content and the mode of `entry`, the file of the last `look_at`."""
        key = _key(entry)
        if self._beside is not None:
            return self._beside.file if key is not None and key == self._beside.key else None
        return None if key is None else self._files.get(key)

    def read(self, ref: ChunkRef) -> bytes | None:
        """Return the chunk, or None if no tree has it."""
        found = (self._chunks if self._beside is None else self._beside.chunks).get(ref.digest)
        if found is None:
            return None
        file, offset = found
        try:
            opened = file.open()
        except OSError:
            return None
        try:
            return read_chunk(opened, ref, offset)
        finally:
            os.close(opened)


class _Beside:
    """The file of one other tree with the path of the current file.

    Both manifests are sorted, so that each is read once, with one file in memory.
    """

    def __init__(self, tree: Path, manifest: Path) -> None:
        self.tree = tree
        self._path = manifest
        self._manifest: StoredManifest | None = None
        self._entries: Iterator[StoredEntry] = iter(())
        self._next: StoredEntry | None = None
        self._looked_at = b""
        self._entry: StoredEntry | None = None
        self._chunks: dict[str, tuple[DonorFile, int]] | None = None

    def close(self) -> None:
        if self._manifest is not None:
            self._manifest.__exit__(None, None, None)
            self._manifest = None

    def look_at(self, path: str) -> None:
        """Find the file with this path, if there is one."""
        wanted = path.encode()
        if self._manifest is None or wanted < self._looked_at:
            self._begin()
        while self._next is not None and self._next.path.encode() < wanted:
            self._advance()
        self._looked_at = wanted
        self._entry = self._next if self._next is not None and self._next.path == path else None
        self._chunks = None

    @property
    def file(self) -> DonorFile | None:
        return None if self._entry is None else DonorFile(self.tree, self._entry.path)

    @property
    def key(self) -> _FileKey | None:
        return None if self._entry is None else _key(self._entry)

    @property
    def chunks(self) -> Mapping[str, tuple[DonorFile, int]]:
        """File and offset of each chunk."""
        if self._chunks is None:
            file, entry = self.file, self._entry
            places = () if entry is None else placed(entry)
            self._chunks = {ref.digest: (file, at) for ref, at in places if file is not None}
        return self._chunks

    def _begin(self) -> None:
        self.close()
        try:
            self._manifest = StoredManifest(self._path)
        except OSError:  # removed meanwhile
            self._next = None
        else:
            self._entries = self._manifest.entries
            self._advance()

    def _advance(self) -> None:
        try:
            self._next = next(self._entries, None)
        except (OSError, ContentError):
            self._next = None


def is_large(manifest_bytes: int) -> bool:
    """Return whether a manifest of this size is not indexed."""
    return manifest_bytes > LARGEST_MANIFEST_BYTES


def placed(entry: StoredEntry) -> Iterator[tuple[ChunkRef, int]]:
    """Yield each chunk of a file, with its offset."""
    offset = 0
    for ref in entry.chunks:
        yield ref, offset
        offset += ref.size


def read_chunk(opened: int, ref: ChunkRef, offset: int) -> bytes | None:
    """Return the chunk from an open file; None if the content differs, or cannot be read."""
    try:
        data = os.pread(opened, ref.size, offset)
    except OSError:
        return None
    return data if len(data) == ref.size and digest_of(data) == ref.digest else None


def read_written(opened: int, ref: ChunkRef, offset: int) -> bytes | None:
    """As `read_chunk`, for a file being filled: a hole is not read."""
    try:
        if os.lseek(opened, offset, os.SEEK_DATA) >= offset + ref.size:
            return None
    except OSError as error:
        if error.errno == errno.ENXIO:  # only a hole up to the end
            return None
    return read_chunk(opened, ref, offset)


def _key(entry: StoredEntry) -> _FileKey | None:
    first = next(iter(entry.chunks), None)
    return None if first is None else (entry.mode, entry.size, first.digest)
