"""Reports this node's cached datasets and images to the control plane, which places sessions near their data."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from nodeagent.peers.sources import PEERS
from nodeagent.storage.bucket import BUCKET
from nsml.v1 import agents_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MOST_TOLD: Final = 256
"""Entries of one report."""
_MOST_IMAGES: Final = 64
_LEAST_BYTES: Final = 1 << 20
"""Smaller fetches measure latency, not throughput."""
_LEAST_S: Final = 1e-3
_MOST_BYTES: Final = 1 << 62
_WEIGHT: Final = 0.3
"""Weight of the newest fetch in the moving average."""


class Stock:
    """Cached dataset versions and images, and the throughput of fetches.

    Args:
        changed: called when `message` has changed.

    Attributes:
        message: the current report.
    """

    def __init__(self, changed: Callable[[], object] = lambda: None) -> None:
        self.message = pb.StockReport()
        self._changed = changed
        self._trees: dict[str, int] = {}
        self._images: Mapping[str, int] = {}
        self._bytes_per_s = 0.0
        self._fetched = pb.FetchedBytes()
        self._bucket_note = ""

    def found(self, trees: Iterable[tuple[str, int]]) -> None:
        """Add dataset versions cached earlier, as (digest, bytes), the most recently used last."""
        left = {digest: size for digest, size in trees if digest not in self._trees}
        self._trees = left | self._trees
        self._tell()

    def used(self, digest: str, size: int | None = None) -> None:
        """Mark a dataset version as used now; `size` in bytes, None if passed before."""
        known = self._trees.pop(digest, None)
        if (size := known if size is None else size) is not None:
            self._trees[digest] = size
            self._tell()

    def gone(self, digest: str) -> None:
        """Remove a dataset version from the report."""
        if self._trees.pop(digest, None) is not None:
            self._tell()

    def has_images(self, images: Mapping[str, int]) -> None:
        """Replace the cached images: bytes by whole reference."""
        self._images = images
        self._tell()

    def fetched(self, size: int, seconds: float) -> None:
        """Count a fetch in the throughput."""
        if size < _LEAST_BYTES or seconds <= 0:
            return
        rate, before = size / max(seconds, _LEAST_S), self._bytes_per_s
        self._bytes_per_s = before + _WEIGHT * (rate - before) if before else rate

    def came(self, size: int, others: Mapping[str, int]) -> None:
        """Count received bytes, those of `others` by kind of source; reported with the next change."""
        self._fetched.from_platform += size - sum(others.values())
        self._fetched.from_peers += others.get(PEERS, 0)
        self._fetched.from_bucket += others.get(BUCKET, 0)

    def note_bucket(self, note: str) -> None:
        """Report why the bucket is not being read; "" once it is."""
        self._bucket_note = note
        self._tell()

    def gave(self, to_peers: int, dropped_peers: int) -> None:
        """Report the bytes sent to peers, in all, and how often one was dropped, with the bytes received since."""
        self._fetched.to_peers = to_peers
        self._fetched.dropped_peers = dropped_peers
        self._tell()

    def _tell(self) -> None:
        images = sorted(self._images.items(), key=lambda one: (-one[1], one[0]))[:_MOST_IMAGES]
        trees = islice(reversed(self._trees.items()), MOST_TOLD - len(images))
        things = [
            *[
                pb.StockedThing(dataset_digest=one, bytes=_told(size))
                for one, size in sorted(trees)
            ],
            *[pb.StockedThing(image=one, bytes=_told(size)) for one, size in sorted(images)],
        ]
        # Two significant digits: small variations cause no report.
        rate = int(float(f"{self._bytes_per_s:.1e}"))
        message = pb.StockReport(
            things=things, bytes_per_second=rate if things else 0, bucket_note=self._bucket_note
        )
        if self._fetched.ListFields():
            message.fetched.CopyFrom(self._fetched)
        if message != self.message:
            self.message = message
            self._changed()


def _told(size: int) -> int:
    """Clamp a size: files and container engines may report invalid ones."""
    return min(max(size, 0), _MOST_BYTES)
