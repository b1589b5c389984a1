"""Errors of the object store.

NsmlError
  NotFound > BlobNotFound
  InvalidRequest > WrongDigest: bytes that do not match their digest; none are stored
  Unavailable > ObjectsUnavailable: the store does not answer
    ObjectsFull: no space left
    ObjectsDenied: it is reachable, but denies access
  BlobDamaged: the stored bytes do not match the digest; another put repairs it
"""

from __future__ import annotations

from controlplane.domain.errors import InvalidRequest, NotFound, NsmlError, Unavailable


class BlobNotFound(NotFound):
    """No blob has this digest."""


class WrongDigest(InvalidRequest):
    """The bytes do not match the digest."""

    reason = "WRONG_DIGEST"


class ObjectsUnavailable(Unavailable):
    """The object store cannot be reached or written now."""

    reason = "OBJECTS_UNAVAILABLE"


class ObjectsFull(ObjectsUnavailable):
    """The object store has no space left; stored blobs can still be read."""

    reason = "OBJECTS_FULL"


class ObjectsDenied(ObjectsUnavailable):
    """The service is reachable, but rejects our key, has no such bucket, or fails verification."""


class BlobDamaged(NsmlError):
    """The bytes stored under a digest do not match it."""

    reason = "BLOB_DAMAGED"
