"""Preemption: a running session saves, releases its resources, and resumes later.

It is stopped with the cause PREEMPTED: its program gets a notice, then SIGTERM, then its grace period.
`replica_reports.py` requeues it once its replicas are gone, whatever its `--retry`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import AlreadyEnded, StateConflict
from controlplane.domain.lifecycle import SessionEvent, SessionState, advance
from controlplane.domain.values import Cause, Session, Stop
from controlplane.scheduler import NOTICE_S, may_give_way
from controlplane.scheduler.explain import REQUEUED_BY
from controlplane.sessions.validation import check_reason
from controlplane.state.replica_reports import released

if TYPE_CHECKING:
    from controlplane.core.compare_and_swap import SessionWriter
    from controlplane.domain.plan import Preemption
    from controlplane.state.draft import Draft
    from nsml.common.clock import Clock

_CAN_LEAVE: Final = frozenset({SessionState.PREPARING, SessionState.RUNNING, SessionState.PAUSED})
"""States that allow preemption: resources held, not being stopped, nodes connected."""


def give_way(draft: Draft, preemption: Preemption, now: float, *, notice_s: float) -> bool:
    """Preempt the session of a plan.

    False if the plan is outdated: the session ended, has another attempt, is being stopped, may no
    longer be preempted, or the session that needs its resources is not queued any more.
    """
    session = draft.session(preemption.session_id)
    if session is None or session.attempt != preemption.attempt:
        return False
    if session.state not in _CAN_LEAVE or not may_give_way(session):
        return False
    if preemption.for_session_id:
        waiting = draft.session(preemption.for_session_id)
        if waiting is None or waiting.state is not SessionState.QUEUED:
            return False
    draft.put_session(leaving(session, preemption.why, now, notice_s=notice_s))
    return True


def leaving(
    session: Session, reason: str, now: float, *, notice_s: float, asked_by: str = ""
) -> Session:
    """Return the session with a preempting stop; its state must allow a stop."""
    stop = Stop(
        grace_s=session.spec.grace_s,
        notice_s=notice_s,
        cause=Cause.PREEMPTED,
        reason=reason,
        asked_by=asked_by,
        asked_at=now,
    )
    return replace(session, state=advance(session.state, SessionEvent.STOP_REQUESTED), stop=stop)


@dataclass(frozen=True, slots=True)
class Requeuer:
    """Requeues sessions at users' request."""

    writer: SessionWriter
    clock: Clock
    notice_s: float = NOTICE_S

    async def requeue(
        self, session: Session, *, asked_by: str, reason: str = "", force: bool = False
    ) -> Session:
        """Have it save, and queue it again: it resumes when there is room.

        `force`: even if it cannot be resumed and starts over. A held session has nothing to save: it is released.

        Raises:
            AlreadyEnded: it has ended.
            StateConflict: it neither runs nor is held, is being stopped, or cannot be resumed (without `force`).
            TooLarge: the reason is too long.
        """
        given = check_reason(reason)
        why = f"{REQUEUED_BY}{asked_by}" + (f": {given}" if given else "")

        def decide(current: Session) -> Session:
            now = self.clock.time()
            if current.state is SessionState.HELD:
                return released(current, now)
            _check_can_leave(current, is_forced=force)
            return leaving(current, why, now, notice_s=self.notice_s, asked_by=asked_by)

        requeued = await self.writer.change(session.id, decide)
        if requeued is None:
            raise AlreadyEnded(f"{session.name} has ended", attempt=f"nsml logs {session.name}")
        return requeued


def _check_can_leave(session: Session, *, is_forced: bool) -> None:
    name = session.name
    if session.state.is_ended or session.state is SessionState.FINALIZING:
        raise AlreadyEnded(f"{name} has ended", attempt=f"nsml logs {name}")
    if session.state not in _CAN_LEAVE:
        raise StateConflict(
            f"{name} is {session.state.value}", why="only running and held sessions can be requeued"
        )
    if not is_forced and not may_give_way(session):
        raise StateConflict(
            f"{name} could not be resumed",
            why="its program has not bound functions to save and load yet (nsml.bind)",
            attempt=f"nsml requeue --force {name}   to restart it from the beginning",
        )
