"""Objects in memory: the twin for tests and the simulation. Nothing in it ever waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.domain.names import check_digest
from controlplane.objects.checking import check_blobs
from controlplane.objects.errors import BlobNotFound
from controlplane.objects.interface import StoredBlob, VerifiedBlobs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

    from nsml.common.clock import Clock


class MemoryObjects:
    """See interface.ObjectStore."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mark = ""
        self._blobs: dict[str, tuple[bytes, float]] = {}
        self._aside: dict[str, tuple[bytes, float]] = {}

    async def has_missing(self, digests: Collection[str]) -> set[str]:
        """See ObjectStore."""
        return {check_digest(digest) for digest in digests} - self._blobs.keys()

    async def losses(self) -> str:
        """See ObjectStore. Nothing is lost."""
        return ""

    async def put(self, digest: str, data: bytes) -> None:
        """See ObjectStore."""
        await self.put_many({digest: data})

    async def put_many(self, blobs: Mapping[str, bytes | memoryview]) -> None:
        """See ObjectStore."""
        check_blobs(blobs)
        now = self._clock.time()
        for digest, data in blobs.items():
            self._blobs[digest] = bytes(data), now
            self._aside.pop(digest, None)

    async def get(self, digest: str) -> bytes:
        """See ObjectStore."""
        check_digest(digest)
        found = self._blobs.get(digest) or self._aside.get(digest)
        if found is None:
            raise BlobNotFound(f"there is no blob {digest}")
        return found[0]

    async def get_first(self, digests: Sequence[str], most_bytes: int) -> list[bytes]:
        """See ObjectStore."""
        found = [await self.get(digests[0])]
        for digest in [check_digest(one) for one in digests][1:]:
            there = self._blobs.get(digest) or self._aside.get(digest)
            if there is None or sum(map(len, found)) >= most_bytes:
                break
            found.append(there[0])
        return found

    async def put_aside(self, digests: Collection[str], may: Callable[[], bool]) -> set[str]:
        """See ObjectStore."""
        found = {check_digest(digest) for digest in digests} & self._blobs.keys()
        if not found or not may():
            return set()
        now = self._clock.time()
        self._aside.update({digest: (self._blobs.pop(digest)[0], now) for digest in found})
        return found

    async def take_back(self, digests: Collection[str]) -> None:
        """See ObjectStore."""
        for digest in map(check_digest, digests):
            if digest in self._aside and digest not in self._blobs:
                self._blobs[digest] = self._aside.pop(digest)

    async def delete(self, digests: Collection[str]) -> set[str]:
        """See ObjectStore."""
        found = {check_digest(digest) for digest in digests} & self._aside.keys()
        for digest in found:
            del self._aside[digest]
        return found

    async def verify(self) -> AsyncIterator[VerifiedBlobs]:
        """See ObjectStore. What is in memory is not damaged."""
        size = sum(len(data) for data, _ in (*self._blobs.values(), *self._aside.values()))
        count = len(self._blobs) + len(self._aside)
        yield VerifiedBlobs(count=count, stored_bytes=size, damaged=())

    async def recover(self, digests: Collection[str]) -> dict[str, str]:
        """See ObjectStore. There are no copies."""
        return {}

    async def maintain(self, may: Callable[[], bool]) -> None:
        """See ObjectStore. Nothing is needed."""

    async def list_aside(self) -> AsyncIterator[StoredBlob]:
        """See ObjectStore."""
        for digest, (data, put_at) in sorted(self._aside.items()):
            yield StoredBlob(digest, len(data), put_at)

    async def now(self) -> float:
        """See ObjectStore."""
        return self._clock.time()

    async def mark(self, fresh: str = "") -> str:
        """See ObjectStore."""
        self._mark = self._mark or fresh
        return self._mark

    async def list(self) -> AsyncIterator[StoredBlob]:
        """See ObjectStore."""
        for digest, (data, put_at) in sorted(self._blobs.items()):
            yield StoredBlob(digest, len(data), put_at)
