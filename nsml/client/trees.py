"""Manifests as they are stored, for trees of any size: `nsml.content.stored_manifest` reads them piece by piece."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from nsml.client.content import read_blobs
from nsml.client.errors import PlatformFault

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsml.client.calls import Client


async def encoded_manifest(
    client: Client, root: str, *, shown_by: Callable[[], Awaitable[object]]
) -> bytes:
    """The encoding of the manifest that `root` names, verified by its digest; `shown_by` as for `read_blobs`."""
    from nsml.content.digests import verify

    blobs = read_blobs(client, root, (), shown_by=shown_by)
    async with aclosing(blobs):
        async for _, data in blobs:
            verify(root, data)
            return data
    raise PlatformFault(f"the manifest {root[:16]} came back empty")
