"""Decoding of one stored blob."""

from __future__ import annotations

from controlplane.objects.errors import BlobDamaged
from controlplane.objects.interface import MAX_BLOB_BYTES
from nsml.content.digests import verify
from nsml.content.errors import BlobCorrupt
from nsml.content.framing import unframe


def content_of(digest: str, framed: bytes) -> bytes:
    """Decode and verify a blob; BlobDamaged."""
    try:
        data = unframe(framed, max_bytes=MAX_BLOB_BYTES)
        verify(digest, data)
    except BlobCorrupt as error:
        raise BlobDamaged(
            f"blob {digest} is damaged in the object store",
            why=str(error),
            attempt="send it again: push the dataset once more",
        ) from error
    return data
