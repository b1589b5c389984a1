"""Folders of a tree, opened by descriptors, so that links planted in the tree cannot redirect a copy."""

from __future__ import annotations

import os
from typing import Final

from nsml.copying.messages import flags_of

FOLLOWS: Final = flags_of("O_DIRECTORY")
"""Flags of `os.open`: a folder, or a link to one."""
IN_PLACE: Final = flags_of("O_DIRECTORY", "O_NOFOLLOW")
"""Flags of `os.open`: a folder, and no link."""


class Folders:
    """Opens folders below an open one, which it takes over; links are not followed."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._last: tuple[bytes, int] | None = None

    def find(self, path: bytes) -> int:
        """Return the folder at `path`, open until the next call; empty: the root. Raises OSError."""
        if not path:
            return self._root
        if self._last is not None and self._last[0] == path:
            return self._last[1]
        found = os.dup(self._root)
        for part in path.split(b"/"):
            try:
                below = os.open(part, IN_PLACE, dir_fd=found)
            finally:
                os.close(found)
            found = below
        if self._last is not None:
            os.close(self._last[1])
        self._last = (path, found)
        return found

    def close(self) -> None:
        """Close the root, and open folders below it."""
        os.close(self._root)
        if self._last is not None:
            os.close(self._last[1])
