"""Load, decide, apply: the index is kept by changes, the plan is made at once and committed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.changes import (
    AllocationChanged,
    NodeChanged,
    NodeRemoved,
    ProjectChanged,
    ProjectRemoved,
    SessionChanged,
    SessionRemoved,
)
from controlplane.scheduler import RULES, ClusterIndex, QueueQueries, Rules
from controlplane.sessions.placement import place
from controlplane.sessions.preempt import give_way
from controlplane.state.committer import MOST_DECISIONS
from nsml.common.concurrency import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Iterator, Sequence

    from controlplane.domain.changes import Change
    from controlplane.domain.plan import Explanation, Placement, Plan, Preemption
    from controlplane.domain.values import Session
    from controlplane.state.committer import Committer
    from controlplane.state.draft import Draft
    from controlplane.state.live_state import LiveState
    from controlplane.state.subscriptions import Subscription
    from nsml.common.clock import Clock

RETOLD_EVERY_S: Final = 2.0
"""How often a changed reason to wait is shown to those who watch."""
AFRESH_EVERY_S: Final = 30.0
"""How often the index is compared with what is live, against a change that it was not told."""
PLACED_AT_ONCE: Final = 3 * MOST_DECISIONS
"""Placements that wait for the committer together: what agents report, and agents that register, wait for no
more of them, however many a plan has."""
MOST_PLACED: Final = 2_000
"""Placements of one plan, about a second's commits: what happens meanwhile waits no longer to be looked at."""
AGAIN_S: Final = 0.1
"""Pause after a plan of which nothing stood: what it was made of and what is there differ."""
COMPARED_AT_ONCE: Final = 500
"""Records that are compared, or told of, before others have a turn."""


