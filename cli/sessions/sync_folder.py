"""The local side of a synced folder: its files as `nsml run` would send them."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from blake3 import blake3

from cli.exits import CommandError
from cli.sessions.sync_decisions import Here, folders_above
from nsml._path_text import bytes_of, path_text
from nsml.content.chunks import chunks_of
from nsml.content.errors import ContentError, PathRefused, TooLarge, Unreadable
from nsml.content.ignore import IGNORE_FILE, rules_for
from nsml.content.listing import MAX_FILES, FolderFile, Listing, check_size, mode_of, open_root
from nsml.content.safe_paths import version_of
from nsml.copying.messages import TEMPORARY, nearest_time
from nsml.copying.sync_messages import File, Old

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from io import RawIOBase

    from nsml.content.errors import PackRefused
    from nsml.content.safe_paths import Beneath, Parts, Version
    from nsml.copying.sync_messages import Piece, Put

_PIECE: Final = 128 << 10
_CUT_FROM: Final = 4 << 20
"""Files of this size or more are sent as the chunks missing in an earlier version: one is 1 MiB on average."""
_MOST_CUTS: Final = 256
"""Most versions of such files remembered, each 100 KB at most."""
_TICK_NS: Final = 50_000_000
"""Files changed more recently than this may change again without a new mtime."""


class Changed(ValueError):
    """A file changed since the scan."""

    def __init__(self) -> None:
        super().__init__("it was changed while it was read")


class _NotKnown(Exception):
    """The path is not a file of the last scan."""


class Look(NamedTuple):
    """The result of a scan."""

    files: dict[bytes, Here]
    left_out: dict[bytes, str]
    """Paths that cannot be sent, and why; their contents are unknown."""
    changing: set[bytes]
    """Files being written now."""
    folders: frozenset[tuple[str, int]]
    """Relevant subfolders: absolute paths without links, and their inode numbers."""

    def is_unknown(self, path: bytes) -> bool:
        """Return whether the file may exist but is unreadable now: then it is not removed from the session."""
        if path in self.changing or path in self.left_out:
            return True
        return bool(self.left_out) and any(one in self.left_out for one in folders_above(path))


class _Chunk(NamedTuple):
    """A chunk of a large file."""

    digest: bytes
    offset: int
    size: int


class _Read(NamedTuple):
    here: Here
    parts: Parts
    version: Version
    is_settled: bool


class LocalFolder:
    """The folder `root`. All methods but `is_watched` are called one at a time, from any thread."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        """Raises PackRefused if it is unreadable."""
        self._root = root
        self._max_bytes = max_bytes
        self._id = _id_of(root)
        self._read: dict[bytes, _Read] = {}
        self._cuts: dict[str, list[_Chunk]] = {}
        self._environments: tuple[str, ...] = ()
        self._rules = rules_for(root)
        self._folders: frozenset[tuple[str, int]] = frozenset()
        self._is_plain = False

    def look(self) -> Look:
        """List the folder, and read files changed since the last scan.

        Raises CommandError if it was removed or replaced by another folder; TooLarge.
        """
        left_out: dict[bytes, str] = {}
        self._renew_rules(left_out)
        refused: list[PackRefused | PathRefused] = []
        try:
            if _id_of(self._root) != self._id:
                raise _gone(self._root)
            with open_root(self._root) as folder:
                listing = Listing(self._root, folder, self._rules, MAX_FILES, refused)
                found = listing.run()
                check_size(found, self._max_bytes)
                changing = self._renew(folder, found, left_out)
        except TooLarge:
            raise
        except (OSError, ContentError) as error:
            raise _gone(self._root) from error
        self._environments = tuple(listing.environments)
        for path, kind in listing.special:
            left_out[bytes_of(path)] = f"{kind} is not sent"
        for one in refused:
            left_out[bytes_of(one.path)] = str(one)
        self._folders = frozenset(
            (str(self._root.joinpath(*parts)), number) for parts, number in listing.folders
        )
        has_links = any(one.path != "/".join(one.parts) for one in found)
        self._is_plain = not (left_out or changing or has_links)
        return Look(self._files(), left_out, changing, self._folders)

    def look_at(self, paths: Collection[str]) -> Look | None:
        """As `look`, if only these absolute paths have changed since; None: a full scan is needed.

        It is not while each was a file and still is, or was missing and still is: as editors save.
        """
        folders = {str(self._root), *(path for path, _ in self._folders)}
        if not self._is_plain or not folders.isdisjoint(paths):
            return None
        self._is_plain = False  # until it is found to be so
        places = {Path(path).relative_to(self._root).parts for path in paths}
        places |= {read.parts for read in self._read.values() if not read.is_settled}
        before = self._read
        left_out: dict[bytes, str] = {}
        try:
            with open_root(self._root) as folder:
                found = [one for parts in sorted(places) if (one := self._known(folder, parts))]
                changing = self._renew(folder, found, left_out)
        except (OSError, ContentError, _NotKnown):
            return None
        self._read = before | self._read
        if left_out or changing or self._size() > self._max_bytes or _id_of(self._root) != self._id:
            return None
        self._is_plain = True
        return Look(self._files(), {}, set(), self._folders)

    def _known(self, folder: Beneath, parts: Parts) -> FolderFile | None:
        """Return a known file; None if it is still missing. Raises _NotKnown, OSError."""
        path = path_text("/".join(parts))
        known = self._read.get(bytes_of(path))
        try:
            now = folder.lstat(parts)
        except FileNotFoundError:
            if known is None:
                return None
            raise
        is_file = stat.S_ISREG(now.st_mode) and now.st_nlink == 1  # else other names have it too
        if known is None or not is_file or parts[-1] == IGNORE_FILE:
            raise _NotKnown
        return FolderFile(path, parts, now.st_size, mode_of(now.st_mode), version_of(now))

    def _files(self) -> dict[bytes, Here]:
        return {path: read.here for path, read in self._read.items()}

    def _size(self) -> int:
        return sum(read.here.size for read in self._read.values())

    def leaves_out(self, path: bytes) -> bool:
        """Return whether a rule excludes it."""
        parts = os.fsdecode(path).split("/")
        for depth in range(1, len(parts) + 1):
            above = "/".join(parts[:depth])
            is_folder = depth < len(parts) or (self._root / above).is_dir()
            if self._rules.ignores(above, is_folder=is_folder) or above in self._environments:
                return True
        return parts[-1].startswith(TEMPORARY.decode())

    def content(self, order: Put) -> Iterator[Piece]:
        """Yield the bytes of a file. Raises Changed, OSError if it differs from the order."""
        read = self._read.get(order.path)
        if read is None or read.here.file.digest != order.file.digest:
            raise Changed
        with open_root(self._root) as folder:
            descriptor = folder.open_file(read.parts)
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                yield from self._pieces(order, file)
                is_same = version_of(os.fstat(file.fileno())) == read.version
        if not is_same:
            del self._read[order.path]
            self._is_plain = False
            raise Changed

    def _pieces(self, order: Put, file: RawIOBase) -> Iterator[Piece]:
        """Yield the parts to send: chunks of an earlier version are skipped if the session has that."""
        there = self._cuts.get(order.there.digest, []) if order.there is not None else []
        chunks = self._cuts.get(order.file.digest, []) if there else []
        had = {one.digest: one for one in there}
        for one in chunks or [_Chunk(b"", 0, order.size)]:
            if (old := had.get(one.digest)) is not None:
                yield Old(old.offset, old.size)
                continue
            file.seek(one.offset)
            left = one.size
            while left and (piece := file.read(min(_PIECE, left))):
                left -= len(piece)
                yield piece
            if left:
                raise Changed

    def _remember(self, digest: str, chunks: list[_Chunk]) -> None:
        self._cuts.pop(digest, None)  # the most recently read stay
        self._cuts[digest] = chunks
        if len(self._cuts) > _MOST_CUTS:
            del self._cuts[next(iter(self._cuts))]

    def is_watched(self, path: str) -> bool:
        """Return whether a change of this path, in a folder of sent files, may concern one of them."""
        return not self._rules.ignores(os.path.relpath(path, self._root), is_folder=False)

    def _renew_rules(self, left_out: dict[bytes, str]) -> None:
        """Reload the ignore file; while it has an invalid line, keep the previous rules."""
        try:
            self._rules = rules_for(self._root)
        except Unreadable as error:
            left_out[IGNORE_FILE.encode()] = f"{error}; its rules are those before"

    def _renew(
        self, folder: Beneath, found: list[FolderFile], left_out: dict[bytes, str]
    ) -> set[bytes]:
        """Read new files; return files being written."""
        before, self._read = self._read, {}
        changing: set[bytes] = set()
        for one in found:
            path = bytes_of(one.path)
            if path.rpartition(b"/")[2].startswith(TEMPORARY):
                continue
            known = before.get(path)
            is_executable = bool(one.mode & 0o100)
            if known is None or not known.is_settled or not _is_same(known, one):
                try:
                    known, chunks = _read_of(folder, one, is_executable=is_executable)
                    if chunks:
                        self._remember(known.here.file.digest, chunks)
                except Changed:
                    changing.add(path)
                    continue
                except OSError as error:
                    left_out[path] = f"it cannot be read: {error.strerror or error}"
                    continue
            file = File(known.here.file.digest, is_executable)
            self._read[path] = known._replace(here=known.here._replace(file=file))
        return changing


def _is_same(known: _Read, found: FolderFile) -> bool:
    return (known.version, known.here.size, known.parts) == (found.version, found.size, found.parts)


def _read_of(
    folder: Beneath, found: FolderFile, *, is_executable: bool
) -> tuple[_Read, list[_Chunk]]:
    """Read a file, and its chunks if it is large. Raises Changed, OSError."""
    chunks: list[_Chunk] = []
    with os.fdopen(folder.open_file(found.parts), "rb", buffering=0) as file:
        first = os.fstat(file.fileno())
        digest = hashlib.sha256()
        if first.st_size < _CUT_FROM:
            while piece := file.read(_PIECE):
                digest.update(piece)
        else:
            offset = 0
            for piece in chunks_of(file):
                digest.update(piece)
                chunks.append(_Chunk(blake3(piece).digest(), offset, len(piece)))
                offset += len(piece)
        now = os.fstat(file.fileno())
    if _facts(now) != _facts(first):
        raise Changed
    is_settled = not 0 <= time.time_ns() - now.st_ctime_ns < _TICK_NS
    here = Here(File(digest.hexdigest(), is_executable), now.st_size, nearest_time(now.st_mtime_ns))
    return _Read(here, found.parts, version_of(now), is_settled), chunks


def _facts(now: os.stat_result) -> tuple[int, int, int]:
    return now.st_size, now.st_mtime_ns, now.st_ctime_ns


def _id_of(root: Path) -> tuple[int, int]:
    now = root.stat()
    return now.st_dev, now.st_ino


def _gone(root: Path) -> CommandError:
    return CommandError(
        f"the folder {root} is gone, or cannot be read",
        why="nothing was removed in the session",
    )
