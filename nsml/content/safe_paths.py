"""Access to files below one folder without following symbolic links.

On systems with folder descriptors, each component is opened from its parent with O_NOFOLLOW,
so nobody with write access to the folder can redirect us by swapping a component for a link. On
others (Windows), each component is checked before use; there the folder is its user's own.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

Parts = tuple[str, ...]
Version = tuple[int, int, int, int]
"""mtime and ctime (ns), inode number and device of a file: changed content changes at least one."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One name in a folder, with its lstat result."""

    name: str
    mode: int
    size: int
    version: Version


class Beneath(Protocol):
    """A root folder held open; every `parts` is relative to it and free of `.`, `..` and links.

    A component that is a symbolic link, or of the wrong kind, raises OSError.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def scan(self, parts: Parts) -> list[Listed]:
        """List the folder `parts`, sorted by name; vanished names are skipped."""
        ...

    def names(self, parts: Parts) -> Iterator[tuple[str, bool]]:
        """Iterate over the names in the folder `parts`, unsorted, with whether each is a folder or a link to one."""
        ...

    def lstat(self, parts: Parts) -> os.stat_result:
        """Stat `parts` without following it."""
        ...

    def open_file(self, parts: Parts) -> int:
        """Open the regular file `parts` for reading."""
        ...

    def make_folder(self, parts: Parts) -> None:
        """Create the folder `parts` in an existing parent; FileExistsError if the name exists."""
        ...

    def create_file(self, parts: Parts) -> int:
        """Create the file `parts`; return its descriptor. FileExistsError if the name exists."""
        ...

    def set_mode(self, parts: Parts, mode: int) -> None:
        """Set the permission bits of the file or folder `parts`."""
        ...


def beneath(root: Path, owner: int | None = None) -> Beneath:
    """Return the safest implementation for this system.

    With an `owner`, files of other uids are not opened for reading; this needs folder descriptors.
    """
    if os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW"):
        return ByDescriptor(root, owner)
    return ByPath(root, owner)


class ByDescriptor:
    """Folder descriptors and O_NOFOLLOW; keeps the last folder and its parents open."""

    def __init__(self, root: Path, owner: int | None = None) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        self._owner = owner
        self._names: list[str] = []
        self._open: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(0)
        os.close(self._root)

    def scan(self, parts: Parts) -> list[Listed]:
        """See Beneath."""
        return _listed(self.folder(parts))

    def names(self, parts: Parts) -> Iterator[tuple[str, bool]]:
        """See Beneath."""
        return _names(self.folder(parts))

    def lstat(self, parts: Parts) -> os.stat_result:
        """See Beneath."""
        if not parts:
            return os.fstat(self._root)
        return os.stat(parts[-1], dir_fd=self.folder(parts[:-1]), follow_symlinks=False)

    def open_file(self, parts: Parts) -> int:
        """See Beneath; O_NONBLOCK so that a pipe cannot block us."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        opened = _regular(os.open(parts[-1], flags, dir_fd=self.folder(parts[:-1])), parts)
        if self._owner not in {None, os.fstat(opened).st_uid}:
            os.close(opened)
            raise OSError(f"{'/'.join(parts)} belongs to another user")
        return opened

    def make_folder(self, parts: Parts) -> None:
        """See Beneath."""
        os.mkdir(parts[-1], 0o755, dir_fd=self.folder(parts[:-1]))

    def create_file(self, parts: Parts) -> int:
        """See Beneath."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(parts[-1], flags, 0o600, dir_fd=self.folder(parts[:-1]))

    def set_mode(self, parts: Parts, mode: int) -> None:
        """See Beneath; by descriptor, since chmod by name would follow a link."""
        if not parts:
            os.fchmod(self._root, mode)
            return
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        opened = os.open(parts[-1], flags, dir_fd=self.folder(parts[:-1]))
        try:
            os.fchmod(opened, mode)
        finally:
            os.close(opened)

    def folder(self, parts: Parts) -> int:
        """Return the descriptor of the folder `parts`, open until the next call of any method."""
        shared = 0
        while shared < min(len(parts), len(self._names)) and self._names[shared] == parts[shared]:
            shared += 1
        self._leave(shared)
        for name in parts[shared:]:
            here = self._open[-1] if self._open else self._root
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._open.append(os.open(name, flags, dir_fd=here))
            self._names.append(name)
        return self._open[-1] if self._open else self._root

    def _leave(self, depth: int) -> None:
        while len(self._open) > depth:
            os.close(self._open.pop())
            self._names.pop()


class ByPath:
    """Plain paths, each component checked first."""

    def __init__(self, root: Path, owner: int | None = None) -> None:
        if owner is not None:
            raise OSError("this system does not tell whose a file is")
        self._root = Path(root)
        if not self._root.is_dir():
            raise NotADirectoryError(str(root))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is held open."""

    def scan(self, parts: Parts) -> list[Listed]:
        """See Beneath."""
        return _listed(self._path(parts, parents=len(parts)))

    def names(self, parts: Parts) -> Iterator[tuple[str, bool]]:
        """See Beneath."""
        return _names(self._path(parts, parents=len(parts)))

    def lstat(self, parts: Parts) -> os.stat_result:
        """See Beneath."""
        return os.lstat(self._path(parts))

    def open_file(self, parts: Parts) -> int:
        """See Beneath."""
        path = self._path(parts)
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError(f"{path} is not a regular file")
        return _regular(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0)), parts)

    def make_folder(self, parts: Parts) -> None:
        """See Beneath."""
        self._path(parts).mkdir()

    def create_file(self, parts: Parts) -> int:
        """See Beneath."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        return os.open(self._path(parts), flags, 0o600)

    def set_mode(self, parts: Parts, mode: int) -> None:
        """See Beneath."""
        path = self._path(parts)
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise OSError(f"{path} is a symbolic link")
        path.chmod(mode)

    def _path(self, parts: Parts, *, parents: int | None = None) -> Path:
        path = self._root
        for name in parts[: len(parts) - 1 if parents is None else parents]:
            path = path / name
            facts = os.lstat(path)
            if not stat.S_ISDIR(facts.st_mode):
                raise NotADirectoryError(str(path))
        return self._root.joinpath(*parts)


def version_of(facts: os.stat_result) -> Version:
    """The version of a file."""
    return facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino, facts.st_dev


def _listed(folder: int | Path) -> list[Listed]:
    listed = []
    with os.scandir(folder) as found:
        for item in found:
            try:
                facts = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            listed.append(Listed(item.name, facts.st_mode, facts.st_size, version_of(facts)))
    return sorted(listed, key=lambda item: item.name)


def _names(folder: int | Path) -> Iterator[tuple[str, bool]]:
    with os.scandir(folder) as found:
        for item in found:
            try:
                is_folder = item.is_dir()
            except OSError:  # a circular link
                is_folder = False
            yield item.name, is_folder


def _regular(opened: int, parts: Parts) -> int:
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(f"{'/'.join(parts)} is not a regular file")
    return opened
