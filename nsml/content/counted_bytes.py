"""What blobs count for, of what may be kept for a user or a project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsml.content.framing import frame_pieces

if TYPE_CHECKING:
    from collections.abc import Iterable

LEAST_BLOB_BYTES: Final = 4 << 10
"""What a blob counts for at least: it takes a file, and with it a block and an inode."""


def blob_bytes(sizes: Iterable[int]) -> int:
    """What blobs of these sizes count for."""
    return sum(max(one, LEAST_BLOB_BYTES) for one in sizes)


def stored_bytes(blobs: Iterable[bytes]) -> int:
    """What blobs count for once they are stored, compressed where that helps, and counted."""
    return blob_bytes(sum(map(len, frame_pieces(data))) for data in blobs)
