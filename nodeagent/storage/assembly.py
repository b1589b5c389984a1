"""Assembles a tree from chunks in any order, by several threads at once.

It grows in a folder that is private to the agent, and is renamed once it is whole. Each byte is compared with the manifest
before it counts: fetched bytes, files of other trees before they are linked, and files of an earlier attempt, so
that no journal can promise what a disk does not have. A file with several hard links is never opened for writing.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from nodeagent.peers.sources import ChunkLocation
from nodeagent.safe_paths import path_of
from nodeagent.storage.donors import placed, read_chunk, read_written
from nodeagent.storage.reservations import Size
from nsml.content.errors import BlobCorrupt, TargetExists
from nsml.content.extract import naming
from nsml.content.paths import native_parts
from nsml.content.safe_paths import ByDescriptor, Parts

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from nodeagent.storage.donors import DonorFile, Donors
    from nodeagent.storage.reservations import Reservation
    from nsml.content.manifest import ChunkRef
    from nsml.content.stored_manifest import StoredEntry, StoredManifest

BATCH_BYTES: Final = 16 << 20
"""Bytes of one call,"""
_BATCH_CHUNKS: Final = 500
"""at most this many chunks,"""
_BATCH_PLACES: Final = 2_000
"""and this many places to write to: one chunk may fill a large file."""
_STEP_BYTES: Final = 32 << 20
_STEP_FILES: Final = 2_000
"""Work of one call, before others have their turn in the threads."""
_LOOKED_EVERY: Final = 1_000
_NO_LINK: Final = frozenset(
    {errno.EMLINK, errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.ENOSYS, errno.ENOENT}
)
"""The file has the most hard links possible, or the file system supports none."""


@dataclass(slots=True)
class _File:
    """A file that is being filled; `left` is in bytes."""

    path: str
    parts: Parts
    mode: int
    left: int
    is_made: bool = False


@dataclass(slots=True)
class Batch:
    """Chunks to be fetched together, with the places of each; `size` in bytes, each chunk counted once."""

    places: dict[ChunkRef, list[tuple[_File, int]]] = field(default_factory=dict)
    size: int = 0
    count: int = 0

    def add(self, ref: ChunkRef, file: _File, offset: int) -> None:
        """Add a place."""
        places = self.places.setdefault(ref, [])
        if not places:
            self.size += ref.size
        places.append((file, offset))
        self.count += 1

    def first_places(self, refs: Iterable[ChunkRef]) -> list[ChunkLocation]:
        """Return the first place of each of these chunks."""
        found = []
        for ref in refs:
            file, offset = self.places[ref][0]
            found.append(ChunkLocation(ref, file.path, offset))
        return found

    @property
    def is_full(self) -> bool:
        """Whether it is large enough for a call of its own."""
        return (
            self.size >= BATCH_BYTES
            or len(self.places) >= _BATCH_CHUNKS
            or self.count >= _BATCH_PLACES
        )


class Assembly:
    """Assembles one tree; a context manager that closes its open files. Blocking.

    `advance` until it returns None, from one thread at a time; `write` the chunks of each batch, from any threads; then
    `seal` and `name`.

    Args:
        folder: new; the tree grows in it.
        reservation: room for the whole tree without the files that `donors` can link.
        donors: its content in other trees.
        earlier: folders of earlier attempts, newest first. Files are moved out of them.
        read_only: files get 0444 or 0555, folders 0555, as trees of the cache.
        may_link: link files of donors; only if no program can write to them, and with `read_only`.
    """

    def __init__(
        self,
        manifest: StoredManifest,
        folder: Path,
        *,
        reservation: Reservation,
        donors: Donors,
        earlier: Sequence[Path] = (),
        read_only: bool = False,
        may_link: bool = False,
    ) -> None:
        self.linked_bytes = 0
        """Bytes of files linked from donors."""
        self._manifest = manifest
        self._folder = folder
        self._reservation = reservation
        self._donors = donors
        self._earlier_paths = earlier
        self._read_only = read_only
        self._may_link = may_link and read_only
        self._left = manifest.size
        self._turn = threading.Lock()
        self._open: Parts = ()
        self._step_bytes = self._step_files = 0
        self._batches = self._lay_out()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._folder.mkdir(mode=0o700)
            self._tree = stack.enter_context(ByDescriptor(self._folder))
            self._earlier = [
                stack.enter_context(ByDescriptor(path)) for path in self._earlier_paths
            ]
            stack.callback(self._batches.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def advance(self) -> Batch | None:
        """Create, link and reuse files; return the next chunks to fetch, perhaps none yet. None: that was all."""
        self._step_bytes = self._step_files = 0
        return next(self._batches, None)

    def write(self, batch: Batch, chunks: Iterable[tuple[ChunkRef, bytes]]) -> None:
        """Write verified chunks of a batch to all their places.

        Raises BlobCorrupt if the manifest has another size for one.
        """
        with ByDescriptor(self._folder) as tree:
            for ref, data in chunks:
                if len(data) != ref.size:
                    raise BlobCorrupt(
                        f"chunk {ref.digest[:16]} has {len(data)} bytes, not {ref.size}"
                    )
                for file, offset in batch.places[ref]:
                    self._put(tree, file, offset, data)

    def seal(self) -> None:
        """Set the modes of folders; raises BlobCorrupt when chunks are missing."""
        if self._left:
            raise BlobCorrupt(f"{self._left} bytes of the content are missing")
        mode = 0o555 if self._read_only else 0o755
        around: Parts = ()
        for number, entry in enumerate(self._manifest.entries):
            if number % _LOOKED_EVERY == 0:
                self._reservation.look()
            folder = native_parts(entry.path)[:-1]
            # All entries of a folder come together.
            while around != folder[: len(around)]:
                self._tree.set_mode(around, mode)
                around = around[:-1]
            around = folder
        while around:
            self._tree.set_mode(around, mode)
            around = around[:-1]
        self._tree.set_mode((), mode)

    def name(self, target: Path) -> None:
        """Rename the tree to `target`; TargetExists if that exists."""
        if os.path.lexists(target):
            raise TargetExists(f"{target} is there already")
        try:
            self._folder.rename(target)
        except OSError as error:
            if os.path.lexists(target):
                raise TargetExists(f"{target} is there already") from error
            raise

    # Internals.

    def _lay_out(self) -> Generator[Batch, None, None]:
        batch = Batch()
        for entry in self._manifest.entries:
            parts = native_parts(entry.path)
            with naming(entry.path):
                self._enter(parts[:-1])
                for wanted in self._lay(entry, parts):
                    if wanted is not None:
                        batch.add(*wanted)
                    if batch.is_full:
                        yield batch
                        batch = Batch()
                    elif self._step_bytes >= _STEP_BYTES or self._step_files >= _STEP_FILES:
                        yield Batch()
        if batch.count:
            yield batch

    def _lay(
        self, entry: StoredEntry, parts: Parts
    ) -> Iterator[tuple[ChunkRef, _File, int] | None]:
        """Create one file from local content; yield the missing chunks, and now and then None."""
        self._step_files += 1
        yield None
        self._donors.look_at(entry)
        file = _File(entry.path, parts, self._mode(entry), entry.size)
        if not entry.size:
            self._put(self._tree, file, 0, b"")
            return
        if (yield from self._link(entry, file)):
            return
        before = self._take_up(entry, parts)
        try:
            file.is_made = before is not None
            for ref, offset in placed(entry):
                if not file.is_made and ref.size < entry.size:
                    self._make(file, entry.size)
                if before is not None and read_written(before, ref, offset) is not None:
                    self._reservation.spend(ref.size)
                    self._count(file, ref.size, before)
                elif (data := self._donors.read(ref)) is not None:
                    self._put(self._tree, file, offset, data)
                else:
                    yield ref, file, offset
                    continue
                self._step_bytes += ref.size
                yield None
        finally:
            if before is not None:
                os.close(before)

    def _link(self, entry: StoredEntry, file: _File) -> Generator[None, None, bool]:
        """Link the file from another tree, if one has it; return whether it was linked."""
        donor = self._donors.file_of(entry) if self._may_link else None
        if donor is None:
            return False
        is_linked = yield from self._try_link(donor, entry, file)
        if not is_linked:
            self._reservation.extend(Size.of(entry.size, 1))
        return is_linked

    def _try_link(
        self, donor: DonorFile, entry: StoredEntry, file: _File
    ) -> Generator[None, None, bool]:
        try:
            opened = donor.open()
        except OSError:
            if donor.tree.is_dir():  # else the whole tree was removed
                self._donors.damaged.append(donor)
            return False
        try:
            if not _is_sealed(os.fstat(opened), file.mode, entry.size):
                self._donors.damaged.append(donor)
                return False
            for ref, offset in placed(entry):
                self._reservation.look()
                if read_chunk(opened, ref, offset) is None:
                    self._donors.damaged.append(donor)
                    return False
                self._step_bytes += ref.size
                yield None
            folder = self._tree.folder(file.parts[:-1])
            try:
                # By the descriptor, so that it is the file that was read.
                os.link(path_of(opened), file.parts[-1], dst_dir_fd=folder, follow_symlinks=True)
            except OSError as error:
                if error.errno in _NO_LINK:
                    return False
                raise
        finally:
            os.close(opened)
        self.linked_bytes += entry.size
        with self._turn:
            self._left -= entry.size
        return True

    def _take_up(self, entry: StoredEntry, parts: Parts) -> int | None:
        """Move the file here from an earlier attempt; return its descriptor, or None."""
        name = parts[-1]
        for earlier in self._earlier:
            try:
                facts = earlier.lstat(parts)
            except OSError:
                continue
            if not _is_own(facts) or facts.st_nlink > 1:
                continue
            if facts.st_size != entry.size:
                continue
            folder = self._tree.folder(parts[:-1])
            if _exists(name, folder):  # on a file system that does not distinguish two names
                raise FileExistsError(errno.EEXIST, "it is there already", entry.path)
            self._reservation.spend(0, 1)
            os.rename(name, name, src_dir_fd=earlier.folder(parts[:-1]), dst_dir_fd=folder)
            os.chmod(name, 0o600, dir_fd=folder)
            return os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        return None

    def _make(self, file: _File, size: int) -> None:
        """Create a file of several chunks, which come in any order."""
        self._reservation.spend(0, 1)
        opened = self._tree.create_file(file.parts)
        try:
            # A hole without blocks: a later attempt sees what is missing.
            os.ftruncate(opened, size)
        finally:
            os.close(opened)
        file.is_made = True

    def _put(self, tree: ByDescriptor, file: _File, offset: int, data: bytes) -> None:
        """Write a part of a file; a file of one part is created for it."""
        self._reservation.spend(len(data), 0 if file.is_made else 1)
        with naming(file.path):
            if file.is_made:
                flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
                opened = os.open(file.parts[-1], flags, dir_fd=tree.folder(file.parts[:-1]))
            else:
                opened = tree.create_file(file.parts)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(opened, view, offset)
                view, offset = view[written:], offset + written
            self._count(file, len(data), opened)
        finally:
            os.close(opened)

    def _count(self, file: _File, size: int, opened: int) -> None:
        """Count written bytes; a whole file gets its mode."""
        with self._turn:
            file.left -= size
            self._left -= size
            is_whole = not file.left
        if is_whole:
            os.fchmod(opened, file.mode)

    def _enter(self, folder: Parts) -> None:
        """Create missing folders."""
        shared = 0
        while shared < min(len(folder), len(self._open)) and folder[shared] == self._open[shared]:
            shared += 1
        for depth in range(shared + 1, len(folder) + 1):
            self._reservation.spend(0, 1)
            self._tree.make_folder(folder[:depth])
            self._step_files += 1
        self._open = folder

    def _mode(self, entry: StoredEntry) -> int:
        return entry.mode & 0o555 if self._read_only else entry.mode


def _is_sealed(facts: os.stat_result, mode: int, size: int) -> bool:
    """Return whether a file is the agent's own, as in a tree of the cache."""
    return _is_own(facts) and stat.S_IMODE(facts.st_mode) == mode and facts.st_size == size


def _is_own(facts: os.stat_result) -> bool:
    """Return whether it is a regular file of the agent."""
    return stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid()


def _exists(name: str, folder: int) -> bool:
    try:
        os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True
