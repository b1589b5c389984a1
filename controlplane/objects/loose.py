"""Loose blobs of earlier versions: one file per blob, until moved into a pack.

Layout: `blobs/ab/cdef...`, the digest split after two characters, and the same under `aside/` for blobs put
aside. No loose blobs are written any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.names import is_digest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence

    from controlplane.objects.files import Files

NAMED: Final = "blobs"
ASIDE: Final = "aside"


class LooseBlob(NamedTuple):
    """A loose blob: its stored bytes, and when it was put or put aside (Unix s)."""

    digest: str
    size: int
    at: float
    is_aside: bool


class LooseBlobs:
    """The loose blobs among the files of an object store.

    Attributes:
        are_there: whether there may be some; False once `look` has found none.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self.are_there = True

    async def look(self) -> None:
        """Update `are_there`."""
        async for _ in self.list():
            self.are_there = True
            return
        self.are_there = False

    async def named(self, digests: Collection[str]) -> set[str]:
        """Return the digests with a loose blob that is not aside."""
        return await self._those(digests, NAMED)

    async def aside(self, digests: Collection[str]) -> set[str]:
        """Return the digests with a loose blob that is aside."""
        return await self._those(digests, ASIDE)

    async def _those(self, digests: Collection[str], under: str) -> set[str]:
        if not self.are_there or not digests:
            return set()
        keys = {_key(digest, under): digest for digest in digests}
        found: set[str] = set()
        every = list(keys)
        for start in range(0, len(every), _AT_ONCE):
            found |= await self._files.has(every[start : start + _AT_ONCE])
        return {keys[key] for key in found}

    async def read(self, digest: str) -> bytes | None:
        """Return the frame of a blob, even if aside; None if it is not loose."""
        if not self.are_there:
            return None
        for under in (NAMED, ASIDE):
            framed = await self._files.read(_key(digest, under))
            if framed is not None:
                return framed
        return None

    async def remove(self, digests: Sequence[str]) -> None:
        """Remove blobs that are already in a pack."""
        for digest in digests:
            for under in (NAMED, ASIDE):
                await self._files.remove(_key(digest, under))

    async def list(self) -> AsyncIterator[LooseBlob]:
        """List all of them; a blob both named and aside comes twice."""
        if not self.are_there:
            return
        for under in (NAMED, ASIDE):
            async for file in self._files.list(under):
                digest = "".join(file.key.split("/")[1:])
                if is_digest(digest):  # skip foreign files
                    yield LooseBlob(digest, file.size, file.written_at, under == ASIDE)


_AT_ONCE: Final = 1_000


def _key(digest: str, under: str) -> str:
    return f"{under}/{digest[:2]}/{digest[2:]}"
