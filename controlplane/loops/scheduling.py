"""Load, decide, apply: the snapshot is kept by changes, the plan is made at once and committed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.operations.placing import place
from controlplane.scheduler import schedule

if TYPE_CHECKING:
    from controlplane.domain.plan import Deferral, Explanation, Placement, Plan
    from controlplane.domain.snapshot import ClusterSnapshot
    from controlplane.operations.committer import Committer
    from controlplane.operations.draft import Draft
    from controlplane.operations.state import LiveState
    from controlplane.operations.subscriptions import Subscription
    from nsml.clock import Clock

RETOLD_EVERY_S: Final = 2.0
"""How often a changed reason to wait is shown to those who watch."""


class Scheduling:
    """The scheduling loop; knows why what waits waits."""

    def __init__(self, *, state: LiveState, committer: Committer, clock: Clock) -> None:
        self._state = state
        self._committer = committer
        self._clock = clock
        self._log = structlog.get_logger("loops.scheduling")
        self._deferrals: tuple[Deferral, ...] = ()
        self._waiting: dict[str, Explanation] | None = None
        self._told: dict[str, str] = {}
        self._told_at = 0.0

    def waiting(self, session_id: str) -> Explanation | None:
        """Why a queued session waits, as of the last plan."""
        if self._waiting is None:
            self._waiting = {one.session_id: one.explanation for one in self._deferrals}
        return self._waiting.get(session_id)

    def _defer(self, deferrals: tuple[Deferral, ...]) -> None:
        self._deferrals = deferrals
        self._waiting = None
        if self._state.has_viewers:
            self._tell(deferrals)
        else:
            self._told = {}

    def _tell(self, deferrals: tuple[Deferral, ...]) -> None:
        """Let viewers look again: at once for a first reason, now and then for another one."""
        now = self._clock.monotonic()
        is_due = now - self._told_at >= RETOLD_EVERY_S
        told = {}
        for one in deferrals:
            known = self._told.get(one.session_id)
            told[one.session_id] = known or one.explanation.reason
            if known is None or (is_due and known != one.explanation.reason):
                told[one.session_id] = one.explanation.reason
                self._state.announce(one.session_id)
        self._told = told
        if is_due:
            self._told_at = now

    async def run(self) -> None:
        """Plan whenever something changed, until cancelled."""
        try:
            with self._state.subscribed() as changes:
                snapshot = self._state.snapshot()
                while True:
                    now = self._clock.time()
                    plan = schedule(snapshot, now)
                    self._defer(plan.deferrals)
                    if plan.placements:
                        await self._commit(plan)
                    snapshot = await self._next(snapshot, changes, now)
        finally:
            self._defer(())

    async def _next(
        self, snapshot: ClusterSnapshot, changes: Subscription, now: float
    ) -> ClusterSnapshot:
        """Wait until the snapshot differs, or the time of a session that must wait has come."""
        due = [one.not_before for one in snapshot.queued.values() if one.not_before > now]
        while True:
            # From this instant: changes that concern no plan must not put it off again and again.
            left = max(min(due) - self._clock.time(), 0.0) if due else None
            try:
                async with asyncio.timeout(left):
                    taken = await changes.take()
            except TimeoutError:
                return snapshot
            changed = snapshot.apply(taken, revision=self._state.revision)
            if changed.queued and not _is_same(changed, snapshot):
                return changed
            snapshot = changed

    async def _commit(self, plan: Plan) -> None:
        done = await asyncio.gather(*[self._place(one) for one in plan.placements])
        if not all(done):
            self._log.info("plan.dropped", gangs=len(done) - sum(done))

    async def _place(self, placement: Placement) -> bool:
        def decide(draft: Draft) -> bool:
            return place(draft, placement, self._clock.time())

        return await self._committer.decide(decide)


def _is_same(new: ClusterSnapshot, old: ClusterSnapshot) -> bool:
    """Whether a plan on one is a plan on the other."""
    return new.nodes is old.nodes and new.queued is old.queued
