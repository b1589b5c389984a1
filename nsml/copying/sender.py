"""The sending side of a copy."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import stat
import time
import zlib
from typing import TYPE_CHECKING, Final

from nsml.copying.folders import FOLLOWS, IN_PLACE, Folders
from nsml.copying.messages import (
    BEGIN,
    CONTENT,
    CONTENT_END,
    DONE,
    FILE,
    FINISHED,
    FOLDER,
    GO,
    HARD_LINK,
    HAS_ALL,
    LEFT_OUT,
    MOST_ENTRIES,
    MOST_NAME_BYTES,
    MOST_PATH_BYTES,
    NOW,
    PIECE_BYTES,
    SYMLINK,
    TEMPORARY,
    WANTED,
    Entry,
    Incoming,
    NotUnderstood,
    entries_message,
    flags_of,
    message,
    nearest_time,
    reason_of,
    report_of,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import Any

    from nsml.copying.messages import Report

_MOST_LINKED_BYTES: Final = 16 << 20
"""Memory limit for files with several names; further names beyond it are copied as separate files."""
_LINKED_BYTES: Final = 250
"""Memory per such file, beside its path."""
_MOST_COUNTED: Final = 200_000
"""Most entries counted in advance, to know the total size."""
_DEEPEST: Final = 200
_TICK_NS: Final = 20_000_000
"""Writes within one tick of the kernel's clock have the same time; a tick is 10 ms at most."""
_READS: Final = flags_of("O_NOFOLLOW", "O_NONBLOCK")


