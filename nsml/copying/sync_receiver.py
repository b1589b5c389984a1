"""The session's side of syncing a folder: reports states, puts and removes files.

As in `receiver`, the client is not trusted, folders above a file are opened one by one without following
links, and an incomplete file has a temporary name. Beyond that only files that are as the client
expects them are changed: programs of the session work in the same folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nsml.copying import messages as m
from nsml.copying import sync_messages as s
from nsml.copying.folders import FOLLOWS, Folders
from nsml.copying.receiver import Unfinished, temporary_name
from nsml.copying.sender import settled

if TYPE_CHECKING:
    from collections.abc import Generator

_READS: Final = m.flags_of("O_NOFOLLOW", "O_NONBLOCK")
_PIECE: Final = 1 << 18
_TRIES: Final = 3
_EXECUTABLE: Final = 0o755
_PLAIN: Final = 0o644
_FOLDER: Final = 0o755
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOTHING: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""A folder above it is missing, or is no folder."""
_NOT_WHOLE: Final = "it was changed while it was sent"


class SyncReceiver:
    """Syncs the folder `where`."""

    def __init__(self, where: bytes) -> None:
        self._where = where

    def steps(self) -> Generator[bytes, bytes, None]:
        """Handle requests until the client leaves. Raises NotUnderstood, OSError: there is no such folder."""
        incoming = m.Incoming()
        if (yield from incoming.expect(m.BEGIN)) != s.VERSION:
            yield m.message(m.REFUSED, ["this folder cannot be kept in step: versions differ", ""])
            return
        folder = _Folder(os.open(self._where, FOLLOWS))
        try:
            yield m.message(m.GO)
            yield from self._rounds(folder, incoming)
        finally:
            folder.close()

    def _rounds(self, folder: _Folder, incoming: m.Incoming) -> Generator[bytes, bytes, None]:
        results: list[s.Result] = []
        while True:
            kind, value = yield from incoming.next()
            if kind == s.ASK:
                yield s.states_message([folder.state(path) for path in s.asked(value)])
            elif kind == m.DONE:
                yield s.results_message(results)
                results = []
            elif kind in {s.PUT, s.REMOVE, s.REMOVE_FOLDER} and len(results) < s.MOST_ORDERS:
                order = s.order_of(kind, value)
                if isinstance(order, s.Put):
                    results.append((yield from _put(folder, order, incoming)))
                elif isinstance(order, s.Remove):
                    results.append(folder.remove(order))
                else:
                    results.append(folder.remove_folder(order.path))
            else:
                raise m.NotUnderstood(f"{kind!r} instead of an order")


def _put(folder: _Folder, order: s.Put, incoming: m.Incoming) -> Generator[bytes, bytes, s.Result]:
    """Receive a file, always completely: another order follows."""
    coming = _Coming(folder, order)
    try:
        while True:
            kind, value = yield from incoming.next()
            if kind == m.CONTENT_END:
                return coming.finish(str(value))
            if kind not in {m.CONTENT, s.OLD}:
                raise m.NotUnderstood(f"{kind!r} instead of content")
            coming.write(s.old_of(value) if kind == s.OLD else value)
    finally:
        coming.close()


