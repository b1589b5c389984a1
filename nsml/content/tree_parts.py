"""Parts of a tree: each file belongs to one, so a part can have a right of its own.

A part is named by a path: it has the file of that path, or all files below the folder of that path, but for those of parts
further down. What no path leads to is the part "".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

REST = ""
"""The part of all files to which no other part's path leads."""


def part_of(path: str, parts: Collection[str]) -> str:
    """The part that a file belongs to: the longest of `parts` that is its path or a folder above it."""
    while path and path not in parts:
        path = path.rpartition("/")[0]
    return path
