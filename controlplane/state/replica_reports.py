"""Agents' reports on replicas, and their effects on sessions: starts, ends, retries."""

from __future__ import annotations

import re
import signal
from collections import Counter
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from controlplane.domain.lifecycle import ReplicaPhase, SessionEvent, SessionState, advance, is_news
from controlplane.domain.program_changes import attempt_over
from controlplane.domain.sealing import without_words
from controlplane.domain.values import (
    Cause,
    End,
    EndedAttempt,
    Exit,
    HeldCause,
    HeldDevice,
    PlacedAs,
    Replica,
    Session,
    Stop,
)
from controlplane.scheduler import can_ever_fit, request_of
from controlplane.state.progress import SAVING_RANK, durable_until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.domain.program_changes import ProgramChange
    from controlplane.state.draft import Draft

BAD_ATTEMPTS: Final = 3
"""Consecutive bad attempts before a session is HELD."""

BAD_IF_LOST_WITHIN_S: Final = 60.0
"""An attempt counts as bad if its node is lost, or silent for its lost_after, sooner after its
start than this: the session may be killing nodes, or their agents."""

BACKOFF_S: Final = 5.0
"""Wait before the attempt after the first bad one; doubled for each further one."""

SETTLED_WITHIN_S: Final = 600.0
"""Longest wait for an ended attempt's saved data: its node may never come back."""

MOST_HELD_DEVICES: Final = 1024
"""Limit for all ended attempts, in one record."""

REPORTED_TOGETHER_S: Final = 1.0
"""Exits reported within this time of the first have no known order: each node reports its own."""

_KILLED: Final = frozenset(
    128 + number
    for number in (
        signal.SIGILL,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGKILL,
        signal.SIGSEGV,
    )
)
"""Exit codes of killed programs. A program that lost its peer raises an error or aborts instead."""

LOST_PEER: Final = re.compile(
    r"(?i)(?:closed|reset) by peer|broken pipe|remote process exited|socket closed"
)
"""Matches the message of a program whose connection to another one is gone, as agents know it, too."""

_STOPPED_AT_A_LIMIT: Final = frozenset(
    {Cause.OUT_OF_MEMORY, Cause.TIME_LIMIT, Cause.LIMIT_EXCEEDED}
)

_ORDERED: Final = frozenset({Cause.STOP_REQUESTED, Cause.PREEMPTED})

_RUNNING: Final = frozenset({ReplicaPhase.RUNNING, ReplicaPhase.PAUSED})

_MAY_BE_A_DEVICES_FAULT: Final = frozenset(
    {Cause.PROGRAM_FAILED, Cause.TIME_LIMIT, Cause.NODE_LOST, Cause.LOST_AFTER}
)
_MAY_BE_A_NODES_FAULT: Final = frozenset(
    {Cause.DATA_FAILED, Cause.NODE_REFUSED, Cause.NODE_LOST, Cause.LOST_AFTER}
)