class Sender:
    """Sends one file or folder; raises OSError if it is missing, is neither, or cannot be read.

    A link given as `path` is followed; those in a folder are sent as links. `done_bytes` of `total_bytes` are
    sent, or existed already; the total is 0 if unknown.
    """

    def __init__(self, path: bytes) -> None:
        self._place = os.path.realpath(path, strict=True)
        self.is_folder = _is_folder(os.stat(self._place))
        if path.endswith(b"/") and not self.is_folder:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if self.is_folder and os.scandir not in os.supports_fd:
            raise OSError(errno.ENOTSUP, "this system cannot open folders: send files one by one")
        self._root = os.open(self._place, FOLLOWS if self.is_folder else _READS)
        self._folders = Folders(self._root)
        self._linked: dict[tuple[int, int, int, int], bytes] = {}
        self._linked_bytes = 0
        self.done_bytes = self.resumed_bytes = 0
        self.report: Report | None = None
        try:
            if _is_folder(os.fstat(self._root)) is not self.is_folder:
                raise _Changed
            self.total_bytes = self._counted()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close open folders. It cannot be used afterwards."""
        self._folders.close()

    def steps(self) -> Generator[bytes, bytes, None]:
        """Send everything; then `report` has the other side's result. Raises NotUnderstood, Refused."""
        incoming = Incoming()
        yield message(BEGIN, [self.is_folder, self.total_bytes, self._origin()])
        yield from incoming.expect(GO)
        for entries in _parts(self._entries()):
            yield entries_message(entries)
            files = [one for one in entries if one.kind == FILE]
            wanted = yield from incoming.expect(WANTED)
            yield from self._contents(files, _starts(wanted, files))
        yield message(DONE)
        report = report_of((yield from incoming.expect(FINISHED)))
        self.report = report._replace(resumed_bytes=self.resumed_bytes)

    def _origin(self) -> str:
        """Return an identifier of this folder: incomplete copies of others must not be resumed."""
        now = os.fstat(self._root)
        words = f"{platform.node()} {now.st_dev} {now.st_ino} ".encode() + self._place
        return hashlib.sha256(words).hexdigest()[:16]

    def _contents(self, files: list[Entry], starts: list[int]) -> Iterator[bytes]:
        held = bytearray()
        for entry, start in zip(files, starts, strict=True):
            if start == HAS_ALL:
                self.done_bytes += entry.size
                continue
            self.done_bytes += start
            self.resumed_bytes += start
            why = ""
            try:
                for kind, value in self._pieces(entry, start):
                    held += message(kind, value)
                    if kind == CONTENT:
                        self.done_bytes += len(value)
                    if len(held) >= PIECE_BYTES:
                        yield bytes(held)
                        held.clear()
            except OSError as error:
                why = reason_of(error)
            held += message(CONTENT_END, why)
        if held:
            yield bytes(held)

    def _pieces(self, entry: Entry, start: int) -> Iterator[tuple[bytes, Any]]:
        """Yield the current content of a file. Raises OSError, also if it is changed meanwhile."""
        descriptor = self._open(entry.path, _READS) if entry.path else os.dup(self._root)
        try:
            first, is_settled = settled(descriptor)
            is_listed = _facts(first) == (entry.size, entry.mtime_ns)
            is_version = is_listed and _version(first) == entry.target
            if not stat.S_ISREG(first.st_mode) or (start and not is_version):
                raise _Changed
            if not is_listed:
                yield NOW, _facts(first)
            os.lseek(descriptor, start, os.SEEK_SET)
            left, summed = first.st_size - start, 0
            while left:
                piece = os.read(descriptor, min(PIECE_BYTES, left))
                if not piece:
                    raise _Changed
                left -= len(piece)
                summed = zlib.crc32(piece, summed)
                yield CONTENT, piece
            now = os.fstat(descriptor)
            # its owner can set the time of writing: the time of the last change is the kernel's
            is_same = _facts(now) == _facts(first) and now.st_ctime_ns == first.st_ctime_ns
            if not (is_same and is_settled):
                # a file that only grew, such as a log, is copied in its earlier size, if its start is unchanged
                is_rewritten = now.st_mtime_ns != first.st_mtime_ns and now.st_size <= first.st_size
                if start or is_rewritten or now.st_size < first.st_size:
                    raise _Changed
                if _summed(descriptor, first.st_size) != summed:
                    raise _Changed
            if not now.st_size and os.read(descriptor, 1):
                raise OSError(errno.EINVAL, "the kernel makes it up as it is read")
        finally:
            os.close(descriptor)

    def _open(self, path: bytes, flags: int) -> int:
        """Open `path`. Raises OSError; _Changed if it, or a folder above it, has become a link."""
        try:
            folder, name = self._found(path)
            return os.open(name, flags, dir_fd=folder)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                raise _Changed from error
            raise

    def _found(self, path: bytes) -> tuple[int, bytes]:
        """Return its parent folder, open until the next call, and its name. Raises OSError."""
        above, _, name = path.rpartition(b"/")
        return self._folders.find(above), name or b"."

    def _listed(self, path: bytes) -> Iterator[os.DirEntry[str]]:
        """List a folder; only the names are usable later. Raises OSError."""
        opened = self._open(path, IN_PLACE)
        try:
            return os.scandir(opened)
        finally:
            os.close(opened)

    def _counted(self) -> int:
        total = 0
        for number, (_, found) in enumerate(self._walk()):
            if number >= _MOST_COUNTED:
                return 0
            if isinstance(found, os.stat_result) and stat.S_ISREG(found.st_mode):
                total += found.st_size
        return total if total < 1 << 63 else 0  # sparse files may have any size

    def _entries(self) -> Iterator[Entry]:
        for path, found in self._walk():
            if isinstance(found, str):
                yield Entry(path, LEFT_OUT, target=found.encode(errors="replace")[:200])
            else:
                yield self._entry(path, found)

    def _entry(self, path: bytes, found: os.stat_result) -> Entry:
        mode, mtime_ns = stat.S_IMODE(found.st_mode), _facts(found)[1]
        if stat.S_ISDIR(found.st_mode):
            return Entry(path, FOLDER, mode, mtime_ns)
        if stat.S_ISLNK(found.st_mode):
            try:
                folder, name = self._found(path)
                target = os.readlink(name, dir_fd=folder)
                return Entry(path, SYMLINK, mode, mtime_ns, target=target)
            except OSError as error:
                return Entry(path, LEFT_OUT, target=(reason_of(error)).encode())
        if not stat.S_ISREG(found.st_mode):
            return Entry(path, LEFT_OUT, target=_what(found.st_mode).encode())
        if found.st_nlink > 1:
            key = (
                found.st_dev,
                found.st_ino,
                *_facts(found),
            )  # the number may belong to another file by now
            if key in self._linked:
                return Entry(path, HARD_LINK, mode, mtime_ns, target=self._linked[key])
            if self._linked_bytes < _MOST_LINKED_BYTES:
                self._linked[key] = path
                self._linked_bytes += len(path) + _LINKED_BYTES
        return Entry(path, FILE, mode, mtime_ns, found.st_size, _version(found))

    def _walk(self) -> Iterator[tuple[bytes, os.stat_result | str]]:
        """Yield paths with their status, or why it is unknown; one folder is open per level."""
        yield b"", os.fstat(self._root)
        levels: list[tuple[bytes, Any]] = []
        if self.is_folder:
            levels.append((b"", self._listed(b"")))
        try:
            while levels:
                above, listing = levels[-1]
                try:
                    found = next(listing, None)
                except OSError as error:
                    found = None
                    yield above, reason_of(error)
                if found is None:
                    listing.close()
                    levels.pop()
                    continue
                name = os.fsencode(found.name)
                if name.startswith(TEMPORARY):
                    continue
                path = above + b"/" + name if above else name
                try:
                    if len(path) > MOST_PATH_BYTES or len(levels) > _DEEPEST:
                        raise OSError(errno.ENAMETOOLONG, "too deep")  # noqa: TRY301
                    folder, _ = self._found(path)
                    facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    below = self._listed(path) if stat.S_ISDIR(facts.st_mode) else None
                except OSError as error:
                    shown = path if len(path) <= MOST_PATH_BYTES else above
                    yield shown, reason_of(error)
                    continue
                if below is not None:
                    levels.append((path, below))
                yield path, facts
        finally:
            for _, listing in levels:
                listing.close()


