"""What this node has of what sessions need, as the control plane is told: so that sessions come to their data."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from nodeagent.peers.sources import PEERS
from nodeagent.storage.bucket import BUCKET
from nsml.v1 import agents_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MOST_TOLD: Final = 256
"""Things that one report may have."""
_MOST_IMAGES: Final = 64
_LEAST_BYTES: Final = 1 << 20
"""Less tells how long an answer takes, and not how fast bytes come."""
_LEAST_S: Final = 1e-3
_MOST_BYTES: Final = 1 << 62
_WEIGHT: Final = 0.3
"""Of the newest fetch in the mean."""


class Stock:
    """Dataset versions and images that are here, and how fast more would come.

    Args:
        changed: called when there is something else to tell.

    Attributes:
        message: what is to be told.
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
        """These dataset versions, and bytes of each, are here from earlier: the one used last comes last."""
        left = {digest: size for digest, size in trees if digest not in self._trees}
        self._trees = left | self._trees
        self._tell()

    def used(self, digest: str, size: int | None = None) -> None:
        """A dataset version is here, and used now; `size` in bytes, unless that was said before."""
        known = self._trees.pop(digest, None)
        if (size := known if size is None else size) is not None:
            self._trees[digest] = size
            self._tell()

    def gone(self, digest: str) -> None:
        """A dataset version is not here any more."""
        if self._trees.pop(digest, None) is not None:
            self._tell()

    def has_images(self, images: Mapping[str, int]) -> None:
        """These images are here, and no others: bytes by whole reference."""
        self._images = images
        self._tell()

    def fetched(self, size: int, seconds: float) -> None:
        """So many bytes came in that time."""
        if size < _LEAST_BYTES or seconds <= 0:
            return
        rate, before = size / max(seconds, _LEAST_S), self._bytes_per_s
        self._bytes_per_s = before + _WEIGHT * (rate - before) if before else rate

    def came(self, size: int, others: Mapping[str, int]) -> None:
        """So many bytes more came, those of `others` from sources of these kinds; told with the next news."""
        self._fetched.from_platform += size - sum(others.values())
        self._fetched.from_peers += others.get(PEERS, 0)
        self._fetched.from_bucket += others.get(BUCKET, 0)

    def note_bucket(self, note: str) -> None:
        """Why the bucket is not read now; "" once it is."""
        self._bucket_note = note
        self._tell()

    def gave(self, to_peers: int, dropped_peers: int) -> None:
        """What peers got from here, in all, and how often one was dropped; told with what came since."""
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
        # Two digits: that it is never twice the same is no news.
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
    """What a file and an engine say is not always a size."""
    return min(max(size, 0), _MOST_BYTES)
