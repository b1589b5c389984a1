"""Which paths may stand in a manifest: a grammar that is safe on every system that extracts it.

A path is relative, `/`-separated and made of non-empty components of at most 255 UTF-8 bytes.
Refused: `.` and `..`, backslash, control and bidirectional-override characters, lone surrogates,
a drive letter, a trailing dot or space, the device names of Windows. Two paths that differ only in
letter case or Unicode normal form are twins: one of them would overwrite the other on some systems.
"""

from __future__ import annotations

import re
import unicodedata

from nsml.content.errors import PathRefused

MAX_PATH_BYTES = 4096
MAX_COMPONENT_BYTES = 255
MAX_DEPTH = 64
MAX_FOLDERS = 1_000_000
"""A path of few bytes may name many folders, each of which takes a file's room."""

# C0, DEL, C1; line and paragraph separators; marks, embeddings, overrides and isolates that
# reorder what a terminal shows; lone surrogates, which have no UTF-8.
_FORBIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\\\\]"
)
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])\s*(\..*)?\Z", re.IGNORECASE)
_DRIVE = re.compile(r"[A-Za-z]:")


def split_path(path: str) -> tuple[str, ...]:
    """The components of `path`; raises PathRefused when the grammar does not allow it."""
    if not path:
        raise PathRefused(path, "it is empty")
    if path.startswith("/") or _DRIVE.match(path):
        raise PathRefused(path, "it is absolute")
    if _FORBIDDEN.search(path):
        raise PathRefused(path, "it has a backslash, a control or a text-direction character")
    if len(path.encode()) > MAX_PATH_BYTES:
        raise PathRefused(path, f"it is longer than {MAX_PATH_BYTES} bytes")
    parts = tuple(path.split("/"))
    if len(parts) > MAX_DEPTH:
        raise PathRefused(path, f"it is deeper than {MAX_DEPTH} folders")
    for part in parts:
        _check_component(path, part)
    return parts


def _check_component(path: str, part: str) -> None:
    if part in {"", ".", ".."}:
        raise PathRefused(path, f"it has the component {part!r}")
    if len(part.encode()) > MAX_COMPONENT_BYTES:
        raise PathRefused(path, f"a component is longer than {MAX_COMPONENT_BYTES} bytes")
    if part[-1] in ". ":
        raise PathRefused(path, "a component ends in a dot or a space")
    if _RESERVED.match(part):
        raise PathRefused(path, f"{part!r} is a device name on Windows")


class PathSet:
    """The paths of one tree; refuses repeats, twins, and a file where another has a folder.

    Refuses a path (PathRefused) with which the tree would have more than `most_folders`, too.
    """

    def __init__(self, most_folders: int = MAX_FOLDERS) -> None:
        self._most_folders = most_folders
        self._seen: dict[tuple[int, str], tuple[str, bool]] = {}
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
        key = (parent, _folded(name))
        before = self._seen.get(key)
        if before is None:
            self._seen[key] = (name, is_folder)
        elif before[0] != name:
            raise PathRefused(path, f"{name!r} is a twin of {before[0]!r} on some systems")
        elif before[1] != is_folder:
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
        key = hash(_folded(name))
        if key in self._names[-1]:
            raise PathRefused(path, f"{name!r} is there twice, or is a twin on some systems")
        self._names[-1].add(key)


def _too_many(folders: int) -> str:
    return f"the tree has more than {folders} folders"


def _folded(name: str) -> str:
    if name.isascii():
        return name.lower()
    folded = unicodedata.normalize("NFC", name).casefold()
    return unicodedata.normalize("NFC", folded)