class _Coming:
    """A file being received: it is put in its place, or removed."""

    def __init__(self, folder: _Folder, order: s.Put) -> None:
        self._folder = folder
        self._order = order
        self._file: _Placing | None = None
        self._result: s.Result | None = None
        try:
            self._file = folder.placing(order)
        except OSError as error:
            self._fail(error)

    def write(self, piece: s.Piece) -> None:
        """Write the next bytes."""
        if self._file is not None:
            try:
                self._file.write(piece)
            except OSError as error:
                self._fail(error)

    def finish(self, why: str) -> s.Result:
        """Complete it, unless `why` says it is incomplete."""
        if self._file is not None:
            try:
                made = self._file.finish(why)
            except OSError as error:
                self._fail(error)
            else:
                self._file.close()
                self._file, self._result = None, s.Result(s.DONE, folders=made)
        return self._result or s.Result(s.FAILED)

    def close(self) -> None:
        """Remove an incomplete file."""
        if self._result is None:
            self._fail(OSError(errno.EPIPE, "the connection broke"))

    def _fail(self, error: OSError) -> None:
        self._result = _failed(error)
        if self._file is not None:
            if error.errno != errno.EBUSY:  # else it belongs to another copy
                self._file.forget()
            self._file.close()
            self._file = None
        self._folder.remove_made()
        if (
            self._result.outcome == s.KEPT
            and self._folder.state(self._order.path) == self._order.file
        ):
            self._result = s.Result(s.DONE)  # another process put the same file there meanwhile


class _Changed(OSError):
    """The existing file is not the expected one."""