class Scheduling:
    """The scheduling loop; knows why what waits waits.

    Args:
        renew: called before sessions start; the ids of those that cannot start now.
        clock: one whose wall clock never jumps (`SteadyClock`), as what is decided goes by it.

    Attributes:
        repaired: records that the comparison had to correct.
        placed, dropped, preempted: gangs since the start whose placement was committed, those whose
            placement did not stand any more, and sessions that were told to give way.
    """

    def __init__(
        self,
        *,
        state: LiveState,
        committer: Committer,
        clock: Clock,
        rules: Rules = RULES,
        renew: Callable[[Sequence[Session]], Awaitable[Container[str]]] | None = None,
    ) -> None:
        self._renew = renew
        self._rules = rules
        self._state = state
        self._committer = committer
        self._clock = clock
        self._log = structlog.get_logger()
        self._index: ClusterIndex | None = None
        self._answers: QueueQueries | None = None
        self._changes: Subscription | None = None
        self._told: dict[str, str] = {}
        self._compared_at = 0.0
        self.repaired = self.placed = self.dropped = self.preempted = 0

    def waiting(self, session_id: str) -> Explanation | None:
        """Why a queued session waits, as things are now."""
        if self._answers is None:
            return None
        return self._answers.explanation(session_id, self._clock.time())

    def known(self) -> QueueQueries | None:
        """What is known by now of the queue and of what is free; None where somebody else decides.

        It has what happened since the last plan, also while that is being carried out.
        """
        if self._index is not None and self._changes is not None:
            self._index.apply(self._state.used(self._clock.time()))
            self._index.apply(self._changes.drain(), revision=self._state.revision)
        return self._answers

    async def run(self) -> None:
        """Plan whenever something changed, until cancelled."""
        try:
            async with TaskGroup() as group:
                with self._state.subscribed() as changes:
                    index = self._index = ClusterIndex.of(
                        self._state.everything(), self._rules, revision=self._state.revision
                    )
                    self._answers = QueueQueries(index)
                    self._changes = changes
                    self._compared_at = self._clock.monotonic()
                    group.create_task(self._retell(), name="scheduling.retell")
                    while True:
                        now = self._clock.time()
                        index.apply(self._state.used(now))
                        plan = index.plan(now, MOST_PLACED)
                        self._tell_newcomers(index)
                        dropped, staying = await self._carry_out(plan)
                        index.apply(changes.drain(), revision=self._state.revision)
                        index.settle(plan, dropped, staying)
                        await self._next(index, changes)
        finally:
            self._index = self._answers = self._changes = None
            self._told = {}

    async def _next(self, index: ClusterIndex, changes: Subscription) -> None:
        """Wait until a plan may differ from the last one."""
        while not index.is_due(self._clock.time()):
            left = self._compared_at + AFRESH_EVERY_S - self._clock.monotonic()
            if left <= 0:
                await self._compare(index, changes)
                continue
            if (due := index.due()) is not None:
                left = min(left, max(due - self._clock.time(), 0.0))
            taken: list[Change] = []
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    taken = await changes.take()
            index.apply(taken, revision=self._state.revision)

    async def _compare(self, index: ClusterIndex, changes: Subscription) -> None:
        """Let the index have what is live: nothing may hang because a change was missed."""
        self._compared_at = self._clock.monotonic()
        for count, change in enumerate(self._everything(index), 1):
            if index.cluster.lacks(change):
                self.repaired += 1
                self._log.warning("scheduling.repaired", change=type(change).__name__)
                index.apply([change])
            if count % COMPARED_AT_ONCE == 0:
                await asyncio.sleep(0)
            index.apply(changes.drain(), revision=self._state.revision)

    def _everything(self, index: ClusterIndex) -> Iterator[Change]:
        """What is live, as changes, and the end of what is not. May take turns with others."""
        state = self._state
        for name in list(state.nodes):
            if stored := state.nodes.get(name):
                yield NodeChanged(node=stored.value)
        for name in list(state.allocations):
            if held := state.allocations.get(name):
                yield AllocationChanged(allocation=held.value)
        yield from self._projects(index)
        for session_id in list(state.sessions):
            if known := state.session(session_id):
                yield SessionChanged(session=known)
        for name in [one for one in index.cluster.nodes() if one not in state.nodes]:
            yield NodeRemoved(name=name)
        for session in [one for one in index.cluster.queued() if state.session(one.id) is None]:
            yield SessionRemoved(session_id=session.id)

    def _projects(self, index: ClusterIndex) -> Iterator[Change]:
        for project in list(self._state.projects.values()):
            yield ProjectChanged(project=project.value)
        for name in [one for one in index.cluster.projects() if self._state.project(one) is None]:
            yield ProjectRemoved(name=name)

    async def _retell(self) -> None:
        """Let viewers look again where a reason to wait has changed."""
        while True:
            await self._clock.sleep(RETOLD_EVERY_S)
            if not self._state.has_viewers or self._index is None:
                self._told = {}
                continue
            for count, session in enumerate(list(self._index.cluster.queued()), 1):
                self._tell(session.id)
                if count % COMPARED_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _tell_newcomers(self, index: ClusterIndex) -> None:
        """Let viewers look at those for whom it was found for the first time that they wait."""
        for session_id in index.cluster.newcomers():
            if self._state.has_viewers:
                self._tell(session_id)

    def _tell(self, session_id: str) -> None:
        why = self.waiting(session_id)
        if why is not None and self._told.get(session_id) != why.reason:
            self._told[session_id] = why.reason
            self._state.announce(session_id)

    async def _carry_out(self, plan: Plan) -> tuple[set[str], set[str]]:
        """The sessions whose placements did not stand, and those that do not give way."""
        if not plan.placements and not plan.preemptions:
            return set(), set()
        done, left = await asyncio.gather(
            self._place_all(plan.placements),
            asyncio.gather(*[self._preempt(one) for one in plan.preemptions]),
        )
        staying = {
            preemption.session_id
            for preemption, leaves in zip(plan.preemptions, left, strict=True)
            if not leaves
        }
        if staying:
            self._log.info("preemptions.dropped", count=len(staying))
        dropped = {
            placement.session_id
            for placement, stands in zip(plan.placements, done, strict=True)
            if not stands
        }
        self.placed += sum(done)
        self.dropped += len(dropped)
        self.preempted += sum(left)
        if dropped:
            self._log.info("plan.dropped", gangs=len(dropped))
            if not any(done):
                await self._clock.sleep(AGAIN_S)
        return dropped, staying

    async def _place_all(self, placements: Sequence[Placement]) -> list[bool]:
        """Whether each stands."""
        unready = await self._unready(placements)
        done: list[bool] = []
        coming: deque[asyncio.Future[list[bool]]] = deque()
        try:
            for first in range(0, len(placements), MOST_DECISIONS):
                if len(coming) * MOST_DECISIONS >= PLACED_AT_ONCE:
                    # The others keep the committer in work meanwhile.
                    done += await coming.popleft()
                some = placements[first : first + MOST_DECISIONS]
                decisions = [partial(self._place, one, unready) for one in some]
                coming.append(asyncio.ensure_future(self._committer.decide_all(decisions)))
            while coming:
                done += await coming.popleft()
        finally:
            for one in coming:
                one.cancel()
        return done

    async def _unready(self, placements: Sequence[Placement]) -> Container[str]:
        if self._renew is None:
            return ()
        found = (self._state.session(one.session_id) for one in placements)
        return await self._renew([session for session in found if session is not None])

    def _place(self, placement: Placement, unready: Container[str], draft: Draft) -> bool:
        return placement.session_id not in unready and place(draft, placement, self._clock.time())

    async def _preempt(self, preemption: Preemption) -> bool:
        decide = partial(
            give_way,
            preemption=preemption,
            now=self._clock.time(),
            notice_s=self._rules.notice_s,
        )
        return await self._committer.decide(decide)
