"""What can go wrong with content, by name.

ContentError
  PathRefused          a path that the grammar does not allow, or the twin of another
  ManifestRefused      not a manifest of this version, or beyond a limit
  BlobCorrupt          bytes that are not what their digest or frame says
  CutsDiffer           a library that cuts files otherwise than the format says
  PackRefused          a folder that cannot be packed
    EmptyFolder  LinkRefused  Unreadable  TooLarge  ChangedWhilePacking
  ExtractRefused       a tree that cannot be laid out
    TargetExists
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class ContentError(Exception):
    """The root: the message is one sentence for the user."""


class PathRefused(ContentError):
    """A path inside a tree that the grammar refuses."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"path {path!r} is refused: {reason}")
        self.path = path
        self.reason = reason


class ManifestRefused(ContentError):
    """Bytes that are not an acceptable manifest."""


class BlobCorrupt(ContentError):
    """Bytes that differ from what their digest, size or frame promises."""


class CutsDiffer(ContentError):
    """The installed library cuts files otherwise than all that is stored was cut."""


class PackRefused(ContentError):
    """A folder that cannot be packed; `path` is relative to it."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


class EmptyFolder(PackRefused):
    """Nothing to pack: no file, or every file is ignored."""


class LinkRefused(PackRefused):
    """A symbolic link that leaves the folder, leads nowhere, or leads round in a circle."""


class Unreadable(PackRefused):
    """A file or folder that this process may not read."""


class TooLarge(PackRefused):
    """More bytes or files than the limit; `largest` are (path, bytes), largest first."""

    def __init__(self, message: str, largest: Sequence[tuple[str, int]]) -> None:
        super().__init__(".", message)
        self.largest = tuple(largest)


class ChangedWhilePacking(PackRefused):
    """A file that was changed between being described and being sent."""


class ExtractRefused(ContentError):
    """A tree that cannot be laid out here."""


class ChangedInPlace(ContentError):
    """A file of a dataset in place is not what it was when the dataset was added."""


class TargetExists(ExtractRefused):
    """The folder to lay out into is there already."""
