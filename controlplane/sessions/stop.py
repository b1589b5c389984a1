"""Stop: a durable request. Waiting sessions end at once; running ones get it with their nodes' orders."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from controlplane.domain.errors import AlreadyEnded
from controlplane.domain.lifecycle import SessionEvent, SessionState, advance, can
from controlplane.domain.values import Cause, End, Session, Stop
from controlplane.sessions.validation import check_grace, check_reason

if TYPE_CHECKING:
    from controlplane.core.compare_and_swap import SessionWriter
    from nsml.common.clock import Clock


class Stopper:
    """Records stop requests."""

    def __init__(self, *, writer: SessionWriter, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock

    async def stop(
        self, session: Session, *, asked_by: str, grace_s: float | None, reason: str
    ) -> Session:
        """Make the request durable and return the session with it.

        Raises:
            AlreadyEnded: there is nothing to stop.
            TooLarge: the reason is too long.
        """
        check_reason(reason)
        grace = session.spec.grace_s
        if grace_s is not None:
            grace = check_grace(grace_s, f"nsml stop {session.name} --grace {{}}")
        stop = Stop(grace_s=grace, reason=reason, asked_by=asked_by)
        # The first stop frees resources, and is never refused; a further one only changes a record.
        stopped = await self._writer.change(
            session.id,
            lambda now: stopped_by(now, stop, self._clock.time()),
            is_counted=session.state is SessionState.STOPPING,
        )
        if stopped is None:
            raise _already_ended(session)
        return stopped


def stopped_by(session: Session, stop: Stop, now: float) -> Session:
    """Return the session with a stop request; a later one replaces an earlier one."""
    if session.state.is_ended or session.state is SessionState.FINALIZING:
        raise _already_ended(session)
    if can(session.state, SessionEvent.STOPPED):
        message = stop.text("while it was queued" if session.attempt else "before it ran")
        return replace(
            session,
            state=advance(session.state, SessionEvent.STOPPED),
            held_cause=None,
            stop=stop.since(now),
            ended_at=now,
            end=End(cause=Cause.STOP_REQUESTED, message=message),
        )
    stop = replace(stop.since(now, session.stop), came_first=_came_first(session))
    if session.state is SessionState.STOPPING:
        return replace(session, stop=stop)
    return replace(session, state=advance(session.state, SessionEvent.STOP_REQUESTED), stop=stop)


def _came_first(session: Session) -> bool:
    if session.stop is not None:
        return session.stop.came_first
    return all(one.exit is None or one.exit.cause is Cause.COMPLETED for one in session.replicas)


def _already_ended(session: Session) -> AlreadyEnded:
    """Build the error, also for a session still sending checkpoints: that is never given up."""
    is_sending = session.state is SessionState.FINALIZING
    return AlreadyEnded(
        f"{session.name} has ended",
        why="its checkpoints are being sent, and it holds no device" if is_sending else "",
        attempt=f"nsml logs {session.name}",
    )