class _Changed(OSError):
    def __init__(self) -> None:
        super().__init__(errno.EAGAIN, "it was changed while it was copied")


def _is_folder(now: os.stat_result) -> bool:
    """Return whether it is a folder, or a file. Raises OSError for anything else."""
    if not (stat.S_ISDIR(now.st_mode) or stat.S_ISREG(now.st_mode)):
        raise OSError(errno.EINVAL, "it is neither a file nor a folder")
    return stat.S_ISDIR(now.st_mode)


def _facts(now: os.stat_result) -> tuple[int, int]:
    """Return size and time; file systems have later times than entries can."""
    return now.st_size, nearest_time(now.st_mtime_ns)


def _version(now: os.stat_result) -> bytes:
    """Return an identifier that changes with the content, whatever the owner does."""
    return b"%d %d" % (now.st_ino, now.st_ctime_ns)


def _is_fresh(now: os.stat_result) -> bool:
    """Return whether a further write might not change its times, because the last was so recent."""
    return 0 <= time.time_ns() - now.st_ctime_ns < _TICK_NS


def settled(descriptor: int) -> tuple[os.stat_result, bool]:
    """Return the status, and whether a further write would change its times: never if it is written all the time."""
    now = os.fstat(descriptor)
    if _is_fresh(now):
        time.sleep(_TICK_NS / 1e9)
        now = os.fstat(descriptor)
    return now, not _is_fresh(now)


def _summed(descriptor: int, size: int) -> int:
    """Return the checksum of the first `size` bytes. Raises OSError."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    summed, left = 0, size
    while left and (piece := os.read(descriptor, min(PIECE_BYTES, left))):
        summed = zlib.crc32(piece, summed)
        left -= len(piece)
    return summed


def _what(mode: int) -> str:
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a pipe" if stat.S_ISFIFO(mode) else "a device"


def _parts(entries: Iterator[Entry]) -> Iterator[list[Entry]]:
    """Group entries by message."""
    part: list[Entry] = []
    name_bytes = 0
    for one in entries:
        part.append(one)
        name_bytes += len(one.path) + len(one.target)
        if len(part) >= MOST_ENTRIES or name_bytes >= MOST_NAME_BYTES:
            yield part
            part, name_bytes = [], 0
    if part:
        yield part


def _starts(wanted: Any, files: list[Entry]) -> list[int]:
    """Return the first byte wanted of each file. Raises NotUnderstood."""
    if (
        not isinstance(wanted, list)
        or len(wanted) != len(files)
        or not all(isinstance(start, int) for start in wanted)
        or not all(HAS_ALL <= start <= one.size for start, one in zip(wanted, files, strict=True))
    ):
        raise NotUnderstood("which files are wanted")
    return wanted
