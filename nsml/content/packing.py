"""A folder to a manifest and a source of its chunks.

Two passes: describe (read and hash), send (read again what the other end lacks, against the digests). Nothing is held in
memory but one window of one file. `nsml.client.uploads.push` does both in one pass.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from nsml.content import errors
from nsml.content.listing import (
    CODE_LIMIT_BYTES,
    MAX_FILES,
    FolderFile,
    FolderFiles,
    check_size,
    list_file,
    list_folder,
    mode_of,
    open_root,
    unreadable,
)
from nsml.content.manifest import Manifest, build
from nsml.content.paths import native_parts
from nsml.content.reading import FolderReader, Piece, Progress, pieces_of, read_again
from nsml.content.safe_paths import Beneath, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator
    from pathlib import Path

    from nsml.content.ignore import IgnoreRules

Batch = tuple[tuple[str, bytes], ...]

_BLOB_BYTES = 80
"""What a blob takes in a message beside its bytes: of many tiny ones that is nearly all."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A described folder; `source` gives its chunks while the folder is unchanged."""

    manifest: Manifest
    listed: FolderFiles

    @cached_property
    def source(self) -> ChunkSource:
        """Where its chunks are."""
        files = {file.path: file for file in self.listed.files}
        entries = self.manifest.entries
        return ChunkSource(
            self.listed.root,
            (piece for entry in entries for piece in pieces_of(files[entry.path], entry.chunks)),
        )


class ChunkSource:
    """Reads chunks of a described folder again. Not for use by several threads at once."""

    def __init__(self, root: Path, pieces: Iterable[Piece]) -> None:
        self._root = root
        self._pieces: dict[str, Piece] = {}
        for piece in pieces:
            self._pieces.setdefault(piece.ref.digest, piece)

    def read(self, digest: str) -> bytes:
        """The chunk that `digest` names.

        Raises KeyError for a digest that the manifest does not name, ChangedWhilePacking when the
        file holds something else by now, Unreadable when it cannot be read any more.
        """
        with open_root(self._root) as folder:
            return read_again(folder, self._pieces[digest])

    def pieces(self) -> Iterator[Piece]:
        """Each chunk once, in the order of the manifest, which reads each file once from front to back."""
        yield from self._pieces.values()

    def batches(
        self, digests: Collection[str], *, max_bytes: int = 1 << 20
    ) -> Generator[Batch, None, None]:
        """The chunks named, each once; see `batches_of`."""
        wanted = set(digests)
        pieces = (piece for digest, piece in self._pieces.items() if digest in wanted)
        return batches_of(self._root, pieces, max_bytes=max_bytes)


def batches_of(
    root: Path, pieces: Iterable[Piece], *, max_bytes: int = 1 << 20
) -> Generator[Batch, None, None]:
    """Chunks with their bytes, grouped so that thousands of small files travel together.

    A batch holds at most `max_bytes`, or one larger chunk (at most 1 MiB). Pieces without bytes are read again; raises as
    `ChunkSource.read`.
    """
    batch: list[tuple[str, bytes]] = []
    held = 0
    with open_root(root) as folder:
        for piece in pieces:
            size = piece.ref.size + _BLOB_BYTES
            if batch and held + size > max_bytes:
                yield tuple(batch)
                batch, held = [], 0
            data = read_again(folder, piece) if piece.data is None else piece.data
            batch.append((piece.ref.digest, data))
            held += size
    if batch:
        yield tuple(batch)


def pack(
    root: Path,
    *,
    ignore: IgnoreRules | None = None,
    max_bytes: int = CODE_LIMIT_BYTES,
    max_files: int = MAX_FILES,
    progress: Callable[[Progress], None] | None = None,
) -> Packed:
    """Describe the regular files of `root` that `ignore` leaves in.

    Raises as `list_folder` and `FolderReader.groups`.
    """
    listed = list_folder(root, ignore=ignore, max_bytes=max_bytes, max_files=max_files)
    return described(FolderReader(listed, progress=progress))


def pack_file(
    file: Path, *, max_bytes: int, progress: Callable[[Progress], None] | None = None
) -> Packed:
    """Describe one file as a folder that has it alone; see `list_file`. Raises as `pack` does."""
    listed = list_file(file, max_bytes=max_bytes)
    return described(FolderReader(listed, progress=progress))


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
    listed = FolderFiles(root=root, files=tuple(found), max_bytes=max_bytes)
    return described(FolderReader(listed, owner=owner))


def described(reader: FolderReader) -> Packed:
    """What the reader reads, of which nothing was taken yet. Raises as `FolderReader.groups`."""
    for _ in reader.groups():
        pass
    return packed_of(reader)


def packed_of(reader: FolderReader) -> Packed:
    """What the reader has read to its end."""
    return Packed(manifest=build(reader.entries), listed=reader.listed)


def _found(folder: Beneath, path: str) -> FolderFile:
    parts = native_parts(path)
    try:
        facts = folder.lstat(parts)
    except OSError as error:
        raise errors.Unreadable(path, unreadable(path, error)) from error
    if not stat.S_ISREG(facts.st_mode):
        raise errors.Unreadable(path, f"cannot read {path}: it is no regular file")
    return FolderFile(path, parts, facts.st_size, mode_of(facts.st_mode), version_of(facts))
