"""Checkpoints that programs cannot change any more: `kept/<number>-<name>/`, beside the programs' own.

An agent with root takes ownership of the files: they are linked into its folder, and nobody has them open
for writing; the program reads them at their old place. Without root, and for files that are open for
writing or have other links, the file system must support reflinks (Btrfs, XFS): then the agent makes a
copy. Where neither works the program could change them, and `checkpoints.py` checks whether it did.

Blocking. A checkpoint gets its name in `kept/` once it is whole; an unfinished one is in `.begun-<entry>`,
and the next caller undoes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from nodeagent.folders import ReplicaFolder
from nodeagent.safe_paths import check_name, open_folder, path_of, remove_folder
from nsml._copies import has_no_writer, share_blocks
from nsml.content.paths import MAX_DEPTH

_BEGUN = ".begun-"
_MOST_ENTRIES = 10_000
"""Files and folders of one checkpoint, so that a request takes some tenths of a second at most."""
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Opened(NamedTuple):
    """The open folder of a checkpoint.

    `is_kept`: nobody can change it; `is_touched`: the agent itself caused the last change of its files.
    """

    descriptor: int
    is_kept: bool
    is_touched: bool


class NotKept(OSError):
    """The files cannot be kept: this file system, or a process with them open, does not allow it."""


def parts_of(checkpoint: str) -> list[str]:
    """Split the path of a checkpoint's folder, as a program may have written it: its entry, and the names below.

    Raises ValueError if it is not the folder of a checkpoint.
    """
    parts = checkpoint.split("/")
    if not parts[0].partition("-")[0].isdecimal():
        raise ValueError(f"not a checkpoint: {checkpoint[:80]!r}")
    for part in parts:
        check_name(part)
    return parts


def keep(folder: ReplicaFolder, checkpoint: str) -> None:
    """Take the files of `checkpoint` (relative to the replica's checkpoints) from the program.

    Harmless when repeated. Raises NotKept; OSError and ValueError for a missing or invalid folder.
    """
    entry, *inner = parts_of(checkpoint)
    parts = ["checkpoints", entry, *inner]
    with open_folder(folder.run, parts) as source, _turn(folder) as kept:
        if _is_there(entry, kept):
            return
        owner = _owner(folder)
        _undo(entry, kept, owner)
        taking = _Taking(source, owner)
        taking.look(kept)
        with open_folder(path_of(kept), [f"{_BEGUN}{entry}", *inner], create=True) as draft:
            try:
                taking.take(draft)
                os.fsync(draft)
            except OSError:
                _undo(entry, kept, owner)
                raise
        os.rename(f"{_BEGUN}{entry}", entry, src_dir_fd=kept, dst_dir_fd=kept)
        os.fsync(kept)


@contextmanager
def opened(folder: ReplicaFolder, checkpoint: str) -> Iterator[Opened]:
    """Open `checkpoint`, the kept one if there is one. Raises OSError, ValueError."""
    entry, *inner = parts_of(checkpoint)
    with _turn(folder) as kept:
        is_kept = _is_there(entry, kept)
        is_touched = not is_kept and _undo(entry, kept, _owner(folder))
    root, parts = (folder.kept, [entry]) if is_kept else (folder.run, ["checkpoints", entry])
    with open_folder(root, [*parts, *inner]) as descriptor:
        yield Opened(descriptor, is_kept, is_touched)


def is_copy(facts: os.stat_result) -> bool:
    """Return whether a kept file is a copy, and not the program's own file."""
    return not facts.st_mode & stat.S_IROTH


def forget(folder: ReplicaFolder, checkpoint: str) -> None:
    """Remove the kept files of a checkpoint. Raises OSError."""
    with _turn(folder) as kept, suppress(FileNotFoundError):
        remove_folder(parts_of(checkpoint)[0], kept)


class _Taking:
    """Links or copies files below the open folder `source`, of `owner` (uid, gid), for the agent."""

    def __init__(self, source: int, owner: tuple[int, int]) -> None:
        self._source = source
        self._owner = owner
        self._can_own = os.geteuid() == 0 != owner[0]

    def look(self, kept: int) -> None:
        """Raise NotKept before any change, if that can be foreseen."""
        for name, folder, _ in self._files():
            with _open(name, folder) as file:
                if not (self._can_own and self._is_free(file)):
                    _check_clones(file, kept)

    def take(self, target: int) -> None:
        """Link or copy each file into the open folder `target`."""
        for name, folder, parts in self._files():
            with (
                _open(name, folder) as file,
                open_folder(path_of(target), parts, create=True) as place,
            ):
                if self._can_own and self._is_free(file):
                    os.link(path_of(file), name, dst_dir_fd=place, follow_symlinks=True)
                    if _own(file):
                        continue
                    os.unlink(name, dir_fd=place)
                    os.fchown(file, *self._owner)
                self._copy(file, name, place)

    def _is_free(self, file: int) -> bool:
        """Return whether it is the owner's, has one link, and is not open or mapped for writing."""
        facts = os.fstat(file)
        return facts.st_uid == self._owner[0] and facts.st_nlink == 1 and bool(has_no_writer(file))

    def _copy(self, file: int, name: str, place: int) -> None:
        if os.fstat(file).st_uid != self._owner[0]:
            raise NotKept(errno.EPERM, f"{name} belongs to another user")
        mode = 0o500 if os.fstat(file).st_mode & stat.S_IXUSR else 0o400
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        copy = os.open(name, flags, mode, dir_fd=place)
        try:
            _share(file, copy)
            os.fsync(copy)
        finally:
            os.close(copy)

    def _files(self) -> Iterator[tuple[str, int, tuple[str, ...]]]:
        """Yield each regular file: its name, its open folder and the folder's path."""
        count = 0
        for base, folders, names, here in os.fwalk(".", dir_fd=self._source):
            count += len(folders) + len(names)
            parts = tuple(part for part in base.split("/") if part != ".")
            if count > _MOST_ENTRIES or len(parts) > MAX_DEPTH:
                raise NotKept(
                    errno.E2BIG, f"more than {_MOST_ENTRIES} files and folders, or too deep"
                )
            for name in names:
                if stat.S_ISREG(os.lstat(name, dir_fd=here).st_mode):
                    yield name, here, parts


@contextmanager
def _turn(folder: ReplicaFolder) -> Iterator[int]:
    """Open the folder of kept checkpoints, for one thread at a time."""
    folder.kept.mkdir(mode=0o700, exist_ok=True)
    with open_folder(folder.path, [folder.kept.name]) as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)
        yield kept


