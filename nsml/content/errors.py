"""Errors of content.

ContentError
  PathRefused          an invalid path, or a duplicate
  ManifestRefused      not a manifest of this version, or beyond a limit
  BlobCorrupt          bytes that do not match their digest or frame
  CutsDiffer           a library with other chunk boundaries than the format
  PackRefused          a folder that cannot be packed
    EmptyFolder  LinkRefused  Unreadable  TooLarge  ChangedWhilePacking
  ExtractRefused       a tree that cannot be extracted
    TargetExists
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class ContentError(Exception):
    """The root: the message is one sentence for the user."""


class PathRefused(ContentError):
    """An invalid path inside a tree."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"path {path!r} is refused: {reason}")
        self.path = path
        self.reason = reason


class ManifestRefused(ContentError):
    """Bytes that are not an acceptable manifest."""


class BlobCorrupt(ContentError):
    """Bytes that do not match their digest, size or frame."""


class CutsDiffer(ContentError):
    """The installed library has other chunk boundaries than the stored data."""


class PackRefused(ContentError):
    """A folder that cannot be packed; `path` is relative to it."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


class EmptyFolder(PackRefused):
    """Nothing to pack: no file, or every file is ignored."""


class LinkRefused(PackRefused):
    """A symbolic link that leaves the folder, is dangling, or is circular."""


class Unreadable(PackRefused):
    """A file or folder that this process may not read."""


class TooLarge(PackRefused):
    """More bytes or files than the limit; `largest` are (path, bytes), largest first."""

    def __init__(self, message: str, largest: Sequence[tuple[str, int]]) -> None:
        super().__init__(".", message)
        self.largest = tuple(largest)


class ChangedWhilePacking(PackRefused):
    """A file that changed between being described and being sent."""


class ExtractRefused(ContentError):
    """A tree that cannot be extracted here."""


class ChangedInPlace(ContentError):
    """A file of an in-place dataset changed since the dataset was added."""


class TargetExists(ExtractRefused):
    """The target folder already exists."""
