"""Follows one key of the store; for many keys use `TableCache`."""

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
    """Yield a key's current value, then its value after each change; None while it is absent.

    Outages are retried.

    Raises:
        StoreReplaced, StoreRefused: the store cannot be followed any more.
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