@contextmanager
def _open(name: str, folder: int) -> Iterator[int]:
    file = os.open(name, _FILE, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise NotKept(errno.EINVAL, f"{name} is no regular file")
        yield file
    finally:
        os.close(file)


def _owner(folder: ReplicaFolder) -> tuple[int, int]:
    facts = folder.run.stat()
    return facts.st_uid, facts.st_gid


def _is_there(entry: str, kept: int) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(entry, dir_fd=kept).st_mode)
    except FileNotFoundError:
        return False


def _own(file: int) -> bool:
    """Take ownership of a file; False if it was opened for writing meanwhile."""
    is_executable = os.fstat(file).st_mode & stat.S_IXUSR
    os.fchown(file, os.geteuid(), os.getegid())
    os.fchmod(file, 0o555 if is_executable else 0o444)
    return bool(has_no_writer(file))


def _check_clones(file: int, kept: int) -> None:
    """Raise NotKept if the file system does not support reflinks."""
    try:
        copy = os.open(path_of(kept), os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise NotKept(error.errno, error.strerror) from error
    try:
        _share(file, copy)
    finally:
        os.close(copy)


def _share(file: int, copy: int) -> None:
    if not share_blocks(file, copy):
        raise NotKept(errno.EOPNOTSUPP, "this file system shares no blocks between files")


def _undo(entry: str, kept: int, owner: tuple[int, int]) -> bool:
    """Undo an unfinished checkpoint, and give its files back to `owner`; return whether there was one.

    Its folder stays, empty: it marks that the agent changed the times of the files.
    """
    try:
        draft = os.open(
            f"{_BEGUN}{entry}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=kept
        )
    except FileNotFoundError:
        return False
    try:
        for _, folders, names, here in os.fwalk(".", topdown=False, dir_fd=draft):
            for name in names:
                with _open(name, here) as file:
                    if os.fstat(file).st_nlink > 1:  # the agent's copies have one link
                        os.fchown(file, *owner)
                os.unlink(name, dir_fd=here)
            for name in folders:
                os.rmdir(name, dir_fd=here)
    finally:
        os.close(draft)
    return True
