"""Watches the leader, and deposes it when its host reports that it is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.leader_eviction import REFUSALS, Judge
from controlplane.store.election import depose, last_deposed
from controlplane.store.interface import CommitUnknown, StoreUnavailable
from nsml.common.concurrency import TaskGroup

if TYPE_CHECKING:
    import asyncio

    from controlplane.access.peers import Peers
    from controlplane.core.leader import LeaderLoop
    from controlplane.store.election import Leader
    from controlplane.store.interface import KeyValueStore
    from nsml.common.clock import Clock

BETWEEN_PROBES_S: Final = 0.01
AGAIN_S: Final = 0.2
"""Pause after a failed deposing."""
SILENT_S: Final = 3.0
"""A leader that is silent to us but leads for this long is alive: only unreachable from here."""


class Deposing:
    """Runs on every control plane; idle on the leader."""

    def __init__(
        self, *, store: KeyValueStore, leading: LeaderLoop, peers: Peers, clock: Clock
    ) -> None:
        self._store = store
        self._leading = leading
        self._peers = peers
        self._clock = clock
        self._judge = Judge()
        self._silent_at: float | None = None
        """When the watched leader stopped answering us."""
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Watch the current leader, until cancelled."""
        async with TaskGroup() as group:
            attending: asyncio.Task[None] | None = None
            attended: Leader | None = None
            while True:
                leader = self._leading.leader
                if leader != attended:
                    if attending is not None:
                        attending.cancel()
                    attended, attending = leader, None
                    if leader is not None and not self._leading.is_own(leader):
                        attending = group.create_task(self._attend(leader), name="leader.attend")
                await self._leading.changed()

    async def _attend(self, leader: Leader) -> None:
        """Watch until another one leads, which cancels us."""
        self._silent_at = None
        while True:
            try:
                self._judge.learn(await last_deposed(self._store), self._clock.monotonic())
                await self._peers.attend(leader, lambda: self._meet(leader))
                if leader.process in self._judge.met:
                    self._suspect(leader)
                refusals = await self._refusals(leader.address)
                if refusals >= REFUSALS:
                    self._leading.suspect(leader)
                    await self._depose(leader, refusals)
                elif self._is_alive_elsewhere():
                    self._leading.trust(leader)
            except (StoreUnavailable, CommitUnknown) as error:
                self._log.warning("leader.not_deposed", reason=str(error))
            await self._clock.sleep(AGAIN_S)

    def _suspect(self, leader: Leader) -> None:
        if self._silent_at is None:
            self._silent_at = self._clock.monotonic()
        self._leading.suspect(leader)

    def _is_alive_elsewhere(self) -> bool:
        """Whether it has kept its lease for too long to be frozen."""
        silent_at = self._silent_at
        return silent_at is None or self._clock.monotonic() - silent_at >= SILENT_S

    def _meet(self, leader: Leader) -> None:
        self._silent_at = None
        self._judge.met.add(leader.process)
        self._leading.trust(leader)

    async def _refusals(self, address: str) -> int:
        """Count connection refusals in a row, at most `REFUSALS`, which are proof."""
        for number in range(REFUSALS):
            if number:
                await self._clock.sleep(BETWEEN_PROBES_S)
            if not await self._peers.refuses(address):
                return number
        return REFUSALS

    async def _depose(self, leader: Leader, refusals: int) -> None:
        if not self._judge.may_depose(leader.process, refusals, self._clock.monotonic()):
            return
        if await depose(self._store, leader, last=self._judge.last_revision):
            self._judge.accused.add(leader.process)
            self._log.warning("leader.deposed", member=leader.member, term=leader.term)
