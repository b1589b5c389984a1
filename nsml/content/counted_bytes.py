"""The size of blobs as counted against a user's or project's storage limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsml.content.framing import frame_pieces

if TYPE_CHECKING:
    from collections.abc import Iterable

LEAST_BLOB_BYTES: Final = 4 << 10
"""Minimum counted size of a blob: it takes a file, and with it a block and an inode."""


def blob_bytes(sizes: Iterable[int]) -> int:
    """Sum the counted sizes of blobs."""
    return sum(max(one, LEAST_BLOB_BYTES) for one in sizes)


def stored_bytes(blobs: Iterable[bytes]) -> int:
    """Return the counted bytes of these blobs as stored, compressed where that helps."""
    return blob_bytes(sum(map(len, frame_pieces(data))) for data in blobs)
