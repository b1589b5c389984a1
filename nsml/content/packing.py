"""Packs a folder into a manifest and a source of its chunks.

Two passes: describe (read and hash), send (read missing chunks again and verify them). Memory holds one window of
one file. `nsml.client.uploads.push` does both in one pass.
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
"""Overhead of a blob in a message: nearly everything for many tiny blobs."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A described folder; `source` reads its chunks while the folder is unchanged."""

    manifest: Manifest
    listed: FolderFiles

    @cached_property
    def source(self) -> ChunkSource:
        """The reader of its chunks."""
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
        """Read the chunk with this digest.

        Raises KeyError for a digest outside the manifest, ChangedWhilePacking if the file has changed,
        Unreadable if it cannot be read any more.
        """
        with open_root(self._root) as folder:
            return read_again(folder, self._pieces[digest])

    def pieces(self) -> Iterator[Piece]:
        """Iterate over distinct chunks in manifest order, so that each file is read once, sequentially."""
        yield from self._pieces.values()

    def batches(
        self, digests: Collection[str], *, max_bytes: int = 1 << 20
    ) -> Generator[Batch, None, None]:
        """Read these chunks, each once; see `batches_of`."""
        wanted = set(digests)
        pieces = (piece for digest, piece in self._pieces.items() if digest in wanted)
        return batches_of(self._root, pieces, max_bytes=max_bytes)


def batches_of(
    root: Path, pieces: Iterable[Piece], *, max_bytes: int = 1 << 20
) -> Generator[Batch, None, None]:
    """Group chunks with their bytes into batches, so that thousands of small files are sent together.

    A batch has at most `max_bytes`, or one larger chunk (at most 1 MiB). Pieces without bytes are read again; raises as
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
    """Describe the regular files of `root` that `ignore` does not match.

    Raises as `list_folder` and `FolderReader.groups`.
    """
    listed = list_folder(root, ignore=ignore, max_bytes=max_bytes, max_files=max_files)
    return described(FolderReader(listed, progress=progress))


def pack_file(
    file: Path, *, max_bytes: int, progress: Callable[[Progress], None] | None = None
) -> Packed:
    """Describe one file as a folder with only it; see `list_file`. Raises as `pack`."""
    listed = list_file(file, max_bytes=max_bytes)
    return described(FolderReader(listed, progress=progress))


def pack_files(
    root: Path, paths: Collection[str], *, max_bytes: int, owner: int | None = None
) -> Packed:
    """Describe only the files `paths`, as text, of `root`, without listing the folder.

    Follows no links; `paths` may be empty. Raises as `pack`, and Unreadable for files that are missing,
    not regular, or owned by another uid than `owner`: a reader with more rights than the folder's
    owner must not reach others' files by hard links.
    """
    with open_root(root, owner) as folder:
        found = [_found(folder, path) for path in sorted(set(paths))]
    check_size(found, max_bytes)
    listed = FolderFiles(root=root, files=tuple(found), max_bytes=max_bytes)
    return described(FolderReader(listed, owner=owner))


def described(reader: FolderReader) -> Packed:
    """Run a fresh reader to its end. Raises as `FolderReader.groups`."""
    for _ in reader.groups():
        pass
    return packed_of(reader)


def packed_of(reader: FolderReader) -> Packed:
    """Return the result of a reader run to its end."""
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
