"""What the object store can refuse, by name.

NsmlError
  NotFound > BlobNotFound
  InvalidRequest > WrongDigest: bytes that are not what their name says; nothing of them is kept
  Unavailable > ObjectsUnavailable: the store does not answer
    ObjectsFull: it has no room
    ObjectsDenied: it is there, and does not let us in
  BlobDamaged: what is stored is not what was put; put it again to heal it
"""

from __future__ import annotations

from controlplane.domain.errors import InvalidRequest, NotFound, NsmlError, Unavailable


class BlobNotFound(NotFound):
    """No blob has this digest."""


class WrongDigest(InvalidRequest):
    """The bytes are not what the digest names."""

    reason = "WRONG_DIGEST"


class ObjectsUnavailable(Unavailable):
    """The object store cannot be reached or written now."""

    reason = "OBJECTS_UNAVAILABLE"


class ObjectsFull(ObjectsUnavailable):
    """The object store has no room; what is there can be read."""

    reason = "OBJECTS_FULL"


class ObjectsDenied(ObjectsUnavailable):
    """The service is there: it refuses our key, has no such bucket, or is not who it should be."""


class BlobDamaged(NsmlError):
    """What is stored under a digest is not what the digest names."""

    reason = "BLOB_DAMAGED"
