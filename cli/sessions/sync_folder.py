"""The local side of a folder that is kept in step: its files as `nsml run` would send them."""

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
"""Of files of this size or more only the chunks are sent that an earlier version lacks: one is 1 MiB on average."""
_MOST_CUTS: Final = 256
"""Versions of such files that are remembered, each 100 KB at most."""
_TICK_NS: Final = 50_000_000
"""What was changed so lately may be changed again without another time."""


class Changed(ValueError):
    """A file is not what it was when it was looked at."""

    def __init__(self) -> None:
        super().__init__("it was changed while it was read")


class _NotKnown(Exception):
    """It is not a file that was there at the last look at all."""


class Look(NamedTuple):
    """What is in the folder."""

    files: dict[bytes, Here]
    left_out: dict[bytes, str]
    """What cannot be sent, and why; nothing is known of what is below it."""
    changing: set[bytes]
    """Files that are written right now."""
    folders: frozenset[tuple[str, int]]
    """The folders below that count: absolute paths without links, and their inode numbers."""

    def is_unknown(self, path: bytes) -> bool:
        """Whether the file is there perhaps, and cannot be read now: then it is not removed elsewhere."""
        if path in self.changing or path in self.left_out:
            return True
        return bool(self.left_out) and any(one in self.left_out for one in folders_above(path))


class _Chunk(NamedTuple):
    """A part of a large file."""

    digest: bytes
    offset: int
    size: int


class _Read(NamedTuple):
    here: Here
    parts: Parts
    version: Version
    is_settled: bool


class LocalFolder:
    """The folder `root`. Its methods but `is_watched` are called one at a time, from whatever thread."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        """Raises PackRefused where it cannot be read."""
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
        """List it, and read what was changed since the last time.

        Raises CommandError: it is gone, or another folder has its place; TooLarge.
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
        """As `look`, where nothing but these absolute paths was changed since; None: all has to be looked at.

        That is not so while each was a file and is one, or was not there and is not: as editors save.
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
        """A file that was known; None: nothing was there and is. Raises _NotKnown, OSError."""
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
        """Whether a rule keeps it from being sent."""
        parts = os.fsdecode(path).split("/")
        for depth in range(1, len(parts) + 1):
            above = "/".join(parts[:depth])
            is_folder = depth < len(parts) or (self._root / above).is_dir()
            if self._rules.ignores(above, is_folder=is_folder) or above in self._environments:
                return True
        return parts[-1].startswith(TEMPORARY.decode())

    def content(self, order: Put) -> Iterator[Piece]:
        """The bytes of a file. Raises Changed, OSError: it is not what was to be sent."""
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
        """What is sent of it: not what an earlier version had, if that is what is there."""
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
        self._cuts.pop(digest, None)  # the last that were read stay
        self._cuts[digest] = chunks
        if len(self._cuts) > _MOST_CUTS:
            del self._cuts[next(iter(self._cuts))]

    def is_watched(self, path: str) -> bool:
        """Whether a change of this path, in a folder of files that are sent, may be one of these."""
        return not self._rules.ignores(os.path.relpath(path, self._root), is_folder=False)

    def _renew_rules(self, left_out: dict[bytes, str]) -> None:
        """Those of the ignore file as it is now; while it has a line that is no pattern, those before."""
        try:
            self._rules = rules_for(self._root)
        except Unreadable as error:
            left_out[IGNORE_FILE.encode()] = f"{error}; its rules are those before"

    def _renew(
        self, folder: Beneath, found: list[FolderFile], left_out: dict[bytes, str]
    ) -> set[bytes]:
        """Read what is new; what is being written."""
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
    """A file, read, and its chunks if it is a large one. Raises Changed, OSError."""
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
