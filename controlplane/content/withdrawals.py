"""Counters of withdrawn access to an owner's content, watched by all control planes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.core.compare_and_swap import commit_at, store_unavailable
from controlplane.store.interface import Put, StoreError, unchanged
from controlplane.stored import etcd_codec

if TYPE_CHECKING:
    from controlplane.state.live_state import LiveState
    from controlplane.store.interface import KeyValueStore


class Withdrawals:
    """A counter per owner: no user can invalidate another owner's cached access."""

    def __init__(self, store: KeyValueStore, state: LiveState) -> None:
        self._store = store
        self._state = state

    def count(self, owner: str) -> int:
        """Return the owner's withdrawals known here."""
        known = self._state.counters.get(etcd_codec.withdrawals_key(owner))
        return known.value if known else 0

    @property
    def revision(self) -> int:
        """The store revision up to which all withdrawals are known here."""
        return self._state.revision

    def written(self, owner: str) -> int:
        """Return the revision of the last withdrawal; 0: none."""
        known = self._state.counters.get(etcd_codec.withdrawals_key(owner))
        return known.revision if known else 0

    async def add(self, owner: str) -> None:
        """Count a withdrawal; return once this control plane knows all earlier writes.

        Raises:
            Unavailable: the store does not answer; the withdrawal may or may not be counted.
        """
        key = etcd_codec.withdrawals_key(owner)
        while True:
            known = self._state.counters.get(key)
            compares = [unchanged(key, known.revision if known else 0)]
            put = Put(key=key, value=etcd_codec.encode_counter(self.count(owner) + 1))
            if await commit_at(self._store, self._state, key, compares, put):
                break
        written = self._state.counters[key].revision
        try:
            await self._state.catch_up(written)
        except StoreError as error:
            raise store_unavailable() from error
