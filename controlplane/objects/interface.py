"""The object store's contract: blobs, each named by the BLAKE3 digest of its bytes.

A blob never changes: under a digest there is nothing or exactly its bytes. So puts may be repeated,
race and come in any order. Digests are 64 lowercase hex characters; anything else raises
InvalidRequest before it touches a path. Any method may raise ObjectsUnavailable: the call may be
repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

MAX_BLOB_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """One blob as a sweep sees it: bytes that it takes in the store, when it was put (Unix s)."""

    digest: str
    stored_bytes: int
    put_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedBlobs:
    """Blobs that were read: how many, bytes that they take in the store, and the digests of those that are damaged."""

    count: int
    stored_bytes: int
    damaged: Sequence[str]


class ObjectStore(Protocol):
    """Keeps blobs; knows nothing of who may read them.

    Nothing is removed at once. `put_aside` takes a blob from its name: it is missing then for who asks, and still
    read by who refers to it after all, until `take_back` gives the name back or `delete` removes it.
    """

    async def has_missing(self, digests: Collection[str]) -> set[str]:
        """Those of `digests` that are not there, are aside, or that `get` has found damaged: to be put again."""
        ...

    async def losses(self) -> str:
        """Another text than before whenever blobs were found damaged, or gone: what was known to be whole may not be."""
        ...

    async def put(self, digest: str, data: bytes) -> None:
        """Keep a blob; it survives a power cut once this returns.

        WrongDigest when `data` is something else, InvalidRequest above MAX_BLOB_BYTES: nothing is
        kept. A blob that is there is written again, which heals a damaged one.
        """
        ...

    async def put_many(self, blobs: Mapping[str, bytes | memoryview]) -> None:
        """Put several, much cheaper than one by one. All are checked before any is written."""
        ...

    async def get(self, digest: str) -> bytes:
        """The whole blob, verified, also what is aside. BlobNotFound, BlobDamaged."""
        ...

    async def get_first(self, digests: Sequence[str], most_bytes: int) -> list[bytes]:
        """The first of these blobs, one at least and then as many as have so many bytes together, each as `get` has it.

        Cheaper than one by one. Where one of them cannot be given it ends before that, or raises what `get` does.
        """
        ...

    async def put_aside(self, digests: Collection[str], may: Callable[[], bool]) -> set[str]:
        """Take blobs from their names; those that were there. None where `may`, asked at the last moment, forbids it."""
        ...

    async def take_back(self, digests: Collection[str]) -> None:
        """Give what is aside its name again; the rest of `digests` means nothing. A put does it, too."""
        ...

    async def delete(self, digests: Collection[str]) -> set[str]:
        """Remove for good what is aside; those that were. What has the name is not touched."""
        ...

    def verify(self) -> AsyncIterator[VerifiedBlobs]:
        """Read everything, some blobs at a time. Those that are damaged are missing from then on."""
        ...

    async def recover(self, digests: Collection[str]) -> dict[str, str]:
        """Put blobs that are missing again where a copy of them is left; for people, from where, by digest.

        Looks at everything that is stored. Each copy is verified.
        """
        ...

    async def maintain(self, may: Callable[[], bool]) -> None:
        """Do what the store needs now and then, and nobody asks for; the leader's, while `may` says so."""
        ...

    def list_aside(self) -> AsyncIterator[StoredBlob]:
        """What is aside, as `list` has it; `put_at` is when it was put there."""
        ...

    async def now(self) -> float:
        """The time of whoever keeps the objects, by which `put_at` is told (Unix s)."""
        ...

    async def mark(self, fresh: str = "") -> str:
        """The mark that says whose these objects are; "" while there is none.

        A store without one gets `fresh`, for good: of several that come at once one is taken, and all
        are told which.
        """
        ...

    def list(self) -> AsyncIterator[StoredBlob]:
        """Every blob in any order; those put or deleted meanwhile may or may not be among them."""
        ...
