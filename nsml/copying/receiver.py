"""The receiving side of a copy.

The other side is not trusted: paths must be below the target, folders above a file are opened one by one
without following links, and existing files are never written through, but replaced. An incomplete file has a
temporary name, and so has a new folder; a later copy resumes what it finds under these.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from nsml.copying.folders import FOLLOWS, IN_PLACE, Folders
from nsml.copying.messages import (
    BEGIN,
    CONTENT,
    CONTENT_END,
    DONE,
    ENTRIES,
    FILE,
    FOLDER,
    GO,
    HARD_LINK,
    HAS_ALL,
    LATEST_NS,
    LEFT_OUT,
    MOST_NAMED,
    NOW,
    SYMLINK,
    TEMPORARY,
    WANTED,
    Entry,
    Incoming,
    NotUnderstood,
    Report,
    check_path,
    entries_of,
    flags_of,
    message,
    reason_of,
    refused_message,
    report_message,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

NOTED_BYTES: Final = 1 << 20
"""Files of at least this size can be resumed."""
_MOST_NOTE: Final = 256
_MOST_REASON: Final = 200
_TRIES: Final = 3
_LEAVES_WITHIN_S: Final = 5.0
_LOOKS_EVERY_S: Final = 0.05
_OTHER: Final = "another copy writes it"
_READS: Final = flags_of("O_NOFOLLOW", "O_NONBLOCK")
_WRITES: Final = flags_of("O_WRONLY", "O_NOFOLLOW", "O_NONBLOCK")
_MAKES: Final = flags_of("O_WRONLY", "O_CREAT", "O_EXCL", "O_NOFOLLOW")
_NO_MODE_BITS: Final = 0o7022
"""Set-user-ID and similar bits, and write access for others."""


class Receiver:
    """Receives one file or folder into `where`: under the name `name` if that is a folder, else as `where`.

    An empty `name`: the contents of the sent folder go into `where` itself. `keeps_inside`: links that lead out
    of the copied tree are skipped.
    """

    def __init__(self, where: bytes, name: bytes, *, keeps_inside: bool) -> None:
        self._where = where
        self._name = name
        self._keeps_inside = keeps_inside
        self._report = _Counts()
        self.done_bytes = self.resumed_bytes = 0
        self.total_bytes = 0
        self.report: Report | None = None

    def steps(self) -> Generator[bytes, bytes, None]:
        """Receive everything. Raises NotUnderstood, Refused, OSError: it cannot be written."""
        incoming = Incoming()
        is_folder, self.total_bytes, origin = _beginning((yield from incoming.expect(BEGIN)))
        try:
            tree = _Tree(self._where, self._name, is_folder=is_folder, origin=origin)
        except OSError as error:
            yield refused_message(error)
            raise
        with tree.opened():
            yield message(GO)
            try:
                yield from self._fill(tree, incoming)
                tree.finish()
            except OSError as error:
                yield refused_message(error)
                raise
        self.report = self._report.report()._replace(resumed_bytes=self.resumed_bytes)
        yield report_message(self.report)

    def _fill(self, tree: _Tree, incoming: Incoming) -> Generator[bytes, bytes, None]:
        while True:
            kind, value = yield from incoming.next()
            if kind == DONE:
                return
            if kind != ENTRIES:
                raise NotUnderstood(f"{kind!r} instead of entries")
            entries = entries_of(value)
            starts = [tree.start_of(one) for one in entries if one.kind == FILE]
            yield message(WANTED, starts)
            rest = iter(starts)
            for one in entries:
                start = next(rest) if one.kind == FILE else HAS_ALL
                if start == HAS_ALL:
                    self._place(tree, one)
                else:
                    yield from self._take_content(tree, one, start, incoming)

    def _place(self, tree: _Tree, entry: Entry) -> None:
        """Create an entry other than a transferred file."""
        if entry.kind == FILE:
            self._report.skipped += 1
            self.done_bytes += entry.size
            return
        with self._noted(entry):
            if entry.kind == LEFT_OUT:
                raise OSError(errno.EINVAL, entry.target.decode(errors="replace"))
            if entry.kind == FOLDER:
                tree.make_folder(entry)
            elif entry.kind == SYMLINK:
                if self._keeps_inside and not _stays_inside(entry):
                    raise OSError(errno.EPERM, "a link that leads out of what is copied")
                tree.make_symlink(entry)
            elif entry.kind == HARD_LINK:
                tree.make_hard_link(entry)

    def _take_content(
        self, tree: _Tree, entry: Entry, start: int, incoming: Incoming
    ) -> Generator[bytes, bytes, None]:
        file: Unfinished | None = None
        with self._noted(entry):
            file = tree.open_file(entry, start)
        self.done_bytes += start
        self.resumed_bytes += start
        try:
            while True:
                kind, value = yield from incoming.next()
                if kind == CONTENT_END:
                    break
                if kind == NOW:
                    if file is not None:
                        file.becomes(*_facts(value))
                    continue
                if kind != CONTENT:
                    raise NotUnderstood(f"{kind!r} instead of content")
                self.done_bytes += len(value)
                if file is not None:
                    file.write(value)
            if file is not None:
                with self._noted(entry):
                    self._report.file_bytes += file.finish(str(value))
                    self._report.files += 1
        finally:
            if file is not None:
                file.close()

    @contextmanager
    def _noted(self, entry: Entry) -> Iterator[None]:
        """Record a failure of one entry, and continue with the others."""
        try:
            yield
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise
            self._report.fail(entry, reason_of(error))


class _Counts:
    """Counters for the report."""

    def __init__(self) -> None:
        self.files = self.file_bytes = self.skipped = 0
        self._failed = 0
        self._failures: list[tuple[bytes, str]] = []
        self._lost_folder: bytes | None = None

    def fail(self, entry: Entry, why: str) -> None:
        """Count a failed entry; failures within a failed folder are not listed."""
        self._failed += 1
        lost = self._lost_folder
        if lost is not None and _is_below(entry.path, lost):
            return
        if entry.kind == FOLDER:
            self._lost_folder = entry.path
        if len(self._failures) < MOST_NAMED:
            self._failures.append((entry.path, why[:_MOST_REASON]))

    def report(self) -> Report:
        return Report(self.files, self.file_bytes, self.skipped, self._failed, self._failures)


class _Tree:
    """The destination. Raises OSError if it cannot be written."""

    def __init__(self, where: bytes, name: bytes, *, is_folder: bool, origin: bytes) -> None:
        place = _place_of(where, name)
        if not place:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self._origin = origin
        above, self._final = os.path.split(place.rstrip(b"/") or b"/")
        self._above = os.open(above or b".", FOLLOWS)
        self._temporary: bytes | None = None
        self._folders: list[Entry] = []
        self._is_folder = is_folder
        try:
            self._opened = Folders(self._root(place, is_place=place == where))
        except OSError:
            os.close(self._above)
            raise

    def _root(self, place: bytes, *, is_place: bool) -> int:
        """Open the destination folder: for a file its parent."""
        if not self._is_folder:
            if os.path.isdir(place):
                raise IsADirectoryError(errno.EISDIR, "there is a folder in its place")
            if place.endswith(b"/"):
                raise NotADirectoryError(errno.ENOTDIR, "there is no such folder")
            self._refuse_unless_writable(self._above)
            return os.dup(self._above)
        # a link is followed if it was named, not if it has the name of the copied item
        flags = FOLLOWS if is_place else IN_PLACE
        try:
            for _ in range(_TRIES):
                with suppress(FileNotFoundError):
                    return os.open(place, flags)
                self._refuse_unless_writable(self._above)
                root = self._begun(place)
                if root is not None:
                    return root
        except NotADirectoryError as error:
            raise OSError(errno.ENOTDIR, "there is something else in its place") from error
        raise OSError(errno.EBUSY, _OTHER)

    def _begun(self, place: bytes) -> int | None:
        """Make a new folder in place of a missing one; None: another copy has just made it."""
        if os.path.islink(place):
            raise NotADirectoryError
        temporary = temporary_name(self._final + b"\0" + self._origin)
        root = self._unfinished(temporary)
        # now only this copy can complete it; another may have done so before
        if root is None:
            return None
        if not os.path.exists(place):
            self._temporary = temporary
            return root
        with suppress(OSError):
            os.rmdir(temporary, dir_fd=self._above)
        os.close(root)
        return None

    def _unfinished(self, name: bytes) -> int | None:
        """Make or resume an incomplete folder, locked by this copy; None: another copy just completed it."""
        is_new = True
        try:
            os.mkdir(name, 0o700, dir_fd=self._above)
        except FileExistsError:
            is_new = False
        try:
            opened = os.open(name, IN_PLACE, dir_fd=self._above)
        except FileNotFoundError:
            return None
        is_kept = False
        try:
            if not is_new:
                self._refuse_if_planted(opened)
            _lock(opened)
            with suppress(FileNotFoundError):
                is_kept = os.path.samestat(os.fstat(opened), os.lstat(name, dir_fd=self._above))
        finally:
            if not is_kept:
                os.close(opened)
        return opened if is_kept else None

    def _refuse_if_planted(self, folder: int) -> None:
        """In a world-writable folder, only this user's incomplete folder may be resumed."""
        is_open = os.fstat(self._above).st_mode & stat.S_IWOTH
        if is_open and os.fstat(folder).st_uid != os.geteuid():
            raise OSError(errno.EEXIST, "somebody else has a folder in its way")

    def _refuse_unless_writable(self, folder: int) -> None:
        """Fail before any data is sent."""
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder):
            raise PermissionError(errno.EACCES, "its folder cannot be written to")

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Close open folders at the end."""
        try:
            yield
        finally:
            os.close(self._above)
            self._opened.close()

    def finish(self) -> None:
        """All is received: set times of folders, and the final name. Raises OSError."""
        self._leave_folders(None)
        if self._temporary is None:
            return
        above = self._above
        try:
            os.rename(self._temporary, self._final, src_dir_fd=above, dst_dir_fd=above)
        except OSError as error:
            if error.errno in {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}:
                raise OSError(errno.EEXIST, "something else was made in its place") from error
            raise

    def start_of(self, entry: Entry) -> int:
        """Return the first wanted byte of a file."""
        try:
            folder, name = self._found(entry.path)
            now = os.stat(name, dir_fd=folder, follow_symlinks=False)
            is_file = stat.S_ISREG(now.st_mode)
        except OSError:
            is_file = False
        if is_file and (now.st_size, now.st_mtime_ns) == (entry.size, entry.mtime_ns):
            if stat.S_IMODE(now.st_mode) != _mode(entry):
                with suppress(OSError):
                    _set_mode(folder, name, _mode(entry))
            return HAS_ALL
        with suppress(OSError):
            folder, name = self._found(entry.path)
            return _part_of(folder, entry, name)
        return 0

    def make_folder(self, entry: Entry) -> None:
        """Make a folder, or use an existing one. Raises OSError."""
        if not self._is_folder:
            raise NotUnderstood("a folder instead of a file")
        self._leave_folders(entry.path)
        if not entry.path and self._temporary is None:
            return  # an existing folder is left as it is
        if entry.path:
            folder, name = self._found(entry.path)
            try:
                os.mkdir(name, 0o700, dir_fd=folder)
            except FileExistsError:
                if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                    raise OSError(errno.EEXIST, "there is something else in its place") from None
        with suppress(OSError):  # it may belong to another user
            os.chmod(self._opened.find(entry.path), _mode(entry) | 0o700)
        self._folders.append(entry)

    def make_symlink(self, entry: Entry) -> None:
        """Make a link, replacing anything but a folder. Raises OSError."""
        folder, name = self._found(entry.path)
        with suppress(OSError):
            if os.readlink(name, dir_fd=folder) == entry.target:
                return
        made = temporary_name(name)
        with suppress(FileNotFoundError):
            os.unlink(made, dir_fd=folder)
        os.symlink(entry.target, made, dir_fd=folder)
        with suppress(OSError, NotImplementedError):
            times = (entry.mtime_ns, entry.mtime_ns)
            os.utime(made, ns=times, dir_fd=folder, follow_symlinks=False)
        _put(made, name, folder)

    def make_hard_link(self, entry: Entry) -> None:
        """Make a link, replacing anything but a folder. Raises OSError."""
        check_path(entry.target)
        other, source = self._found(entry.target)
        first = os.lstat(source, dir_fd=other)
        if not stat.S_ISREG(first.st_mode):
            raise OSError(errno.EINVAL, "a hard link to what is no file")
        other = os.dup(other)  # the next call of _found closes it
        try:
            folder, name = self._found(entry.path)
            with suppress(OSError):
                if os.path.samestat(first, os.lstat(name, dir_fd=folder)):
                    return
            made = temporary_name(name)
            with suppress(FileNotFoundError):
                os.unlink(made, dir_fd=folder)
            os.link(source, made, src_dir_fd=other, dst_dir_fd=folder, follow_symlinks=False)
            _put(made, name, folder)
        finally:
            os.close(other)

    def open_file(self, entry: Entry, start: int) -> Unfinished:
        """Open a file for writing from `start` on. Raises OSError."""
        self._leave_folders(entry.path)
        folder, name = self._found(entry.path)
        return Unfinished(os.dup(folder), name, entry, start)

    def _found(self, path: bytes) -> tuple[int, bytes]:
        """Return its parent folder, open until the next call, and its name. Raises OSError."""
        if not path:
            if self._is_folder:
                raise NotUnderstood("a folder and no folder")
            return self._opened.find(b""), self._final
        if not self._is_folder:
            raise NotUnderstood("more than a file")
        above, _, name = path.rpartition(b"/")
        return self._opened.find(above), name

    def _leave_folders(self, path: bytes | None) -> None:
        """Set times of completed folders: writing in them changes these."""
        while self._folders:
            last = self._folders[-1].path
            if path is not None and path != last and _is_below(path, last):
                return
            entry = self._folders.pop()
            with suppress(OSError):
                os.utime(self._opened.find(entry.path), ns=(entry.mtime_ns, entry.mtime_ns))


class Unfinished:
    """An incomplete file in an open folder, which it takes over. Raises OSError."""

    def __init__(self, folder: int, name: bytes, entry: Entry, start: int) -> None:
        self._folder = folder
        self._name = name
        self._entry = entry
        self._made = temporary_name(name)
        self._note = self._made + b".note"
        self._file = -1
        self._at = self._start = start
        try:
            self._file = _own(self._made, folder, start)
            if start and _part_of(folder, entry, name) != start:
                raise OSError(errno.EBUSY, _OTHER)  # noqa: TRY301 - another copy was here
            os.lseek(self._file, start, os.SEEK_SET)
            if not start:
                self._write_note()
        except OSError:
            self.close()
            raise

    def _write_note(self) -> None:
        """Record which file it is a part of, for a later resume."""
        with suppress(FileNotFoundError):
            os.unlink(self._note, dir_fd=self._folder)
        if self._entry.size >= NOTED_BYTES:
            note = os.open(self._note, _MAKES, 0o600, dir_fd=self._folder)
            try:
                os.write(note, _noted(self._entry))
            finally:
                os.close(note)

    def becomes(self, size: int, mtime_ns: int) -> None:
        """Its source has changed since it was listed. Raises OSError, NotUnderstood: content was received already."""
        if self._at:
            raise NotUnderstood("another file")
        self._entry = self._entry._replace(size=size, mtime_ns=mtime_ns, target=b"")
        self._write_note()

    def write(self, data: bytes) -> None:
        """Write the next bytes. Raises OSError, NotUnderstood: more than its size."""
        self._at += len(data)
        if self._at > self._entry.size:
            raise NotUnderstood("more than the file has")
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def finish(
        self, why: str, check: Callable[[], None] = lambda: None, *, is_new: bool = False
    ) -> int:
        """Complete it, unless `why` says it is incomplete: move it into place; return the size received. Raises OSError.

        `check` raises OSError if an existing file must be kept, as always if `is_new`.
        """
        if why or self._at != self._entry.size:
            self.forget()
            raise OSError(errno.EIO, why or "it came in part")
        with suppress(PermissionError):  # network file systems may not allow it
            os.fchmod(self._file, _mode(self._entry))
        os.utime(self._file, ns=(self._entry.mtime_ns, self._entry.mtime_ns))
        os.close(os.dup(self._file))  # network file systems report write errors only now
        made = os.lstat(self._made, dir_fd=self._folder)
        if not os.path.samestat(made, os.fstat(self._file)):
            raise OSError(errno.EBUSY, _OTHER)
        try:
            check()
        except OSError:
            self.forget()
            raise
        if is_new:
            _put_new(self._made, self._name, self._folder)
        else:
            _put(self._made, self._name, self._folder)
        if self._at >= NOTED_BYTES:
            with suppress(FileNotFoundError):
                os.unlink(self._note, dir_fd=self._folder)
        return self._at - self._start

    def close(self) -> None:
        """Close it, keeping the incomplete file."""
        if self._file >= 0:
            os.close(self._file)
        os.close(self._folder)

    def forget(self) -> None:
        """Remove the incomplete file."""
        for name in (self._made, self._note):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._folder)


def _beginning(value: object) -> tuple[bool, int, bytes]:
    match value:
        case [bool(is_folder), int(total), str(origin)] if 0 <= total < 1 << 63:
            return is_folder, total, origin.encode(errors="replace")
    raise NotUnderstood("a beginning")


def _facts(value: object) -> tuple[int, int]:
    match value:
        case [int(size), int(mtime_ns)] if 0 <= size < 1 << 63 and abs(mtime_ns) <= LATEST_NS:
            return size, mtime_ns
    raise NotUnderstood("what a file is now")


def _place_of(where: bytes, name: bytes) -> bytes:
    """Return the destination path. A missing folder named with a slash is made. Raises OSError."""
    if where.endswith(b"/") and name:
        with suppress(FileExistsError):
            os.mkdir(where)
    return os.path.join(where, name) if name and os.path.isdir(where) else where


def temporary_name(name: bytes) -> bytes:
    """Return the temporary name of an incomplete file: never too long."""
    return TEMPORARY + hashlib.sha256(name).hexdigest()[:16].encode()


def _noted(entry: Entry) -> bytes:
    return b"%d %d " % (entry.size, entry.mtime_ns) + entry.target[: _MOST_NOTE // 2]


def _part_of(folder: int, entry: Entry, name: bytes) -> int:
    """Return the size of the part of this file left by an earlier copy. Raises OSError."""
    if entry.size < NOTED_BYTES:
        return 0
    made = temporary_name(name)
    note = os.open(made + b".note", _READS, dir_fd=folder)
    try:
        is_same = os.read(note, _MOST_NOTE) == _noted(entry)
    finally:
        os.close(note)
    now = os.lstat(made, dir_fd=folder)
    if is_same and _is_part(now) and now.st_size <= entry.size:
        return now.st_size
    return 0


def _own(made: bytes, folder: int, start: int) -> int:
    """Open an incomplete file with its first `start` bytes, locked against other copies. Raises OSError.

    Other users of the folder know its name: accept only one made here, or by the same user before.
    """
    if start:
        file = _locked(os.open(made, _WRITES, dir_fd=folder))
        try:
            now = os.fstat(file)
            is_same = os.path.samestat(now, os.lstat(made, dir_fd=folder))
            if not is_same or not _is_part(now) or now.st_size < start:
                raise OSError(errno.EBUSY, _OTHER)  # noqa: TRY301
            os.ftruncate(file, start)
        except OSError:
            os.close(file)
            raise
        return file
    for _ in range(_TRIES):
        with suppress(FileExistsError, FileNotFoundError):
            file = _locked(os.open(made, _MAKES, 0o600, dir_fd=folder))
            try:  # another copy may have removed it before it was locked
                if os.path.samestat(os.fstat(file), os.lstat(made, dir_fd=folder)):
                    return file
            except OSError:
                os.close(file)
                raise
            os.close(file)
            continue
        _refuse_if_in_use(made, folder)
        with suppress(FileNotFoundError):
            os.unlink(made, dir_fd=folder)
    raise OSError(errno.EBUSY, _OTHER)


def _locked(file: int) -> int:
    """Lock the file against other copies, and return it. Raises OSError."""
    try:
        _lock(file)
    except OSError:
        os.close(file)
        raise
    return file


def _is_part(now: os.stat_result) -> bool:
    """Return whether an earlier copy of the same user may have left it."""
    return stat.S_ISREG(now.st_mode) and now.st_nlink == 1 and now.st_uid == os.geteuid()


def _refuse_if_in_use(made: bytes, folder: int) -> None:
    """Raise OSError if another copy is writing it."""
    try:
        file = os.open(made, _WRITES, dir_fd=folder)
    except OSError:
        return  # not made by a copy
    os.close(_locked(file))


def _lock(file: int) -> None:
    """Lock a file against other copies, if the file system supports locks. Raises OSError.

    A copy aborted a moment ago may still be exiting.
    """
    import fcntl

    until = time.monotonic() + _LEAVES_WITHIN_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > until:
                raise OSError(errno.EBUSY, _OTHER) from error
            time.sleep(_LOOKS_EVERY_S)
        except OSError:
            return
        else:
            return


def _put(made: bytes, name: bytes, folder: int) -> None:
    """Rename it to its final name, replacing anything but a folder. Raises OSError."""
    try:
        with suppress(FileNotFoundError):
            there = os.lstat(name, dir_fd=folder).st_mode
            if not (stat.S_ISREG(there) or stat.S_ISLNK(there) or stat.S_ISDIR(there)):
                raise OSError(errno.EEXIST, "there is something else in its place")  # noqa: TRY301
        os.replace(made, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        with suppress(OSError):
            os.unlink(made, dir_fd=folder)
        if isinstance(error, IsADirectoryError):
            raise IsADirectoryError(errno.EISDIR, "there is a folder in its place") from error
        raise


def _put_new(made: bytes, name: bytes, folder: int) -> None:
    """Rename it to its final name, if that is free. Raises OSError."""
    try:
        try:
            os.link(made, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError as error:
            raise FileExistsError(errno.EEXIST, "something was made in its place") from error
        except OSError:  # a file system without hard links
            with suppress(FileNotFoundError):
                os.lstat(name, dir_fd=folder)
                raise FileExistsError(errno.EEXIST, "something is in its place") from None
            os.rename(made, name, src_dir_fd=folder, dst_dir_fd=folder)
            return
    except OSError:
        with suppress(OSError):
            os.unlink(made, dir_fd=folder)
        raise
    with suppress(FileNotFoundError):
        os.unlink(made, dir_fd=folder)


def _set_mode(folder: int, name: bytes, mode: int) -> None:
    file = os.open(name, _READS, dir_fd=folder)
    try:
        os.fchmod(file, mode)
    finally:
        os.close(file)


def _mode(entry: Entry) -> int:
    return stat.S_IMODE(entry.mode) & ~_NO_MODE_BITS


def _is_below(path: bytes, folder: bytes) -> bool:
    return not folder or path.startswith(folder + b"/")


def _stays_inside(link: Entry) -> bool:
    """Return whether a link stays in the copied tree, whatever its other links are: first up, and then only down."""
    if link.target.startswith(b"/") or not link.path:
        return False
    ups = 0
    is_down = False
    for part in link.target.split(b"/"):
        if part in {b"", b"."}:
            continue
        if part == b"..":
            if is_down:
                return False
            ups += 1
        else:
            is_down = True
    return ups <= link.path.count(b"/")
