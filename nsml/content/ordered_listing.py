"""Streams the files of a folder sorted by path, with bounded memory for millions of files."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from nsml._path_text import native_path, path_text
from nsml.content import errors
from nsml.content.listing import (
    FolderFile,
    chain_into,
    lstat_target,
    mode_of,
    resolve_link,
    unreadable,
)
from nsml.content.paths import MAX_DEPTH, split_path
from nsml.content.safe_paths import version_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nsml.content.safe_paths import Beneath, Parts

MOST_NAMES: Final = 5_000_000
"""Files and folders of one tree; a link counts as its target."""
MOST_NAMES_HELD: Final = 2_000_000
"""Names of one folder and those above it: they are sorted in memory, at about 100 bytes each."""

_Chain = tuple["Parts", ...]


class OrderedListing:
    """Like `list_folder` without rules, but streamed.

    Iterating raises as `list_folder`, except that an empty folder yields nothing and vanished names are skipped.
    """

    def __init__(
        self,
        root: Path,
        folder: Beneath,
        *,
        most_names: int = MOST_NAMES,
        most_held: int = MOST_NAMES_HELD,
    ) -> None:
        self._root = os.path.realpath(root)
        self._folder = folder
        self._left = most_names
        self._held = 0
        self._most_held = most_held

    def __iter__(self) -> Iterator[FolderFile]:
        return self._below("", (), ((),))

    def _below(self, path: str, parts: Parts, chain: _Chain) -> Iterator[FolderFile]:
        if path.count("/") >= MAX_DEPTH:
            raise errors.PathRefused(
                path.removesuffix("/"), f"it is deeper than {MAX_DEPTH} folders"
            )
        names = self._names(path, parts)
        while names:
            name = names.pop().removesuffix("/")
            self._held -= 1
            yield from self._one(path + name, (*parts, native_path(name)), chain)

    def _names(self, path: str, parts: Parts) -> list[str]:
        """Return the names of a folder as text, in reverse order; folders end with `/`, for the order of paths."""
        found: list[str] = []
        try:
            for name, is_folder in self._folder.names(parts):
                self._left -= 1
                self._held += 1
                if self._left < 0:
                    raise errors.TooLarge("the folder has too many files and folders", ())
                if self._held > self._most_held:
                    raise errors.TooLarge(f"the folder {path or '.'} has too many files", ())
                text = path_text(name)
                found.append(f"{text}/" if is_folder else text)
        except OSError as error:
            raise errors.Unreadable(path or ".", unreadable(path or ".", error)) from error
        found.sort(reverse=True)
        return found

    def _one(self, path: str, parts: Parts, chain: _Chain) -> Iterator[FolderFile]:
        try:
            facts = self._folder.lstat(parts)
        except FileNotFoundError:
            return
        except OSError as error:
            raise errors.Unreadable(path, unreadable(path, error)) from error
        is_link = stat.S_ISLNK(facts.st_mode)
        if is_link:
            parts = resolve_link(self._root, path, parts)
            facts = lstat_target(self._folder, path, parts)
        if stat.S_ISDIR(facts.st_mode):
            yield from self._below(
                f"{path}/", parts, chain_into(path, parts, chain, is_link=is_link)
            )
        elif stat.S_ISREG(facts.st_mode):
            split_path(path)
            yield FolderFile(path, parts, facts.st_size, mode_of(facts.st_mode), version_of(facts))