_FINAL: Final = {
    Cause.COMPLETED: SessionEvent.SUCCEEDED,
    Cause.STOP_REQUESTED: SessionEvent.STOPPED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A phase of one replica, reported by (or, for a lost one, about) its node.

    `heard_at` is set if a silent node delayed the report of its end: the leader's time at which it counts as
    reported. `placed_as` is for people, in case we do not know it; `waiting` is the wait reason during
    preparation; `image` is its container's, by digest, and `python_version` that of its Python.
    """

    node: str
    session_id: str
    attempt: int
    rank: int
    phase: ReplicaPhase
    at: float
    exit: Exit | None = None
    heard_at: float | None = None
    placed_as: PlacedAs | None = None
    waiting: str = ""
    image: str = ""
    python_version: str = ""


def apply_report(draft: Draft, report: Report, silent: frozenset[str], now: float) -> bool:
    """Apply a report. False if it is not new: repeated, or of an older attempt."""
    session = draft.session(report.session_id)
    if session is None or session.attempt != report.attempt:
        return False
    if session.settling:
        return _settled(draft, session, report)
    known = next((one for one in session.replicas if one.rank == report.rank), None)
    if known is None or known.node != report.node or not _is_news(report, known):
        return False
    # The first report of its exit counts.
    said = None if report.exit is None else without_words(session, report.exit)
    ended = known.exit or _as_ordered(session, said)
    if report.phase.is_gone and ended is None:
        ended = Exit(cause=Cause.NODE_LOST, message="its agent did not say how it ended")
    at = _as_known(draft, session, report, now)
    changed = replace(
        known,
        phase=report.phase,
        started_at=known.started_at or (at if report.phase in _RUNNING else 0.0),
        exit=ended,
        heard_at=known.heard_at or (report.heard_at or now if ended else 0.0),
        waiting=report.waiting if report.phase is ReplicaPhase.PREPARING else "",
        image=report.image or known.image,
        python_version=report.python_version or known.python_version,
    )
    replicas = tuple(changed if one.rank == report.rank else one for one in session.replicas)
    before, session = session, replace(session, replicas=replicas)
    if not report.phase.is_gone:
        draft.put_session(follow_replicas(session, silent, started_at=at))
        return True
    if all(one.phase.is_gone for one in replicas):
        if not all(one.phase.is_gone for one in before.replicas):
            session = _attempt_ended(draft, session, now)
        session = _finalized(session, now)
    else:
        session = _stop_others(follow_replicas(session, silent, started_at=now), changed, now)
    draft.put_session(session)
    return True


def _is_news(report: Report, known: Replica) -> bool:
    waits_anew = report.phase is known.phase is ReplicaPhase.PREPARING and (
        report.waiting != known.waiting
    )
    return waits_anew or is_news(report.phase, known.phase)


def _as_known(draft: Draft, session: Session, report: Report, now: float) -> float:
    """Return its time by our clock: the node's may differ, but it is not before the placement, nor in the future.

    The start times decide on time limits, and on bad attempts.
    """
    placed = [
        one.placed_at
        for one in draft.allocation(report.node).replicas
        if (one.session_id, one.attempt) == (session.id, session.attempt)
    ]
    return max([min(report.at, now), *placed])


def _settled(draft: Draft, session: Session, report: Report) -> bool:
    """Record that the data of one replica of the ended attempt is safe; after the last the wait ends."""
    if session.state is not SessionState.QUEUED or report.phase is not ReplicaPhase.FINALIZED:
        return False
    if report.rank not in session.settling:
        return False
    if session.attempts[-1].nodes[report.rank] != report.node:
        return False
    settling = session.settling - {report.rank}
    session = replace(session, settling=settling)
    draft.put_session(session if settling else replace(session, not_before=_earliest(session)))
    return True


def _as_ordered(session: Session, ended: Exit | None) -> Exit | None:
    """Return the exit with the cause of our newest order: its agent may have seen an older one, or none."""
    if ended is None or session.stop is None or ended.cause not in _ORDERED:
        return ended
    return replace(ended, cause=session.stop.cause)


def follow_replicas(session: Session, silent: frozenset[str], *, started_at: float) -> Session:
    """Return the session with its state derived from its replicas and silent nodes."""
    if session.state not in _FOLLOWING:
        return session
    event = _event(session, silent)
    if _FOLLOWING[session.state] is event:
        return session
    session = replace(session, state=advance(session.state, event))
    if event is SessionEvent.STARTED and not session.started_at:
        session = replace(session, started_at=started_at)
    return session


_FOLLOWING: Final = {
    SessionState.PREPARING: SessionEvent.HEARD_PREPARING,
    SessionState.RUNNING: SessionEvent.STARTED,
    SessionState.PAUSED: SessionEvent.PAUSED,
    SessionState.UNKNOWN: SessionEvent.FELL_SILENT,
}


def _event(session: Session, silent: frozenset[str]) -> SessionEvent:
    phases = {one.phase for one in session.replicas}
    if any(one.node in silent and not one.phase.is_gone for one in session.replicas):
        return SessionEvent.FELL_SILENT
    if phases & {ReplicaPhase.PLACED, ReplicaPhase.PREPARING}:
        return SessionEvent.HEARD_PREPARING
    return SessionEvent.PAUSED if ReplicaPhase.PAUSED in phases else SessionEvent.STARTED


def _stop_others(session: Session, ended: Replica, now: float) -> Session:
    """Stop a gang together: the first bad exit stops the rest.

    A preempted one ends with its saving replica: then the others need no more notice.
    """
    if session.stop is not None and session.stop.notice_s and ended.rank == SAVING_RANK:
        stop = replace(session.stop, notice_s=0.0).since(now, session.stop)
        return replace(session, stop=stop)
    if session.stop is not None or ended.exit is None or ended.exit.cause is Cause.COMPLETED:
        return session
    stop = Stop(
        grace_s=session.spec.grace_s,
        cause=Cause.GANG_MEMBER_FAILED,
        reason=f"replica {ended.rank} ended: {ended.exit.cause.value}",
        asked_at=now,
    )
    return replace(session, stop=stop, state=advance(session.state, SessionEvent.STOP_REQUESTED))


def _attempt_ended(draft: Draft, session: Session, now: float) -> Session:
    """Free the devices and record why the attempt ended, in the same draft."""
    placed_at, gpu, held = _release(draft, session, now)
    models = {one.uuid: one.model for replica in session.replicas for one in replica.devices}
    gpu_models = Counter[str]()
    for one in held:
        gpu_models[models.get(one.uuid, "")] += one.thousandths
    end = end_of(session)
    attempt = EndedAttempt(
        number=session.attempt,
        cause=end.cause,
        placed_at=placed_at,
        ended_at=now,
        gpu_thousandths=gpu,
        held_s=draft.state.held.held_s(session.id, session.attempt, by_wall_s=now - placed_at),
        nodes=tuple(one.node for one in sorted(session.replicas, key=lambda one: one.rank)),
        reason=_reason(session, end),
        devices=held,
        simulated=any(one.simulated for replica in session.replicas for one in replica.devices),
        gpu_models=MappingProxyType(dict(gpu_models)),
        driver_versions=_each_once(
            device.driver_version for replica in session.replicas for device in replica.devices
        ),
        python_versions=_each_once(replica.python_version for replica in session.replicas),
    )
    if session.durable is not None and session.durable.attempt == session.attempt:
        attempt = durable_until(attempt, session.durable.until)
    ran = [one.exit.started_at for one in session.replicas if one.exit and one.exit.started_at]
    devices = _failed_devices(draft, session)
    session = replace(
        session,
        attempts=(*_lighter(session.attempts, len(held)), attempt),
        changes=_changes_over(draft, session, now),
        bad_attempts=session.bad_attempts + 1 if _is_bad(session, end) else 0,
        started_at=session.started_at or min(ran, default=0.0),
    )
    if _asked_to_stop(session) or not _is_repeated(session, end, has_failed_device=bool(devices)):
        return replace(session, state=advance(session.state, SessionEvent.GONE), end=end)
    if session.bad_attempts >= BAD_ATTEMPTS:
        return replace(
            session,
            state=advance(session.state, SessionEvent.HELD),
            held_cause=HeldCause.of_bad_attempts(end.cause),
            stop=None,
            end=end,
        )
    settling = _settling(session)
    return replace(
        session,
        state=advance(session.state, SessionEvent.REQUEUED),
        replicas=(),
        stop=None,
        settling=settling,
        not_before=now + SETTLED_WITHIN_S if settling else _earliest(session),
        avoids=session.avoids | devices | _failed_nodes(draft, session, end),
    )


def _each_once(versions: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(versions) - {""}))


def _changes_over(draft: Draft, session: Session, now: float) -> tuple[ProgramChange, ...]:
    """Return the changes of its ended programs, none of them open."""
    if session.change is None:
        return session.changes
    said = draft.state.words.of(session.id, session.attempt)
    return session.with_change(attempt_over(session.change, said, now)).changes


def released(session: Session, now: float) -> Session:
    """Queue a held session again: the cause of its bad attempts is declared fixed, so they are reset."""
    settling = _settling(session)
    return replace(
        session,
        state=advance(session.state, SessionEvent.RELEASED),
        held_cause=None,
        bad_attempts=0,
        end=None,
        replicas=(),
        settling=settling,
        not_before=now + SETTLED_WITHIN_S if settling else 0.0,
    )


def _settling(session: Session) -> frozenset[int]:
    """Return ranks of the ended attempt with saved data possibly still in flight."""
    return frozenset(
        one.rank for one in session.replicas if one.phase is not ReplicaPhase.FINALIZED
    )


def _lighter(attempts: tuple[EndedAttempt, ...], more: int) -> tuple[EndedAttempt, ...]:
    """Return ended attempts; the oldest drop their devices if the record would grow too large."""
    room, kept = MOST_HELD_DEVICES - more, []
    for attempt in reversed(attempts):
        room -= len(attempt.devices)
        kept.append(attempt if room >= 0 else replace(attempt, devices=()))
    return tuple(reversed(kept))


def _reason(session: Session, end: End) -> str:
    """Return why an attempt ended, for people: a preemption's reason says more than the program's exit."""
    if end.cause is Cause.PREEMPTED and session.stop is not None:
        return session.stop.reason
    return end.message


def _earliest(session: Session) -> float:
    """Return the earliest start of the next attempt; 0: at once."""
    if not session.bad_attempts:
        return 0.0
    return session.attempts[-1].ended_at + BACKOFF_S * 2.0 ** (session.bad_attempts - 1)


def _failed_devices(draft: Draft, session: Session) -> frozenset[str]:
    """Return uuids of devices now withheld on which a replica ended badly: the fault is theirs."""
    failed = set()
    for one in session.replicas:
        node = draft.node(one.node)
        if node is not None and one.exit and one.exit.cause in _MAY_BE_A_DEVICES_FAULT:
            withheld = {device.uuid for device in node.devices if device.withheld}
            failed |= withheld & {device.uuid for device in one.devices}
    return frozenset(failed)


def _failed_nodes(draft: Draft, session: Session, end: End) -> frozenset[str]:
    """Return the node of the replica that ended the attempt, if an attempt ended like that there before.

    Empty if the other nodes could never run the session: then there is nothing better to wait for.
    """
    if end.cause not in _MAY_BE_A_NODES_FAULT:
        return frozenset()
    *before, last = session.attempts
    name = last.nodes[end.rank]
    is_again = any(one.cause in _MAY_BE_A_NODES_FAULT and name in one.nodes for one in before)
    if not is_again:
        return frozenset()
    avoids = session.avoids | {name}
    request = request_of(session.owner, session.spec, avoids=avoids)
    nodes = [stored.value for stored in draft.state.nodes.values()]
    return frozenset({name}) if can_ever_fit(nodes, request) else frozenset()


def _asked_to_stop(session: Session) -> bool:
    return session.stop is not None and session.stop.cause is Cause.STOP_REQUESTED


def _is_bad(session: Session, end: End) -> bool:
    """Whether the attempt failed early through no fault of its program."""
    if end.cause.may_not_recur:
        return True
    if end.cause not in {Cause.NODE_LOST, Cause.LOST_AFTER}:
        return False
    # Of the lost replica: the others of its gang run on until there is proof.
    return any(
        one.rank == end.rank and one.exit.ran_for_s < BAD_IF_LOST_WITHIN_S
        for one in session.replicas
        if one.exit
    )


def _is_repeated(session: Session, end: End, *, has_failed_device: bool) -> bool:
    """Whether another attempt follows (or a person must look, when too many were bad)."""
    if end.cause.may_not_recur or end.cause is Cause.PREEMPTED:
        return True
    is_to_be = (
        end.cause.is_platforms_fault
        or (has_failed_device and end.cause in _MAY_BE_A_DEVICES_FAULT)
        # Without progress it would only reach its limit again.
        or (end.cause is Cause.TIME_LIMIT and session.progress.can_go_on)
    )
    # A preemption is not its fault, and does not use up its retries.
    repeats = sum(
        1
        for one in session.attempts
        if one.cause is not Cause.PREEMPTED and not one.cause.may_not_recur
    )
    return is_to_be and repeats <= session.spec.retry_count


def end_of(session: Session) -> End:
    """Return the typed cause of an attempt with all replicas gone: the first event.

    A user's request before any bad exit: programs of a gang may fail because others are stopped,
    before they are stopped themselves. Otherwise the bad exit first reported to the leader: nodes'
    clocks may differ by more than the time between two exits. Among those reported together, a program
    that was killed or stopped at a limit: the others may have failed because it was gone. A program whose
    exception says that it lost its connection to another comes last, whenever it was reported.
    """
    bad = [one for one in session.replicas if one.exit and one.exit.cause is not Cause.COMPLETED]
    own = [one for one in bad if one.exit and one.exit.cause is not Cause.GANG_MEMBER_FAILED]
    candidates = own or bad
    if _asked_to_stop(session) and session.stop and session.stop.came_first:
        stopped = [one for one in own if one.exit and one.exit.cause is Cause.STOP_REQUESTED]
        candidates = stopped or candidates
    if not candidates:
        return End(cause=Cause.COMPLETED)
    candidates = [one for one in candidates if not _lost_peer(one)] or candidates
    since = min(one.heard_at for one in candidates)
    together = [one for one in candidates if one.heard_at <= since + REPORTED_TOGETHER_S]
    first = min(together, key=lambda one: (_may_follow(one), _when_ended(one)))
    ended = first.exit or Exit(cause=Cause.NODE_LOST)
    message = ended.message
    if ended.cause is Cause.STOP_REQUESTED and session.stop and session.stop.asked_by:
        # The node reports the reason, or how the program ended: `ended by signal 15`.
        how = message if message != session.stop.reason else ""
        message = "; ".join(filter(None, (session.stop.text(), how)))
    return End(cause=ended.cause, exit_code=ended.exit_code, rank=first.rank, message=message)


def _lost_peer(replica: Replica) -> bool:
    """Whether it failed because another process was gone, by its own exception."""
    if replica.exit is None or replica.exit.cause is not Cause.PROGRAM_FAILED:
        return False
    return LOST_PEER.search(replica.exit.message) is not None


def _may_follow(replica: Replica) -> bool:
    """Whether it may have ended because another replica was gone."""
    if replica.exit is None or replica.exit.cause in _STOPPED_AT_A_LIMIT:
        return False
    is_killed = replica.exit.cause is Cause.PROGRAM_FAILED and replica.exit.exit_code in _KILLED
    return not is_killed


def _when_ended(replica: Replica) -> tuple[float, float, int]:
    # A node reports all its replicas at once after silence: among those its clock decides.
    return (replica.heard_at, replica.exit.ended_at if replica.exit else 0.0, replica.rank)


def _release(
    draft: Draft, session: Session, now: float
) -> tuple[float, int, tuple[HeldDevice, ...]]:
    """Remove the attempt from all allocations; return its placement time, GPUs and devices."""
    placed_at, gpu = now, 0
    devices: list[HeldDevice] = []
    for name in sorted({one.node for one in session.replicas}):
        allocation = draft.allocation(name)
        kept = []
        for held in allocation.replicas:
            if held.session_id == session.id and held.attempt == session.attempt:
                placed_at = min(placed_at, held.placed_at)
                gpu += held.gpu_thousandths
                devices += [
                    HeldDevice(node=name, uuid=one.uuid, thousandths=one.thousandths)
                    for one in held.devices
                ]
            else:
                kept.append(held)
        draft.put_allocation(replace(allocation, replicas=tuple(kept)))
    return placed_at, gpu, tuple(devices)


def _finalized(session: Session, now: float) -> Session:
    """Return the session as ended, unless some of its data is still being made durable."""
    if session.state is not SessionState.FINALIZING or session.end is None:
        return session
    if any(one.phase is not ReplicaPhase.FINALIZED for one in session.replicas):
        return session
    event = _FINAL.get(session.end.cause, SessionEvent.FAILED)
    return replace(session, state=advance(session.state, event), ended_at=now)
