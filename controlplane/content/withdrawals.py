"""How often users lost the right to content that they had been shown: a counter that all control planes watch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.core.compare_and_swap import commit_at
from controlplane.domain.errors import RETRY_AFTER_S, Unavailable
from controlplane.store.interface import Put, StoreError, unchanged
from controlplane.stored import etcd_codec

if TYPE_CHECKING:
    from controlplane.state.live_state import LiveState
    from controlplane.store.interface import KeyValueStore

_KEY = etcd_codec.withdrawals_key()


class Withdrawals:
    """The counter."""

    def __init__(self, store: KeyValueStore, state: LiveState) -> None:
        self._store = store
        self._state = state

    def count(self) -> int:
        """As far as this control plane has heard."""
        known = self._state.counters.get(_KEY)
        return known.value if known else 0

    async def add(self) -> None:
        """Count one more; returns once this control plane knows all that was written before.

        Raises:
            Unavailable: the store does not answer, and it may or may not be counted.
        """
        while True:
            known = self._state.counters.get(_KEY)
            compares = [unchanged(_KEY, known.revision if known else 0)]
            put = Put(key=_KEY, value=etcd_codec.encode_counter(self.count() + 1))
            if await commit_at(self._store, self._state, _KEY, compares, put):
                break
        written = self._state.counters[_KEY].revision
        try:
            await self._state.catch_up(written)
        except StoreError as error:
            raise Unavailable(
                "the platform's store does not answer",
                attempt="the same again",
                retry_after_s=RETRY_AFTER_S,
            ) from error
