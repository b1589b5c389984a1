"""Leader election, and the leader's loops."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.errors import NotLeader
from controlplane.state.committer import Deposed
from controlplane.store.election import Candidate, Leader, Leadership, LeadershipLost, watch_leader
from nsml.common.concurrency import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from controlplane.state.agent_connections import AgentConnections
    from controlplane.state.committer import Committer
    from controlplane.state.live_state import LiveState
    from controlplane.store.interface import KeyValueStore
    from nsml.common.clock import Clock

STAND_AGAIN_S: Final = 0.1
"""Pause before standing for election again."""

SENT_ON_WITHIN_S: Final = 0.5
"""How long a former leader waits for its successor, to redirect agents there."""

HANDED_OVER_S: Final = 1.0
"""How long sessions are placed on nodes connected to the predecessor, before they connect to us."""


class LeaderLoop:
    """Stands for election until it resigns; while it leads, runs the committer and the other loops.

    Args:
        elected: called when all earlier writes are known, and nothing is decided yet.
    """

    def __init__(
        self,
        *,
        store: KeyValueStore,
        state: LiveState,
        committer: Committer,
        contacts: AgentConnections,
        clock: Clock,
        candidate: Candidate,
        ttl_s: float,
        elected: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._state = state
        self._committer = committer
        self._contacts = contacts
        self._clock = clock
        self._candidate = candidate
        self._ttl_s = ttl_s
        self._elected = elected
        self._log = structlog.get_logger().bind(member=candidate.member)
        self._leadership: Leadership | None = None
        self._leader: Leader | None = None
        self._suspected = 0
        self._leaves = False
        self._changed = asyncio.Event()
        self._standing: asyncio.Task[None] | None = None

    @property
    def term(self) -> int:
        """Our term while we surely lead, else 0: check it before any action that is not fenced."""
        leadership = self._leadership
        return leadership.term if leadership is not None and leadership.is_valid else 0

    @property
    def leader(self) -> Leader | None:
        """The known leader."""
        return self._leader

    def elsewhere(self) -> Leader | None:
        """Return another leader; None if there is none, or it seems dead.

        None also for a dead predecessor at our own address with an unexpired lease.
        """
        leader = self._leader
        if leader is None or leader.term == self._suspected:
            return None
        return None if leader.address == self._candidate.address else leader

    def leader_address(self) -> str:
        """Return another leader's address; "" if there is none."""
        leader = self.elsewhere()
        return "" if leader is None else leader.address

    def is_own(self, leader: Leader) -> bool:
        """Return whether a leader is this process."""
        return leader.process == self._candidate.process

    def suspect(self, leader: Leader) -> None:
        """Stop redirecting to a leader that does not answer us."""
        self._suspected = leader.term
        self._tell()

    def trust(self, leader: Leader) -> None:
        """Note that a suspected leader answers after all."""
        if self._suspected == leader.term:
            self._suspected = 0
            self._tell()

    async def changed(self) -> None:
        """Return when the known leader changes."""
        await self._changed.wait()

    async def settled(self, within_s: float) -> None:
        """Return when we lead, or know another leader; or after the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not (self.term or self.elsewhere()):
                    await self.changed()

    async def run(self, loops: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """Stand, lead, stand again; until cancelled.

        Args:
            loops: each runs while this control plane leads, and is cancelled when it does not.
        """
        async with TaskGroup() as group:
            group.create_task(self._observe(), name="leader.watch")
            self._standing = group.create_task(self._stand(group, loops), name="leader.stand")

    def leave(self) -> None:
        """Stop leading, and do not stand again; pass the connected nodes to the next leader.

        Only writes to the store, at once: the rest, in `resign`, can wait for the successor.
        """
        self._leaves = True
        leadership, self._leadership = self._leadership, None
        if leadership is not None:
            word = {"connected": self._contacts.connected()}
            leadership.leave(json.dumps(word).encode())
            self._tell()

    async def resign(self) -> None:
        """Stop leading, as `leave`; return when no decisions are made here any more.

        Pending decisions are refused with NotLeader.
        """
        self.leave()
        if self._standing is not None:
            self._standing.cancel()
            await asyncio.wait([self._standing])

    async def hand_over(self) -> None:
        """Redirect the agents to the current leader."""
        links = tuple(self._contacts.links())
        if links:
            await self.settled(SENT_ON_WITHIN_S)
        for link in links:
            link.close(NotLeader(self.leader_address()))

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _observe(self) -> None:
        changes = watch_leader(self._store, clock=self._clock)
        async with contextlib.aclosing(changes) as leaders:
            async for leader in leaders:
                self._leader = leader
                self._tell()

    async def _stand(
        self, group: TaskGroup, loops: Sequence[Callable[[], Awaitable[None]]]
    ) -> None:
        while not self._leaves:
            leadership = Leadership(
                self._store, self._candidate, clock=self._clock, ttl_s=self._ttl_s
            )
            try:
                async with leadership:
                    await self._lead(leadership, loops)
            except* (LeadershipLost, Deposed, NotLeader) as losses:
                if not self._leaves:
                    reasons = [str(one) for one in losses.exceptions]
                    self._log.warning("leader.lost", reasons=reasons)
            if not self._leaves:  # after `leave`, agents are redirected later
                group.create_task(self.hand_over(), name="leader.hand_over")
                await self._clock.sleep(STAND_AGAIN_S)

    async def _lead(
        self, leadership: Leadership, loops: Sequence[Callable[[], Awaitable[None]]]
    ) -> None:
        # All writes before our election must be known before anything is decided.
        await self._state.reached(leadership.term)
        self._elected()
        # Streams of an earlier term end: each agent registers with every leader anew.
        self._contacts.close_all(NotLeader(""))
        self._contacts.restart(handed_over=_connected(leadership.inherited))
        self._leadership = leadership
        self._tell()
        async with TaskGroup() as group:
            group.create_task(self._committer.run(leadership.fence), name="leader.commit")
            group.create_task(self._trust_no_longer(), name="leader.handed_over")
            for loop in loops:
                group.create_task(_coroutine(loop), name="leader.loop")
            try:
                await asyncio.Event().wait()
            finally:
                # Before any refusal: a caller refused with NotLeader asks us for the leader.
                self._leadership = None

    async def _trust_no_longer(self) -> None:
        await self._clock.sleep(HANDED_OVER_S)
        self._contacts.look_again()


def _connected(word: bytes | None) -> frozenset[str]:
    """Return the predecessor's connected nodes, from its message."""
    return frozenset(json.loads(word).get("connected", ())) if word else frozenset()


async def _coroutine(loop: Callable[[], Awaitable[None]]) -> None:
    await loop()
