r"""Valid paths of a manifest: all that a node can extract.

A path is relative, `/`-separated and made of non-empty components of at most 255 bytes. It is encoded by
`nsml._path_text`: each byte of control characters, backslashes and invalid UTF-8 is `\xHH`. `.` and
`..` are refused. Names that only other systems do not support, or do not distinguish, are refused when a tree
is extracted there (`extract.py`).
"""

from __future__ import annotations

import os

from nsml._path_text import bytes_of
from nsml.content.errors import PathRefused

MAX_PATH_BYTES = 4096
MAX_COMPONENT_BYTES = 255
MAX_DEPTH = 64
MAX_FOLDERS = 10_000_000
"""A short path may name many folders, each of which takes as much space as a file."""


def split_path(path: str) -> tuple[str, ...]:
    """Split `path` into components, as text; raises PathRefused if it is invalid."""
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
    """Split `path` into components for system calls; raises PathRefused as `split_path`."""
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


class SortedPaths:
    """Checks the paths of one tree, added in the order of their UTF-8 bytes; PathRefused for any other order.

    Also refuses duplicates, a path that is both file and folder, and more than `most_folders`. `folders` counts them so
    far. Sorted paths with a common prefix are adjacent, so memory stays small for any number of paths.
    """

    def __init__(self, most_folders: int = MAX_FOLDERS) -> None:
        self.folders = 0
        self._most_folders = most_folders
        self._before = ""
        self._folder: tuple[str, ...] = ()
        self._prefixes: list[str] = []  # files whose paths are prefixes of the last one

    def add(self, path: str) -> tuple[str, ...]:
        """Check the file `path` and count its folders; return its components."""
        parts = split_path(path)
        if path <= self._before:  # code points are in the order of their UTF-8
            is_same = path == self._before
            raise PathRefused(path, "it is there twice" if is_same else "it is out of order")
        self._before = path
        while self._prefixes and not path.startswith(self._prefixes[-1]):
            self._prefixes.pop()
        if self._prefixes and path[len(self._prefixes[-1])] == "/":
            raise PathRefused(path, f"{self._prefixes[-1]!r} is both a file and a folder")
        self._prefixes.append(path)
        self._enter(parts[:-1], path)
        return parts

    def _enter(self, folder: tuple[str, ...], path: str) -> None:
        if folder == self._folder:
            return
        shared = 0
        for opened, part in zip(self._folder, folder, strict=False):
            if opened != part:
                break
            shared += 1
        self.folders += len(folder) - shared
        if self.folders > self._most_folders:
            raise PathRefused(path, f"the tree has more than {self._most_folders} folders")
        self._folder = folder
