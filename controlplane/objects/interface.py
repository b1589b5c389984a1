"""The object store's contract: blobs, each named by the BLAKE3 digest of its bytes.

Blobs are immutable: a digest has no bytes or exactly its bytes. So puts may be repeated, concurrent
and in any order. Digests are 64 lowercase hex characters; anything else raises InvalidRequest
before it touches a path. Any method may raise ObjectsUnavailable: the call may be retried.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

MAX_BLOB_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """A listed blob: its bytes in the store, and when it was put (Unix s)."""

    digest: str
    stored_bytes: int
    put_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedBlobs:
    """A batch of verified blobs: count, bytes in the store, digests of damaged blobs."""

    count: int
    stored_bytes: int
    damaged: Sequence[str]


class ObjectStore(Protocol):
    """Stores blobs, without access control.

    Deletion has two steps. `put_aside` hides a blob: `has_missing` reports it as missing, but `get` still reads it,
    until `take_back` restores it or `delete` removes it.
    """

    async def has_missing(self, digests: Collection[str]) -> set[str]:
        """Return the digests that must be put again: absent, aside, or found damaged."""
        ...

    async def losses(self) -> str:
        """Return a token that changes when blobs are found damaged or lost; earlier completeness checks are then stale."""
        ...

    async def put(self, digest: str, data: bytes) -> None:
        """Store a blob; it is durable once this returns.

        WrongDigest if `data` does not match, InvalidRequest above MAX_BLOB_BYTES: nothing is
        stored. An existing blob is written again, which repairs a damaged one.
        """
        ...

    async def put_many(self, blobs: Mapping[str, bytes | memoryview]) -> None:
        """Put several blobs, much cheaper than one by one. All are checked before any is written."""
        ...

    async def get(self, digest: str) -> bytes:
        """Return the whole blob, verified, even if aside. Raises BlobNotFound, BlobDamaged."""
        ...

    async def get_first(self, digests: Sequence[str], most_bytes: int) -> list[bytes]:
        """Return the first of these blobs, verified: at least one, then more until they have `most_bytes` together.

        Cheaper than one by one. Stops before an unreadable blob; if that is the first, raises as `get` does.
        """
        ...

    async def put_aside(self, digests: Collection[str], may: Callable[[], bool]) -> set[str]:
        """Hide blobs; return those that were present. Hides none if `may()`, called at the last moment, is false."""
        ...

    async def take_back(self, digests: Collection[str]) -> None:
        """Restore blobs that are aside; other digests are ignored. A put restores, too."""
        ...

    async def delete(self, digests: Collection[str]) -> set[str]:
        """Delete the blobs that are aside and return them; other blobs are not touched."""
        ...

    def verify(self) -> AsyncIterator[VerifiedBlobs]:
        """Read all blobs in batches. Damaged blobs are reported as missing from then on."""
        ...

    async def recover(self, digests: Collection[str]) -> dict[str, str]:
        """Restore missing blobs from leftover copies; return the source of each, as display text by digest.

        Searches everything in the store. Each copy is verified.
        """
        ...

    async def maintain(self, may: Callable[[], bool]) -> None:
        """Do periodic maintenance, on the leader only; stops once `may()` is false."""
        ...

    def list_aside(self) -> AsyncIterator[StoredBlob]:
        """List the blobs that are aside; `put_at` is when they were put aside."""
        ...

    async def now(self) -> float:
        """The time by the store's clock, the one of `put_at` (Unix s)."""
        ...

    async def mark(self, fresh: str = "") -> str:
        """Return the mark that identifies these objects' owner; "" while there is none.

        A store without one gets `fresh`, permanently: of concurrent callers one wins, and all get
        its mark.
        """
        ...

    def list(self) -> AsyncIterator[StoredBlob]:
        """List all blobs in any order; blobs put or deleted meanwhile may or may not be included."""
        ...
