"""Checks of blobs before any put."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.domain.errors import InvalidRequest
from controlplane.domain.names import check_digest
from controlplane.objects.errors import WrongDigest
from controlplane.objects.interface import MAX_BLOB_BYTES
from nsml.content.digests import verify
from nsml.content.errors import BlobCorrupt

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_blobs(blobs: Mapping[str, bytes | memoryview]) -> None:
    """Raise InvalidRequest or WrongDigest for bad blobs."""
    for digest, data in blobs.items():
        check_digest(digest)
        if len(data) > MAX_BLOB_BYTES:
            raise InvalidRequest(
                f"a blob of {len(data)} bytes is too large", why=f"the limit is {MAX_BLOB_BYTES}"
            )
        try:
            verify(digest, data)
        except BlobCorrupt as error:
            raise WrongDigest("the content is not what its digest says", why=str(error)) from error
