"""Fetches manifests to files.

They come from users, and are read in pieces, so that one of a million files takes little memory.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

from nodeagent.storage.reservations import Size
from nodeagent.storage.transfer import get_manifest, uninterrupted
from nsml.client.errors import Unavailable
from nsml.common.clock import inline
from nsml.content.pages import Naming
from nsml.content.stored_manifest import StoredManifest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from nodeagent.storage.reservations import Reservation, Room
    from nsml.client.rpc import Rpc
    from nsml.common.clock import Offload

_LARGE_BYTES: Final = 1 << 20
"""Larger manifests are checked with `run_long`."""
SMALL_BYTES: Final = 128 << 10
"""Up to this size work is done at once: a session waits for its code."""
_LARGE_AT_ONCE: Final = 2


class Manifests:
    """Fetches and checks the manifests of the trees of one folder.

    Args:
        room: reservations on the folder's disk.
        rpc: returns the current connection.
        run, run_long: run disk work in threads; the second for work of minutes.
        pause: awaited before an interrupted fetch is retried.
    """

    def __init__(
        self,
        room: Room,
        *,
        rpc: Callable[[], Rpc],
        run: Offload,
        run_long: Offload,
        pause: Callable[[], Awaitable[None]],
    ) -> None:
        self._room = room
        self._rpc = rpc
        self._run = run
        self._run_long = run_long
        self._pause = pause
        self._checking = asyncio.Semaphore(_LARGE_AT_ONCE)

    @asynccontextmanager
    async def opened(
        self, digest: str, staged: Path, *, may_be_there: bool = False
    ) -> AsyncIterator[StoredManifest]:
        """Open the manifest in the file `staged`, fetched if needed, and checked."""
        async with self._room.reserved(Size.of(0, 1), "") as reservation:
            if not (may_be_there and await self._run(partial(is_content, staged, digest))):
                await self._patiently(partial(self._receive, digest, staged, reservation))
            with StoredManifest(staged) as manifest:
                check = partial(manifest.check, look=reservation.look)
                is_large = manifest.encoded_bytes > _LARGE_BYTES
                run = self._run_long if is_large else self._run
                async with self._checking if is_large else nullcontext():
                    await uninterrupted(run, check, cancel=reservation.cancel)
                yield manifest

    async def _receive(self, digest: str, path: Path, reservation: Reservation) -> None:
        """Receive a manifest to a file; its size is not known in advance."""
        with path.open("wb") as file:

            def write(data: bytes) -> None:
                reservation.look()
                file.write(data)

            async def take(data: bytes) -> None:
                run = inline if len(data) <= SMALL_BYTES else self._run
                await uninterrupted(run, partial(write, data))

            await get_manifest(self._rpc(), digest, take)

    async def _patiently(self, call: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await call()
            except Unavailable:
                await self._pause()


def is_content(path: Path, digest: str) -> bool:
    """Return whether the file exists and encodes the tree of this digest."""
    try:
        with path.open("rb", buffering=0) as file:
            naming = Naming(file)
            while naming.read():
                pass
            return naming.is_named(digest)
    except FileNotFoundError:
        return False
