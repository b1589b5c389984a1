"""Datasets in place: compares folders below the administrator's roots with their lists of files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

from nodeagent.storage.transfer import uninterrupted
from nsml.content.errors import ContentError
from nsml.content.in_place import LIST_NAME, Changes, changes, read_list, why_movable
from nsml.spec.in_place_paths import place_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.common.clock import Offload


class NotHere(Exception):
    """The folder cannot be mounted on this node; the message says why."""


class InPlaceFolders:
    """Checks the folders of datasets in place, one at a time, to bound memory for the whole node.

    Args:
        roots: folders of a shared file system on this node.
        run: runs work of minutes in a thread.
    """

    def __init__(self, roots: Sequence[str], run: Offload) -> None:
        self._roots = tuple(roots)
        self._run = run
        self._turn = asyncio.Lock()

    async def look(self, path: str, tree: Path) -> Changes:
        """Return the changes in the folder since the list in `tree` was made.

        Raises:
            NotHere: it is not below a root, is missing, or others could put another folder in its place.
            ContentError, OSError: the list or the folder cannot be read.
        """
        async with self._turn:
            return await uninterrupted(self._run, lambda: self._look(path, tree))

    def _look(self, path: str, tree: Path) -> Changes:
        if not place_of(path, self._roots):
            raise NotHere(f"{path} is not below the shared_roots of this node's agent")
        try:
            if why := why_movable(Path(path), frozenset({0, os.geteuid()})):
                raise NotHere(why)
        except FileNotFoundError as error:
            raise NotHere(f"{path} is not there") from error
        try:
            return changes(Path(path), read_list(tree / LIST_NAME), SystemRandom())
        except FileNotFoundError as error:
            raise ContentError(f"files of {path} went while it was looked at") from error
