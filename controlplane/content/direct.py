"""URLs by which nodes read packs of a bucket themselves.

A URL reads a whole pack: no service signs a part of an object. And a pack may hold blobs of several owners, or of parts of
a dataset that are hidden from who asks. So a pack is signed only where every byte of it is known to be readable: the
blobs that the index has of it and its footer, which names them, are all of its bytes, and each of the blobs is
readable. A blob that was deleted, or that the index has in another pack, leaves bytes over.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.history.values import PackEntry
from controlplane.objects.errors import ObjectsUnavailable
from controlplane.objects.pack import footer_of, key_of
from controlplane.state.lru import LruDict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from controlplane.history.sql.packs import SqlPacks
    from controlplane.history.values import BlobPlace
    from controlplane.objects.bucket_files import Bucket

LIFE_S: Final = 300.0
"""How long a URL counts: as long may a node read whose session has ended."""
_REMEMBERED: Final = 65_536

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedPack:
    """A pack, which anybody can read by the URL, and the blobs asked for that it holds."""

    url: str
    places: Sequence[BlobPlace]

    def __repr__(self) -> str:
        return f"SignedPack({len(self.places)} blobs)"


class DirectReads:
    """Of one bucket."""

    def __init__(self, bucket: Bucket, index: SqlPacks) -> None:
        self.authority = bucket.authority
        """PEM of a private authority of its certificate; empty for none."""
        self._files = bucket.files
        self._index = index
        # Neither a pack nor what a manifest lists changes: what was found stays true.
        self._whole: LruDict[tuple[str, str], bool] = LruDict(_REMEMBERED)

    async def packs(
        self, root: str, digests: Sequence[str], readable: AbstractSet[str]
    ) -> list[SignedPack]:
        """Packs with some of the blobs, for a reader of the manifest `root`, which lists the blobs `readable`.

        Raises HistoryUnavailable.
        """
        by_pack: dict[str, list[BlobPlace]] = defaultdict(list)
        for place in (await self._index.locate(digests)).values():
            by_pack[place.pack].append(place)
        signed = []
        for pack, places in by_pack.items():
            if not await self._is_readable(pack, root, readable):
                continue
            try:
                url = await self._files.sign(key_of(pack), LIFE_S)
            except ObjectsUnavailable as error:
                _log.warning("objects.not_signed", error=str(error), why=error.why)
                return []
            signed.append(SignedPack(url=url, places=places))
        return signed

    async def _is_readable(self, pack: str, root: str, readable: AbstractSet[str]) -> bool:
        """Whether a reader of the manifest may read every byte of a pack."""
        known = self._whole.get((root, pack))
        if known is None:
            size, entries = await self._index.pack(pack)
            known = await self._files.run(partial(_is_all, size, entries, root, readable))
            self._whole.keep((root, pack), known)
        return known


def _is_all(size: int, places: Sequence[BlobPlace], root: str, readable: AbstractSet[str]) -> bool:
    """Whether a pack of so many bytes is nothing but these blobs and its footer, all of them readable."""
    entries = [PackEntry(one.digest, one.start, one.stored, one.size) for one in places]
    taken = sum(one.stored for one in entries) + len(footer_of(entries))
    return taken == size and all(one.digest == root or one.digest in readable for one in entries)
