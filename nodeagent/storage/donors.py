"""Trees on this node that have files, or chunks, of one that is fetched."""

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
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from nsml.content.manifest import ChunkRef
    from nsml.content.stored_manifest import StoredEntry

LARGEST_MANIFEST_BYTES: Final = 16 << 20
"""Larger manifests, of more than about 100,000 files, neither have donors nor are some: their index takes 50 MiB."""

_FileKey = tuple[int, int, str]
"""Mode, size and first chunk: a candidate for a whole file, to be compared chunk by chunk."""


@dataclass(frozen=True, slots=True)
class DonorFile:
    """A file of a tree that is here."""

    tree: Path
    path: str

    def open(self) -> int:
        """A descriptor to read it; OSError where it is gone."""
        place = self.tree.joinpath(*native_parts(self.path))
        return os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


@dataclass(slots=True)
class Donors:
    """Where content of a manifest is on this node already. What is read is compared with its digest.

    Attributes:
        damaged: files whose content is not what their tree's manifest says.
    """

    _files: dict[_FileKey, DonorFile] = field(default_factory=dict)
    _chunks: dict[str, tuple[DonorFile, int]] = field(default_factory=dict)
    damaged: list[DonorFile] = field(default_factory=list)

    @classmethod
    def of(cls, manifest: StoredManifest, trees: Iterable[tuple[Path, Path]]) -> Donors:
        """Look for content of `manifest` in trees, given with the files of their manifests; the first has precedence."""
        donors = cls()
        trees = list(trees)
        if not trees or manifest.encoded_bytes > LARGEST_MANIFEST_BYTES:
            return donors
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
        """Keep what is wanted of a file, which is not wanted any more then."""
        file = DonorFile(tree, entry.path)
        if (key := _key(entry)) in keys:
            keys.discard(key)
            self._files[key] = file
        for ref, offset in placed(entry):
            if ref.digest in chunks:
                chunks.discard(ref.digest)
                self._chunks[ref.digest] = file, offset

    @property
    def trees(self) -> set[str]:
        """The names of the trees that are used."""
        files = (*self._files.values(), *(file for file, _ in self._chunks.values()))
        return {file.tree.name for file in files}

    def file_of(self, entry: StoredEntry) -> DonorFile | None:
        """A file that probably has the content and the mode of `entry`."""
        key = _key(entry)
        return None if key is None else self._files.get(key)

    def read(self, ref: ChunkRef) -> bytes | None:
        """The chunk, or None where no tree has it."""
        found = self._chunks.get(ref.digest)
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


def placed(entry: StoredEntry) -> Iterator[tuple[ChunkRef, int]]:
    """Each chunk of a file, and where it begins."""
    offset = 0
    for ref in entry.chunks:
        yield ref, offset
        offset += ref.size


def read_chunk(opened: int, ref: ChunkRef, offset: int) -> bytes | None:
    """The chunk from an open file; None where that has other content, or cannot be read."""
    try:
        data = os.pread(opened, ref.size, offset)
    except OSError:
        return None
    return data if len(data) == ref.size and digest_of(data) == ref.digest else None


def read_written(opened: int, ref: ChunkRef, offset: int) -> bytes | None:
    """As `read_chunk`, of a file that is being filled: a hole is not read."""
    try:
        if os.lseek(opened, offset, os.SEEK_DATA) >= offset + ref.size:
            return None
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole up to the end
            return None
    return read_chunk(opened, ref, offset)


def _key(entry: StoredEntry) -> _FileKey | None:
    first = next(iter(entry.chunks), None)
    return None if first is None else (entry.mode, entry.size, first.digest)
