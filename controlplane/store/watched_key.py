"""One key of the store, followed; many of them at once: `TableCache`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from controlplane.store.interface import Compacted, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from controlplane.store.interface import KeyValue, KeyValueStore
    from nsml.common.clock import Clock

RETRY_S: Final = 0.1


async def follow_key(
    store: KeyValueStore, key: str, *, clock: Clock
) -> AsyncGenerator[KeyValue | None, None]:
    """Yield a key as it is now, and then as each change leaves it; None while it is not there.

    Outages are waited out.

    Raises:
        StoreReplaced, StoreRefused: nothing more can be followed.
    """
    while True:
        try:
            listing = await store.list(key)
            yield next((item for item in listing.items if item.key == key), None)
            # From now on: the history since the key was written may be gone.
            async with contextlib.aclosing(store.watch(key, listing.revision + 1)) as batches:
                async for batch in batches:
                    for event in batch.events:
                        if event.key == key:
                            yield event.item
        except (Compacted, StoreUnavailable):
            await clock.sleep(RETRY_S)
