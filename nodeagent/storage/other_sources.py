"""Sources of chunks of datasets, for fetches and streams alike, tried before the control plane."""

from __future__ import annotations

from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from nodeagent.peers.sources import Peers, Sources
    from nodeagent.storage.bucket import Bucket


class OtherSources:
    """Sources of chunks of datasets beside the control plane, those of least cost to others first.

    Args:
        peers: other nodes; None: not asked.
        bucket: None: not read.
    """

    def __init__(self, peers: Peers | None = None, bucket: Bucket | None = None) -> None:
        self._peers = peers
        self._bucket = bucket

    @asynccontextmanager
    async def of(self, root: str, *, is_stream: bool = False) -> AsyncIterator[Sequence[Sources]]:
        """Return the sources of one dataset version; a stream keeps nothing that could be passed on."""
        async with (
            nullcontext() if self._peers is None else self._peers.of(root, is_stream=is_stream)
        ) as peers:
            bucket = None if self._bucket is None else self._bucket.of(root)
            yield [one for one in (peers, bucket) if one is not None]
