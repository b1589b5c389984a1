"""Where chunks of datasets come from, for fetches and streams alike, before the control plane is asked."""

from __future__ import annotations

from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from nodeagent.peers.sources import Peers, Sources
    from nodeagent.storage.bucket import Bucket


class OtherSources:
    """Where chunks of datasets may be had but from the control plane, what costs others least first.

    Args:
        peers: other nodes; None: they are not asked.
        bucket: None: it is not read.
    """

    def __init__(self, peers: Peers | None = None, bucket: Bucket | None = None) -> None:
        self._peers = peers
        self._bucket = bucket

    @asynccontextmanager
    async def of(self, root: str, *, is_stream: bool = False) -> AsyncIterator[Sequence[Sources]]:
        """For one dataset version, of which a stream keeps nothing that could be passed on."""
        async with (
            nullcontext() if self._peers is None else self._peers.of(root, is_stream=is_stream)
        ) as peers:
            bucket = None if self._bucket is None else self._bucket.of(root)
            yield [one for one in (peers, bucket) if one is not None]
