"""Being elected, and everything that only the leader does."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.errors import NotLeader
from controlplane.operations.committer import Deposed
from controlplane.store.election import Candidate, Leader, Leadership, LeadershipLost, watch_leader
from nsml.concurrency import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from controlplane.operations.committer import Committer
    from controlplane.operations.contacts import Contacts
    from controlplane.operations.state import LiveState
    from controlplane.store.interface import KeyValueStore
    from nsml.clock import Clock

AGAIN_S: Final = 0.1
"""Pause before standing for election again."""


class LeaderLoop:
    """Stands for election for ever; while it leads, runs the committer and the other loops.

    Args:
        loops: each runs while this control plane leads, and is cancelled when it does not.
    """

    def __init__(
        self,
        *,
        store: KeyValueStore,
        state: LiveState,
        committer: Committer,
        contacts: Contacts,
        clock: Clock,
        candidate: Candidate,
        ttl_s: float,
        loops: Sequence[Callable[[], Awaitable[None]]],
    ) -> None:
        self._store = store
        self._state = state
        self._committer = committer
        self._contacts = contacts
        self._clock = clock
        self._candidate = candidate
        self._ttl_s = ttl_s
        self._loops = tuple(loops)
        self._log = structlog.get_logger("loops.leader").bind(member=candidate.member)
        self._term = 0
        self._leader: Leader | None = None

    @property
    def term(self) -> int:
        """Our term while we lead, else 0."""
        return self._term

    @property
    def leader(self) -> Leader | None:
        """Who leads, as far as we know."""
        return self._leader

    def leader_address(self) -> str:
        """Where else the leader is; "" while there is none.

        Nor is it a predecessor at our own address, which died and whose lease has not ended.
        """
        if self._leader is None or self._leader.address == self._candidate.address:
            return ""
        return self._leader.address

    async def run(self) -> None:
        """Stand, lead, stand again; until cancelled."""
        async with TaskGroup() as group:
            group.create_task(self._observe(), name="leader.watch")
            group.create_task(self._stand(), name="leader.stand")

    async def _observe(self) -> None:
        changes = watch_leader(self._store, clock=self._clock)
        async with contextlib.aclosing(changes) as leaders:
            async for leader in leaders:
                self._leader = leader

    async def _stand(self) -> None:
        while True:
            leadership = Leadership(
                self._store, self._candidate, clock=self._clock, ttl_s=self._ttl_s
            )
            try:
                async with leadership:
                    await self._lead(leadership)
            except* (LeadershipLost, Deposed, NotLeader) as losses:
                self._log.warning("leader.lost", reasons=[str(one) for one in losses.exceptions])
            await self._clock.sleep(AGAIN_S)

    async def _lead(self, leadership: Leadership) -> None:
        # What was written before our election must be known before anything is decided.
        await self._state.reached(leadership.term)
        self._term = leadership.term
        self._contacts.restart()
        try:
            async with TaskGroup() as group:
                group.create_task(self._committer.run(leadership.fence), name="leader.commit")
                for loop in self._loops:
                    group.create_task(_coroutine(loop), name="leader.loop")
        finally:
            self._term = 0
            self._contacts.close_all(NotLeader(self.leader_address()))


async def _coroutine(loop: Callable[[], Awaitable[None]]) -> None:
    await loop()
