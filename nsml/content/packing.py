"""A folder to a manifest and a source of its chunks.

Three passes: list (names, sizes and limits, so that a mistake is told at once), describe (read and
hash), send (read again what the other end lacks, against the digests). Nothing is held in memory but
one window of one file.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsml._path_text import path_text
from nsml.content import errors
from nsml.content.chunks import LARGEST_CHUNK, chunks_of
from nsml.content.digests import digest_of
from nsml.content.ignore import IgnoreRules
from nsml.content.listing import (
    FolderFile,
    Listing,
    Skipped,
    check_size,
    kind_of,
    mode_of,
    open_root,
    unreadable,
)
from nsml.content.manifest import ChunkRef, Entry, Manifest, build
from nsml.content.paths import native_parts, split_path
from nsml.content.safe_paths import Beneath, Parts, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

# Code beyond this is usually a forgotten data folder: NSML warned, and so do we.
CODE_WARN_BYTES = 10_000_000
CODE_WARNING = (
    "Warning: Your session has a total size of over  10 MB You may want to add unnecessary files"
    " and directories to the ignore list. (e.g. the .git directory)"
)
CODE_LIMIT_BYTES = 512 << 20
MAX_FILES = 1_000_000
_REPLACED = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
"""Of a file that was found before: it, or a folder above it, is gone or a link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far describing has come: files and bytes, done and in all."""

    files: int
    bytes: int
    files_total: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class _Place:
    path: str
    parts: Parts
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A described folder; `source` gives its chunks while the folder is unchanged."""

    manifest: Manifest
    source: ChunkSource
    skipped: Skipped
    special: tuple[str, ...] = ()
    """Sockets, pipes and devices, each with its kind: left out, for there is nothing to send."""
    environments: tuple[str, ...] = ()
    """Folders with an environment of Python packages, left out by IgnoreRules.skips_environments."""
    empty: tuple[str, ...] = ()
    """Folders without anything in them: a manifest lists files only."""
    unread: tuple[str, ...] = ()
    """Ignore files below the top, which are not read."""

    def warnings(self, warn_bytes: int = CODE_WARN_BYTES) -> tuple[str, ...]:
        """What the user should know before it is sent."""
        return (CODE_WARNING,) if self.manifest.size > warn_bytes else ()


class ChunkSource:
    """Reads chunks of a described folder again. Not for use by several threads at once."""

    def __init__(self, root: Path, places: dict[str, tuple[_Place, int]]) -> None:
        self._root = root
        self._places = places

    def read(self, digest: str) -> bytes:
        """The chunk that `digest` names.

        Raises KeyError for a digest that the manifest does not name, ChangedWhilePacking when the
        file holds something else by now, Unreadable when it cannot be read any more.
        """
        with open_root(self._root) as folder:
            return self._read(folder, digest)

    def batches(self, digests: Collection[str], *, max_bytes: int = 1 << 20) -> Iterator[Batch]:
        """The chunks named, each once, grouped so that thousands of small files travel together.

        A batch holds at most `max_bytes`, or one larger chunk (at most 1 MiB). The order is that of
        the folder, which reads each file once from front to back.
        """
        wanted = set(digests)
        batch: list[tuple[str, bytes]] = []
        held = 0
        with open_root(self._root) as folder:
            for digest in [digest for digest in self._places if digest in wanted]:
                size = self._places[digest][1]
                if batch and held + size > max_bytes:
                    yield tuple(batch)
                    batch, held = [], 0
                batch.append((digest, self._read(folder, digest)))
                held += size
        if batch:
            yield tuple(batch)

    def _read(self, folder: Beneath, digest: str) -> bytes:
        place, size = self._places[digest]
        try:
            with os.fdopen(folder.open_file(place.parts), "rb", buffering=0) as file:
                file.seek(place.offset)
                data = _read_exactly(file.read, size)
        except OSError as error:
            raise _lost(place.path, error) from error
        if digest_of(data) != digest:
            raise errors.ChangedWhilePacking(
                place.path,
                f"{place.path} changed while it was sent; run the command again once nothing writes to it",
            )
        return data


Batch = tuple[tuple[str, bytes], ...]


def pack(
    root: Path,
    *,
    ignore: IgnoreRules | None = None,
    max_bytes: int = CODE_LIMIT_BYTES,
    max_files: int = MAX_FILES,
    progress: Callable[[Progress], None] | None = None,
) -> Packed:
    """Describe the regular files of `root` that `ignore` leaves in.

    A link that stays inside the folder counts as what it leads to. Raises a PackRefused that names
    the path: LinkRefused, Unreadable, EmptyFolder, TooLarge; or PathRefused for one that is too long or too deep.
    """
    with open_root(root) as folder:
        listing = Listing(root, folder, ignore or IgnoreRules(()), max_files)
        found = listing.run()
        check_size(found, max_bytes)
        manifest, places = _described(folder, found, progress)
    return Packed(
        manifest=manifest,
        source=ChunkSource(root, places),
        skipped=listing.skipped(),
        special=tuple(f"{path} ({kind})" for path, kind in listing.special),
        environments=tuple(listing.environments),
        empty=tuple(listing.empty),
        unread=tuple(listing.unread),
    )