class _Folder:
    """The synced folder."""

    def __init__(self, root: int) -> None:
        self._folders = Folders(root)
        self._made: list[bytes] = []

    def close(self) -> None:
        """Close open folders."""
        self._folders.close()

    def state(self, path: bytes) -> s.State:
        """Return the state of a path."""
        return self._look(path)[0]

    def placing(self, order: s.Put) -> _Placing:
        """Prepare to put a file. Raises OSError, _Changed."""
        state, seen = self._look(order.path)
        if state not in {order.there, order.file}:
            raise _Changed(errno.EEXIST, _words(state))
        self._make_folders(order.path)
        folder, name = self._found(order.path)
        return _Placing(os.dup(folder), name, order, seen, len(self._made))

    def remove_made(self) -> None:
        """Remove the folders made for the last file, which failed."""
        while self._made:
            self.remove_folder(self._made.pop())

    def remove(self, order: s.Remove) -> s.Result:
        """Remove a file; renamed first, to be sure that it is the one checked."""
        state, seen = self._look(order.path)
        if state is None:
            return s.Result(s.DONE)
        if state != order.there or seen is None:
            return s.Result(s.KEPT, _words(state))
        try:
            folder, name = self._found(order.path)
            aside = temporary_name(name)
            os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
            if _is_same(os.lstat(aside, dir_fd=folder), seen):
                os.unlink(aside, dir_fd=folder)
                return s.Result(s.DONE)
            with suppress(FileExistsError):  # the file is kept under the temporary name then
                os.link(aside, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                os.unlink(aside, dir_fd=folder)
            return s.Result(s.KEPT, "it is written now")
        except OSError as error:
            return _failed(error)

    def remove_folder(self, path: bytes) -> s.Result:
        """Remove a folder if it is empty."""
        try:
            folder, name = self._found(path)
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno in _NOTHING:
                return s.Result(s.DONE)
            return s.Result(s.KEPT, m.reason_of(error))
        return s.Result(s.DONE)

    def _found(self, path: bytes) -> tuple[int, bytes]:
        """Return its parent folder, open until the next call, and its name. Raises OSError."""
        above, _, name = path.rpartition(b"/")
        return self._folders.find(above), name

    def _make_folders(self, path: bytes) -> None:
        """Make its parent folders. Raises OSError."""
        self._made = []
        parts = path.split(b"/")[:-1]
        for depth in range(len(parts)):
            folder = self._folders.find(b"/".join(parts[:depth]))
            with suppress(FileExistsError):
                os.mkdir(parts[depth], _FOLDER, dir_fd=folder)
                self._made.append(b"/".join(parts[: depth + 1]))

    def _look(self, path: bytes) -> tuple[s.State, os.stat_result | None]:
        """Return the state of a path, and of a file the status by which to detect changes."""
        for _ in range(_TRIES):
            try:
                folder, name = self._found(path)
                now = os.lstat(name, dir_fd=folder)
                if not stat.S_ISREG(now.st_mode):
                    return s.NoFile(_kind(now.st_mode)), None
                descriptor = os.open(name, _READS, dir_fd=folder)
            except OSError as error:
                if error.errno in _NOTHING:
                    return None, None
                return s.NoFile(m.reason_of(error)), None
            try:
                first, is_settled = settled(descriptor)
                digest = _digest(descriptor)
                if is_settled and _facts(os.fstat(descriptor)) == _facts(first):
                    return s.File(digest, bool(first.st_mode & stat.S_IXUSR)), first
            except OSError as error:
                return s.NoFile(m.reason_of(error)), None
            finally:
                os.close(descriptor)
        return s.NoFile("it is written now"), None


class _Placing:
    """A file being written into an open folder, which it takes over."""

    def __init__(
        self, folder: int, name: bytes, order: s.Put, seen: os.stat_result | None, made: int
    ) -> None:
        mode = _EXECUTABLE if order.file.is_executable else _PLAIN
        entry = m.Entry(name, m.FILE, mode, order.mtime_ns, order.size)
        self._folder, self._name, self._order, self._seen = folder, name, order, seen
        self._made = made
        self._digest = hashlib.sha256()
        self._old = -1
        self._file = Unfinished(folder, name, entry, 0)

    def write(self, piece: s.Piece) -> None:
        """Write the next bytes. Raises OSError, _Changed."""
        if isinstance(piece, s.Old):
            self._copy(piece)
        else:
            self._digest.update(piece)
            self._file.write(piece)

    def _copy(self, old: s.Old) -> None:
        """Copy bytes of the existing file. Raises OSError, _Changed."""
        if self._old < 0:
            self._old = os.open(self._name, _READS, dir_fd=self._folder)
        at, end = old.offset, old.offset + old.size
        while at < end:
            data = os.pread(self._old, min(_PIECE, end - at), at)
            if not data:
                raise _Changed(errno.EEXIST, "it is written now")
            self.write(data)
            at += len(data)

    def finish(self, why: str) -> int:
        """Put it in its place, if its digest is right; return the number of folders made. Raises OSError, _Changed."""
        if not why and self._digest.hexdigest() != self._order.file.digest:
            why = _NOT_WHOLE
        try:
            self._file.finish(why, self._check, is_new=self._seen is None)
        except FileExistsError as error:
            raise _Changed(errno.EEXIST, m.reason_of(error)) from error
        return self._made

    def _check(self) -> None:
        """Raise _Changed if the existing file was changed."""
        if self._seen is not None:
            now = os.lstat(self._name, dir_fd=self._folder)
            if _facts(now) != _facts(self._seen):
                raise _Changed(errno.EEXIST, "it is written now")

    def forget(self) -> None:
        """Remove the incomplete file."""
        self._file.forget()

    def close(self) -> None:
        """Close it."""
        if self._old >= 0:
            os.close(self._old)
        self._file.close()


def _failed(error: OSError) -> s.Result:
    if isinstance(error, _Changed):
        return s.Result(s.KEPT, m.reason_of(error))
    if error.errno in _NOTHING:
        return s.Result(s.KEPT, "something else is there in place of its folder")
    return s.Result(s.FULL if error.errno in _NO_ROOM else s.FAILED, m.reason_of(error))


def _words(state: s.State) -> str:
    if state is None:
        return "it was removed there"
    return state.why if isinstance(state, s.NoFile) else "it was changed there"


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a link" if stat.S_ISLNK(mode) else "a socket, pipe or device"


def _facts(now: os.stat_result) -> tuple[int, int, int, int]:
    return now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def _is_same(now: os.stat_result, before: os.stat_result) -> bool:
    """Return whether it is the same file; renaming changes the time of its last change."""
    return _facts(now)[:3] == _facts(before)[:3]


def _digest(descriptor: int) -> str:
    digest = hashlib.sha256()
    os.lseek(descriptor, 0, os.SEEK_SET)
    while piece := os.read(descriptor, _PIECE):
        digest.update(piece)
    return digest.hexdigest()
