r"""Which paths may stand in a manifest: all that a node can lay out.

A path is relative, `/`-separated and made of non-empty components of at most 255 bytes. It is written as
`nsml._path_text` says: of control characters, backslashes and what is no UTF-8 each byte is `\xHH`. `.` and
`..` are refused. Names that only other systems cannot have, or not tell apart, are refused where a tree is laid
out on one (`extract.py`).
"""

from __future__ import annotations

import os

from nsml._path_text import bytes_of
from nsml.content.errors import PathRefused

MAX_PATH_BYTES = 4096
MAX_COMPONENT_BYTES = 255
MAX_DEPTH = 64
MAX_FOLDERS = 1_000_000
"""A path of few bytes may name many folders, each of which takes a file's room."""


def split_path(path: str) -> tuple[str, ...]:
    """The components of `path`, as text; raises PathRefused when the grammar does not allow it."""
    if not path:
        raise PathRefused(path, "it is empty")
    if path.startswith("/"):
        raise PathRefused(path, "it is absolute")
    size = len(_bytes_of(path, path))
    if size > MAX_PATH_BYTES:
        raise PathRefused(path, f"it is longer than {MAX_PATH_BYTES} bytes")
    parts = tuple(path.split("/"))
    if len(parts) > MAX_DEPTH:
        raise PathRefused(path, f"it is deeper than {MAX_DEPTH} folders")
    for part in parts:
        if part in {"", ".", ".."}:
            raise PathRefused(path, f"it has the component {part!r}")
        if size > MAX_COMPONENT_BYTES < len(_bytes_of(part, path)):
            raise PathRefused(path, f"a component is longer than {MAX_COMPONENT_BYTES} bytes")
    return parts


def native_parts(path: str) -> tuple[str, ...]:
    """The components of `path` as functions of the system take them; raises PathRefused as `split_path`."""
    split_path(path)
    try:
        return tuple(os.fsdecode(_bytes_of(path, path)).split("/"))
    except UnicodeError:
        raise PathRefused(path, "this system has no such names") from None


def _bytes_of(text: str, path: str) -> bytes:
    try:
        return bytes_of(text)
    except ValueError as error:
        raise PathRefused(path, str(error)) from None


class PathSet:
    """The paths of one tree; refuses repeats, and a file where another has a folder.

    Refuses a path (PathRefused) with which the tree would have more than `most_folders`, too.
    """

    def __init__(self, most_folders: int = MAX_FOLDERS) -> None:
        self._most_folders = most_folders
        self._seen: dict[tuple[int, str], bool] = {}
        self._folders: dict[tuple[str, ...], int] = {(): 0}

    def add(self, path: str) -> tuple[str, ...]:
        """Check and remember the file `path`; gives its components."""
        parts = split_path(path)
        folder = self._folders.get(parts[:-1])
        if folder is None:
            folder = 0
            for depth in range(1, len(parts)):
                folder = self._enter(folder, parts[:depth], path)
        self._claim(folder, parts[-1], path, is_folder=False)
        return parts

    def _enter(self, parent: int, parts: tuple[str, ...], path: str) -> int:
        known = self._folders.get(parts)
        if known is None:
            self._claim(parent, parts[-1], path, is_folder=True)
            if len(self._folders) > self._most_folders:  # the top is one of them
                raise PathRefused(path, _too_many(self._most_folders))
            known = self._folders[parts] = len(self._folders)
        return known

    def _claim(self, parent: int, name: str, path: str, *, is_folder: bool) -> None:
        if (parent, name) not in self._seen:
            self._seen[parent, name] = is_folder
        elif self._seen[parent, name] != is_folder:
            raise PathRefused(path, f"{name!r} is both a file and a folder")
        else:
            raise PathRefused(path, "it is there twice")


class SortedPaths:
    """As PathSet, for paths in the order of their UTF-8 bytes: remembers only the folders that are open.

    In that order everything in a folder comes together. `folders` is their number so far.
    """

    def __init__(self, most_folders: int = MAX_FOLDERS) -> None:
        self.folders = 0
        self._most_folders = most_folders
        self._before = b""
        self._open: list[str] = []
        self._names: list[set[int]] = [set()]

    def add(self, path: str) -> tuple[str, ...]:
        """Check and remember the file `path`; gives its components."""
        parts = split_path(path)
        key = path.encode()
        if key < self._before:
            raise PathRefused(path, "it is out of order")
        self._before = key
        shared = 0
        for opened, part in zip(self._open, parts[:-1], strict=False):
            if opened != part:
                break
            shared += 1
        del self._open[shared:], self._names[shared + 1 :]
        for part in parts[shared:-1]:
            self._claim(part, path)
            self.folders += 1
            if self.folders > self._most_folders:
                raise PathRefused(path, _too_many(self._most_folders))
            self._open.append(part)
            self._names.append(set())
        self._claim(parts[-1], path)
        return parts

    def _claim(self, name: str, path: str) -> None:
        # Hashes take a tenth of the room; that two of different names meet is as likely as a broken disk.
        key = hash(name)
        if key in self._names[-1]:
            raise PathRefused(path, f"{name!r} is there twice, or both as a file and as a folder")
        self._names[-1].add(key)


def _too_many(folders: int) -> str:
    return f"the tree has more than {folders} folders"
