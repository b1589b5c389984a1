"""Reclaims space when the coordination store is full, and compacts its history.

A full store refuses the lease of a new leader too, so this cannot be the leader's alone. One control plane at
a time tries: the leader at once, the others in turn while it stays full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.conditions import ConditionName
from controlplane.store.interface import NoSpace, StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from controlplane.state.conditions import Conditions
    from controlplane.store.interface import KeyValueStore
    from nsml.common.clock import Clock

LOOK_S: Final = 0.5
"""Between two checks of the conditions."""

TURN_S: Final = 4.0
"""How long a control plane waits for each one before it."""

PAUSES_S: Final = (1.0, 3.0, 10.0, 60.0)
"""Between tries; the last one repeats: live data may shrink."""

KEPT_S: Final = 300.0
"""History of the store is kept this long at least, and twice that at most."""

_FULL: Final = ConditionName.COORDINATION_FULL
_log = structlog.get_logger()


class Reclaiming:
    """Reclaims space while the store is full.

    Args:
        touch: writes a few bytes, to check at once whether that helped.
        turn: number of control planes before us, 0 if we begin.
    """

    def __init__(
        self,
        *,
        store: KeyValueStore,
        conditions: Conditions,
        touch: Callable[[], Awaitable[object]],
        turn: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._store = store
        self._conditions = conditions
        self._touch = touch
        self._turn = turn
        self._clock = clock

    async def run(self) -> NoReturn:
        """Check, and reclaim, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_S)
            if self._conditions.stands(_FULL):
                await self._heal()

    async def _heal(self) -> None:
        began = self._clock.monotonic()
        tries = 0
        while self._conditions.stands(_FULL):
            if self._clock.monotonic() - began < TURN_S * self._turn():
                await self._clock.sleep(LOOK_S)
                continue
            try:
                await self._make_room()
            except NoSpace as error:
                tries += 1
                self._in_vain(tries, error)
                await self._clock.sleep(PAUSES_S[min(tries, len(PAUSES_S)) - 1])
            except StoreError as error:  # not about the quota
                _log.warning("store.out_of_reach", reason=str(error))
                await self._clock.sleep(PAUSES_S[0])
            else:
                return

    async def _make_room(self) -> None:
        _log.warning("store.reclaiming")
        await self._store.reclaim()
        await self._touch()
        _log.warning("store.reclaimed")

    def _in_vain(self, times: int, error: NoSpace) -> None:
        _log.error("store.not_reclaimed", times=times, reason=str(error))
        often = "once" if times == 1 else f"{times} times"
        self._conditions.remark(
            _FULL,
            f"space was freed {often} without success; if the live data need more than the quota, "
            "an administrator has to raise it (--quota-backend-bytes)",
        )


class Compacting:
    """On the leader: compacts the store's older history, which etcd by default keeps for ever."""

    def __init__(self, *, store: KeyValueStore, revision: Callable[[], int], clock: Clock) -> None:
        self._store = store
        self._revision = revision
        self._clock = clock

    async def run(self) -> None:
        """Compact now and then, until cancelled."""
        while True:
            oldest = self._revision()
            await self._clock.sleep(KEPT_S)
            try:
                await self._store.compact(oldest)
            except StoreError as error:
                _log.warning("store.not_compacted", revision=oldest, reason=str(error))
            else:
                _log.info("store.compacted", revision=oldest)
