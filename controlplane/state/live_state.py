"""The live state, as known to this control plane: fed by one watch, and earlier by its own writes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.changes import SessionChanged
from controlplane.scheduler.fair_share import HALF_LIFE_S
from controlplane.state.state_cache import StateCache
from controlplane.state.subscriptions import EVERYTHING, VIEWED
from controlplane.store.interface import Compacted, NoSpace, StoreUnavailable
from controlplane.stored import etcd_codec

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from controlplane.domain.values import Session
    from controlplane.state.subscriptions import Subscription, Wanted
    from controlplane.store.interface import KeyValueStore
    from nsml.common.clock import Clock

RELIST_EVERY_S: Final = 60.0
"""Interval of listing the whole store, in case the watch lost events."""

RETRY_S: Final = 0.5
"""Pause after the store did not answer a listing."""

ON_ITS_WAY_S: Final = 0.1
"""How long to wait for the watch to reach a revision before asking the store whether it exists."""


class LiveState(StateCache):
    """The state cache, kept up to date by following the store.

    Attributes:
        repaired: values corrected by a listing because the watch had missed a change.
    """

    def __init__(
        self, store: KeyValueStore, clock: Clock, *, half_life_s: float = HALF_LIFE_S
    ) -> None:
        super().__init__(clock.monotonic, half_life_s=half_life_s)
        self._store = store
        self._clock = clock
        self._log = structlog.get_logger()
        self.repaired = 0
        self._advanced = asyncio.Event()

    def subscribed(
        self, *keys: str, wants: Wanted | None = None
    ) -> AbstractContextManager[Subscription]:
        """Subscribe to changes from now on, of all keys or of these; VIEWED adds announcements."""
        return self.subscriptions.subscribed(*(keys or (EVERYTHING,)), wants=wants)

    @property
    def has_viewers(self) -> bool:
        """Whether anybody subscribes to announcements."""
        return self.subscriptions.has(VIEWED)

    def announce(self, session_id: str) -> None:
        """Announce to viewers a change of data beside a session's record."""
        session = self.session(session_id)
        if session is not None:
            change = SessionChanged(session=session)
            self.subscriptions.tell_only(VIEWED, etcd_codec.session_key(session_id), change)

    def reach(self, revision: int) -> None:
        """Note that the watch has reported everything up to a revision."""
        super().reach(revision)
        self._advanced.set()

    async def reached(self, revision: int) -> None:
        """Wait until everything up to a revision has been seen."""
        while self.revision < revision:
            self._advanced.clear()
            await self._advanced.wait()

    async def catch_up(self, revision: int) -> bool:
        """Wait until everything up to a revision has been seen; False if the store has no such revision.

        It has none if it was restored from a backup, or is another store.

        Raises:
            StoreError: the store does not respond.
        """
        try:
            async with asyncio.timeout(ON_ITS_WAY_S):
                await self.reached(revision)
        except TimeoutError:
            if revision > (await self._store.list(etcd_codec.CLUSTER)).revision:
                return False
            # Others may write to the same etcd, and our watch does not report their revisions.
            # It reports our own write after them.
            with contextlib.suppress(NoSpace):
                await self._store.commit(etcd_codec.PROBE)
            await self.reached(revision)
        return True

    async def renewed(self, session_id: str) -> Session | None:
        """Read the live session from the store, which may be ahead of the watch.

        Raises:
            StoreError: the store does not respond.
        """
        item = await self._store.get(etcd_codec.session_key(session_id))
        if item is None:
            return None
        self.put(item.key, item.value, item.mod_revision)
        return self.session(session_id)

    async def renewed_by_name(self, name: str) -> Session | None:
        """Like `renewed`, by full name."""
        item = await self._store.get(etcd_codec.name_key(name))
        return None if item is None else await self.renewed(etcd_codec.decode_pointer(item.value))

    async def follow(self) -> None:
        """List, then watch, forever; regular listings repair what a watch lost.

        It lists at the revision already seen: with a later one, a session that ended and left in between would
        disappear without its end.
        """
        follows = False
        while True:
            try:
                await self._relist(self.revision if follows else 0)
                follows = True
                await self._watch()
            except Compacted:
                self._log.info("state.compacted", revision=self.revision)
                self.accounts.read_all_again()
                follows = False
            except StoreUnavailable as error:
                self._log.warning("state.unavailable", error=str(error))
                await self._clock.sleep(RETRY_S)

    async def _relist(self, revision: int) -> None:
        """Correct the state as of a revision; 0: as of now, with a gap after the revision already seen."""
        known = self.revision
        listing = await self._store.list("", revision=revision)
        for item in listing.items:
            if self.put(item.key, item.value, item.mod_revision) and item.mod_revision <= known:
                self._repair(item.key)
        present = {item.key for item in listing.items}
        for key, written in list(self.keys()):
            if key not in present and written <= listing.revision:
                self.delete(key, listing.revision)
                if written <= known:
                    self._repair(key)
        if not revision:
            self.begin_anew(listing.revision)
        self.reach(listing.revision)

    def _repair(self, key: str) -> None:
        self.repaired += 1
        self._log.warning("state.repaired", key=key)

    async def _watch(self) -> None:
        until = self._clock.monotonic() + RELIST_EVERY_S
        async with contextlib.aclosing(self._store.watch("", self.revision + 1)) as batches:
            async for batch in batches:
                for event in batch.events:
                    if event.item is None:
                        self.delete(event.key, batch.revision)
                    else:
                        self.put(event.key, event.item.value, event.item.mod_revision)
                self.reach(batch.revision)
                if self._clock.monotonic() > until:
                    return
