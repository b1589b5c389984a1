"""Files beneath one folder, reached without following any symbolic link.

Where the system has folder descriptors, each component is opened from its parent with O_NOFOLLOW,
so nobody who can write in the folder can swap a component for a link and send us elsewhere. Where
it has not (Windows), each component is looked at before it is used; there the folder is its user's
own.
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
"""When a file was written and last changed (ns), its inode number, and its device: one of these is another once its content is."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One name in a folder: what lstat says of it."""

    name: str
    mode: int
    size: int
    version: Version


class Beneath(Protocol):
    """A root folder held open; every `parts` is relative to it and free of `.`, `..` and links.

    A component that is a symbolic link, or not what is asked for, raises OSError.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def scan(self, parts: Parts) -> list[Listed]:
        """What the folder `parts` holds, sorted by name; vanished names are left out."""
        ...

    def names(self, parts: Parts) -> Iterator[tuple[str, bool]]:
        """The names in the folder `parts`, as they come, and whether each is a folder or a link to one."""
        ...

    def lstat(self, parts: Parts) -> os.stat_result:
        """What `parts` is, without following it."""
        ...

    def open_file(self, parts: Parts) -> int:
        """A descriptor to read the regular file `parts`."""
        ...

    def make_folder(self, parts: Parts) -> None:
        """Make the new folder `parts`, whose parent is there; FileExistsError when the name is taken."""
        ...

    def create_file(self, parts: Parts) -> int:
        """A descriptor to write the new file `parts`; FileExistsError when the name is taken."""
        ...

    def set_mode(self, parts: Parts, mode: int) -> None:
        """Set the permission bits of the file or folder `parts`."""
        ...


def beneath(root: Path, owner: int | None = None) -> Beneath:
    """The safest implementation that this system has.

    With an `owner` no file of another uid is opened to read; that takes folder descriptors.
    """
    if os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW"):
        return ByDescriptor(root, owner)
    return ByPath(root, owner)


class ByDescriptor:
    """Folder descriptors and O_NOFOLLOW; keeps the way to the last folder open."""

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
        """See Beneath; O_NONBLOCK so that a pipe put there cannot hold us."""
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
        """The descriptor of the folder `parts`, open until the next call of any method."""
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
    """Plain paths, each component looked at first."""

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
            except OSError:  # a link in a circle
                is_folder = False
            yield item.name, is_folder


def _regular(opened: int, parts: Parts) -> int:
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(f"{'/'.join(parts)} is not a regular file")
    return opened
