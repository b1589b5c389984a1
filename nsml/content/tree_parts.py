"""Parts of a tree: each file belongs to one part, so parts can have their own permissions.

A part is named by a path: it has the file of that path, or all files below that folder except those of deeper
parts. The part "" has the files of no other part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

REST = ""
"""The part of all files in no other part."""


def part_of(path: str, parts: Collection[str]) -> str:
    """Return the part of a file: the longest of `parts` that is its path or a folder above it."""
    while path and path not in parts:
        path = path.rpartition("/")[0]
    return path


class Chosen:
    """Files and folders of a tree selected by path."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(dict.fromkeys(paths))
        self._found: set[str] = set()

    def has(self, path: str) -> bool:
        """Whether a file is selected, or below a selected folder."""
        is_one = False
        while path:
            if path in self._paths:
                self._found.add(path)
                is_one = True
            path = path.rpartition("/")[0]
        return is_one

    def absent(self) -> list[str]:
        """Return the selected paths that matched no file so far."""
        return [path for path in self._paths if path not in self._found]
