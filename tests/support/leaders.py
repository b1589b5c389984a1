"""Who leads, as those who are told of it see it."""

from contextlib import aclosing

from controlplane.store.election import Leader, watch_leader
from controlplane.store.interface import KeyValueStore
from nsml.common.clock import Clock, SystemClock


async def current_leader(store: KeyValueStore, clock: Clock | None = None) -> Leader | None:
    async with aclosing(watch_leader(store, clock=clock or SystemClock())) as leaders:
        return await anext(leaders)
