"""Digests: BLAKE3 in 64 lowercase hex characters."""

from __future__ import annotations

import re

from nsml.content.errors import BlobCorrupt

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """Return the digest of `data`."""
    from blake3 import blake3

    return blake3(data).hexdigest()


def is_digest(text: str) -> bool:
    """Whether `text` has the form of a digest, and so is safe as part of a storage key."""
    return _DIGEST.match(text) is not None


def verify(digest: str, data: bytes | bytearray | memoryview) -> None:
    """Raise BlobCorrupt unless `data` has this digest."""
    found = digest_of(data)
    if found != digest:
        raise BlobCorrupt(f"blob {digest[:16]} has other content ({found[:16]}, {len(data)} bytes)")
