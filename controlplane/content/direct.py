"""Signed URLs, for nodes to read packs directly from a bucket.

A URL grants a whole pack: no service signs a part of an object. A pack may contain blobs of several
owners, or hidden parts of a dataset. So a pack is signed only if the caller may read every byte of
it: its indexed blobs and its footer, which names them, make up all of its bytes, and all of these
blobs are readable. A blob that was deleted, or is indexed in another pack, leaves a gap.
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
"""Lifetime of a URL: a node may still read this long after its session has ended."""
_REMEMBERED: Final = 65_536

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedPack:
    """A pack, readable by anybody with its URL, and its requested blobs."""

    url: str
    places: Sequence[BlobPlace]

    def __repr__(self) -> str:
        return f"SignedPack({len(self.places)} blobs)"


class DirectReads:
    """Signs packs of a bucket."""

    def __init__(self, bucket: Bucket, index: SqlPacks) -> None:
        self.authority = bucket.authority
        """PEM of a private CA of the bucket's certificate; empty: none."""
        self._files = bucket.files
        self._index = index
        # Packs and manifests never change: results stay valid.
        self._whole: LruDict[tuple[str, str], bool] = LruDict(_REMEMBERED)

    async def packs(
        self, root: str, digests: Sequence[str], readable: AbstractSet[str]
    ) -> list[SignedPack]:
        """Return signed packs with some of the blobs, for a reader of `root`, a manifest with the blobs `readable`.

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
    """Whether a pack of `size` bytes is exactly these blobs and its footer, all readable."""
    entries = [PackEntry(one.digest, one.start, one.stored, one.size) for one in places]
    taken = sum(one.stored for one in entries) + len(footer_of(entries))
    return taken == size and all(one.digest == root or one.digest in readable for one in entries)