def pack_file(
    file: Path, *, max_bytes: int, progress: Callable[[Progress], None] | None = None
) -> Packed:
    """Describe one file as a folder that has it alone, under its name; a link as what it leads to.

    Raises as `pack` does.
    """
    path, real = path_text(file.name), file.resolve()
    split_path(path)
    with open_root(real.parent) as folder:
        try:
            facts = folder.lstat((real.name,))
        except OSError as error:
            raise errors.Unreadable(path, unreadable(path, error)) from error
        if not stat.S_ISREG(facts.st_mode):
            raise errors.Unreadable(path, f"cannot read {path}: it is {kind_of(facts.st_mode)}")
        found = [
            FolderFile(path, (real.name,), facts.st_size, mode_of(facts.st_mode), version_of(facts))
        ]
        check_size(found, max_bytes)
        manifest, places = _described(folder, found, progress)
    return Packed(manifest=manifest, source=ChunkSource(real.parent, places), skipped=Skipped())


def pack_files(
    root: Path, paths: Collection[str], *, max_bytes: int, owner: int | None = None
) -> Packed:
    """Describe the files `paths`, as text, of `root` and look at nothing else, however much is there.

    Follows no link, and no files are a tree too. Raises as `pack` does else; Unreadable also for
    what is missing or no regular file, or belongs to another uid than `owner`: whoever reads with
    more rights than the folder's owner has must not be led to others' files by hard links.
    """
    with open_root(root, owner) as folder:
        found = [_found(folder, path) for path in sorted(set(paths))]
        check_size(found, max_bytes)
        manifest, places = _described(folder, found)
    return Packed(manifest=manifest, source=ChunkSource(root, places), skipped=Skipped())


def _found(folder: Beneath, path: str) -> FolderFile:
    parts = native_parts(path)
    try:
        facts = folder.lstat(parts)
    except OSError as error:
        raise errors.Unreadable(path, unreadable(path, error)) from error
    if not stat.S_ISREG(facts.st_mode):
        raise errors.Unreadable(path, f"cannot read {path}: it is no regular file")
    return FolderFile(path, parts, facts.st_size, mode_of(facts.st_mode), version_of(facts))


def _described(
    folder: Beneath, found: list[FolderFile], progress: Callable[[Progress], None] | None = None
) -> tuple[Manifest, dict[str, tuple[_Place, int]]]:
    describing = _Describing(folder, found, progress)
    entries = [describing.entry(item) for item in found]
    return build(entries), describing.places


class _Describing:
    """Reads and hashes the listed files, and remembers where each chunk is."""

    def __init__(
        self,
        folder: Beneath,
        found: list[FolderFile],
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.places: dict[str, tuple[_Place, int]] = {}
        self._folder = folder
        self._progress = progress
        self._files_total = len(found)
        self._bytes_total = sum(item.size for item in found)
        self._files = 0
        self._bytes = 0

    def entry(self, item: FolderFile) -> Entry:
        """The manifest entry of one file, as it is now; of one that grows, what was listed."""
        chunks: list[ChunkRef] = []
        offset = 0
        try:
            with os.fdopen(self._folder.open_file(item.parts), "rb", buffering=0) as file:
                for data in chunks_of(_Beginning(file.read, item.size)):
                    ref = ChunkRef(digest_of(data), len(data))
                    place = _Place(item.path, item.parts, offset)
                    self.places.setdefault(ref.digest, (place, ref.size))
                    chunks.append(ref)
                    offset += len(data)
                    if len(chunks) > 1:
                        self._tell(0, len(data))
        except OSError as error:
            raise _lost(item.path, error) from error
        self._tell(1, chunks[0].size if chunks else 0)
        return Entry(path=item.path, mode=item.mode, size=offset, chunks=tuple(chunks))

    def _tell(self, files: int, size: int) -> None:
        self._files += files
        self._bytes += size
        if self._progress is not None:
            self._progress(
                Progress(
                    files=self._files,
                    bytes=self._bytes,
                    files_total=self._files_total,
                    bytes_total=max(self._bytes_total, self._bytes),
                )
            )


class _Beginning:
    """The first `size` bytes of a file: one that grows while it is read might never end."""

    def __init__(self, read: Callable[[int], bytes], size: int) -> None:
        self._read = read
        self._left = size

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end."""
        piece = self._read(min(size, self._left))
        self._left -= len(piece)
        return piece


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
