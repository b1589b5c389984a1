"""Parts of a tree: each file belongs to one, so a part can have a right of its own.

A part is named by a path: it has the file of that path, or all files below the folder of that path, but for those of parts
further down. What no path leads to is the part "".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

REST = ""
"""The part of all files to which no other part's path leads."""


def part_of(path: str, parts: Collection[str]) -> str:
    """The part that a file belongs to: the longest of `parts` that is its path or a folder above it."""
    while path and path not in parts:
        path = path.rpartition("/")[0]
    return path


class Chosen:
    """Files and folders of a tree that somebody asks for by their paths."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(dict.fromkeys(paths))
        self._found: set[str] = set()

    def has(self, path: str) -> bool:
        """Whether a file is one of them, or below one."""
        is_one = False
        while path:
            if path in self._paths:
                self._found.add(path)
                is_one = True
            path = path.rpartition("/")[0]
        return is_one

    def absent(self) -> list[str]:
        """Those that no file so far is, or is below."""
        return [path for path in self._paths if path not in self._found]
