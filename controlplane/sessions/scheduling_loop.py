"""The scheduling loop: changes update the index; a plan is made in one go, then committed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from controlplane.domain.changes import (
    AllocationChanged,
    NodeChanged,
    NodeRemoved,
    ProjectChanged,
    ProjectRemoved,
    SessionChanged,
    SessionRemoved,
    TeamQuotaChanged,
    TeamQuotaRemoved,
)
from controlplane.scheduler import RULES, ClusterIndex, QueueQueries, Rules
from controlplane.sessions.placement import place
from controlplane.sessions.preempt import give_way
from controlplane.state.committer import MOST_DECISIONS
from nsml.common.concurrency import TaskGroup, beside_each_other

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from controlplane.domain.changes import Change
    from controlplane.domain.plan import Explanation, Placement, Plan, Preemption
    from controlplane.domain.values import Session
    from controlplane.state.committer import Committer
    from controlplane.state.draft import Draft
    from controlplane.state.live_state import LiveState
    from controlplane.state.subscriptions import Subscription
    from nsml.common.clock import Clock

RETOLD_EVERY_S: Final = 2.0
"""Interval of announcing changed wait reasons to watchers."""
AFRESH_EVERY_S: Final = 30.0
"""Interval of comparing the index with the live state, in case it missed a change."""
PLACED_AT_ONCE: Final = 3 * MOST_DECISIONS
"""Placements waiting for the committer together: agents' reports and registrations wait for no more of them,
however many a plan has."""
MOST_PLACED: Final = 2_000
"""Placements per plan, about one second of commits: new changes wait no longer than that."""
AGAIN_S: Final = 0.1
"""Pause after a plan without a valid placement: its input is outdated. Also the shortest wait of sessions that
cannot start yet."""
COMPARED_AT_ONCE: Final = 500
"""Records compared or announced before other tasks run."""


class Renewal(Protocol):
    """Renews some sessions before they start."""

    def must_renew(self, session: Session) -> bool:
        """Whether a session needs this before it starts."""

    async def renew_before_start(self, sessions: Iterable[Session]) -> Mapping[str, float]:
        """Renew such sessions; return waits, in seconds by id, of those not ready yet. Blocks only on the store."""


class Decided(NamedTuple):
    """The outcome of a plan.

    Attributes:
        placed: sessions with committed placements.
        leaving: preempted sessions.
        put_off: earliest starts, in Unix seconds, of sessions that cannot start yet.
    """

    placed: set[str]
    leaving: set[str]
    put_off: Mapping[str, float]


class Scheduling:
    """The scheduling loop; also explains why sessions wait.

    Args:
        renewal: None: no session needs it.
        clock: its wall clock must never jump (`SteadyClock`), since decisions use it.

    Attributes:
        repaired: records corrected by the comparison.
        placed, dropped, preempted: since the start: gangs placed, gangs with outdated placements
            (not those that could not start yet), and preempted sessions.
    """

    def __init__(
        self,
        *,
        state: LiveState,
        committer: Committer,
        clock: Clock,
        rules: Rules = RULES,
        renewal: Renewal | None = None,
    ) -> None:
        self._renewal = renewal
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
        """Return why a queued session currently waits."""
        if self._answers is None:
            return None
        return self._answers.explanation(session_id, self._clock.time())

    def known(self) -> QueueQueries | None:
        """Return queries on the queue and on free capacity; None if another control plane leads.

        They include changes since the last plan, even while that is being executed.
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
                        done = await self._carry_out(plan)
                        index.apply(changes.drain(), revision=self._state.revision)
                        dropped = {one.session_id for one in plan.placements} - done.placed
                        staying = {one.session_id for one in plan.preemptions} - done.leaving
                        index.settle(plan, dropped, staying, done.put_off)
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
        """Correct the index by the live state: a missed change must not block anything."""
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
        """Yield the live state as changes, and removals of what is gone. Other tasks may run in between."""
        state = self._state
        for name in list(state.nodes):
            if stored := state.nodes.get(name):
                yield NodeChanged(node=stored.value)
        for name in list(state.allocations):
            if held := state.allocations.get(name):
                yield AllocationChanged(allocation=held.value)
        yield from self._projects(index)
        yield from self._team_quotas(index)
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

    def _team_quotas(self, index: ClusterIndex) -> Iterator[Change]:
        for quota in list(self._state.team_quotas.values()):
            yield TeamQuotaChanged(quota=quota.value)
        for one in index.cluster.team_quotas():
            if one not in self._state.team_quotas:
                yield TeamQuotaRemoved(competition_id=one)

    async def _retell(self) -> None:
        """Announce sessions with changed wait reasons to viewers."""
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
        """Announce sessions with their first wait reason to viewers."""
        for session_id in index.cluster.newcomers():
            if self._state.has_viewers:
                self._tell(session_id)

    def _tell(self, session_id: str) -> None:
        why = self.waiting(session_id)
        if why is not None and self._told.get(session_id) != why.reason:
            self._told[session_id] = why.reason
            self._state.announce(session_id)

    async def _carry_out(self, plan: Plan) -> Decided:
        """Commit decisions without renewals at once, and the rest once its sessions are renewed."""
        if not plan.placements and not plan.preemptions:
            return Decided(set(), set(), {})
        must = self._must_renew(plan)
        async with beside_each_other() as group:
            renewing = group.create_task(self._renew(must.values()))
            placed, leaving = await self._decide(plan, lambda one: one not in must)
        waits = renewing.result()
        if ready := must.keys() - waits.keys():
            more_placed, more_leaving = await self._decide(plan, ready.__contains__)
            placed |= more_placed
            leaving |= more_leaving
        now = self._clock.time()
        put_off = {one: now + max(wait, AGAIN_S) for one, wait in waits.items()}
        done = Decided(placed, leaving, put_off)
        await self._count(plan, done)
        return done

    def _must_renew(self, plan: Plan) -> dict[str, Session]:
        """Return sessions that need renewal, among those placed and those that others are preempted for."""
        if self._renewal is None:
            return {}
        placed = (one.session_id for one in plan.placements)
        served = (one.for_session_id for one in plan.preemptions)
        found = (self._state.session(one) for one in (*placed, *served))
        return {one.id: one for one in found if one is not None and self._renewal.must_renew(one)}

    async def _renew(self, sessions: Collection[Session]) -> Mapping[str, float]:
        """Renew; return waits, in seconds by id, of sessions that cannot start yet."""
        if self._renewal is None or not sessions:
            return {}
        return await self._renewal.renew_before_start(sessions)

    async def _decide(self, plan: Plan, is_for: Callable[[str], bool]) -> tuple[set[str], set[str]]:
        """Commit a plan for some sessions; return those placed, and those preempted for them."""
        placements = [one for one in plan.placements if is_for(one.session_id)]
        preemptions = [one for one in plan.preemptions if is_for(one.for_session_id)]
        stand, leave = await asyncio.gather(
            self._place_all(placements),
            asyncio.gather(*[self._preempt(one) for one in preemptions]),
        )
        placed = {one.session_id for one, stands in zip(placements, stand, strict=True) if stands}
        leaving = {one.session_id for one, leaves in zip(preemptions, leave, strict=True) if leaves}
        return placed, leaving

    async def _count(self, plan: Plan, done: Decided) -> None:
        """Count and log the outcome of a plan; pause if all its placements were outdated."""
        staying = [
            one
            for one in plan.preemptions
            if one.session_id not in done.leaving and one.for_session_id not in done.put_off
        ]
        if staying:
            self._log.info("preemptions.dropped", count=len(staying))
        dropped = {one.session_id for one in plan.placements} - done.placed - done.put_off.keys()
        self.placed += len(done.placed)
        self.dropped += len(dropped)
        self.preempted += len(done.leaving)
        if dropped:
            self._log.info("plan.dropped", gangs=len(dropped))
            if not done.placed:
                await self._clock.sleep(AGAIN_S)

    async def _place_all(self, placements: Sequence[Placement]) -> list[bool]:
        """Return whether each was committed."""
        done: list[bool] = []
        coming: deque[asyncio.Future[list[bool]]] = deque()
        try:
            for first in range(0, len(placements), MOST_DECISIONS):
                if len(coming) * MOST_DECISIONS >= PLACED_AT_ONCE:
                    # The others keep the committer busy meanwhile.
                    done += await coming.popleft()
                some = placements[first : first + MOST_DECISIONS]
                decisions = [partial(self._place, one) for one in some]
                coming.append(asyncio.ensure_future(self._committer.decide_all(decisions)))
            while coming:
                done += await coming.popleft()
        finally:
            for one in coming:
                one.cancel()
        return done

    def _place(self, placement: Placement, draft: Draft) -> bool:
        return place(draft, placement, self._clock.time())

    async def _preempt(self, preemption: Preemption) -> bool:
        decide = partial(
            give_way,
            preemption=preemption,
            now=self._clock.time(),
            notice_s=self._rules.notice_s,
        )
        return await self._committer.decide(decide)
