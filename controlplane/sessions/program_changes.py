"""Knobs, pauses and other changes of running programs: requested by users, executed by the leader."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.changes import SessionChanged
from controlplane.domain.errors import (
    AlreadyEnded,
    InvalidRequest,
    LimitReached,
    StateConflict,
    TooLarge,
)
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.program_changes import (
    ChangeKind,
    ChangePhase,
    ProgramChange,
    decide,
    withdrawn,
)
from controlplane.domain.sealing import check_enterable
from controlplane.sessions.validation import check_knob
from controlplane.state.agent_connections import Ability
from nsml.common.units import duration_text
from nsml.spec import knobs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from controlplane.core.compare_and_swap import SessionWriter
    from controlplane.domain.changes import Change
    from controlplane.domain.values import Session
    from controlplane.state.agent_connections import AgentConnections
    from controlplane.state.committer import Committer
    from controlplane.state.draft import Draft
    from controlplane.state.live_state import LiveState
    from controlplane.state.subscriptions import Subscription
    from nsml.common.clock import Clock

LOOK_EVERY_S: Final = 1.0
"""While a change is open: programs may stop reporting."""
MOST_CHANGES: Final = 200
"""Kept per session; changes that set knobs are never dropped."""
MOST_HISTORY_BYTES: Final = 256 << 10
"""In total: a session is one record of the store, and is sent to its agents with each change."""
MOST_CHECKPOINT_BYTES: Final = 512

_CAN_CHANGE: Final = frozenset({SessionState.RUNNING, SessionState.PAUSED})

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A requested change; see nsml.v1.ChangeProgramRequest."""

    kind: ChangeKind
    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    checkpoint: str = ""
    checkpoint_session: str = ""
    limit_s: float = 0.0
    at: int | None = None
    wait_s: float = knobs.USUAL_WAIT_S


class Changer:
    """Records users' changes; any control plane may."""

    def __init__(self, *, writer: SessionWriter, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock

    async def change(self, session: Session, wanted: Wanted, *, asked_by: str) -> Session:
        """Store the change as the session's last; return the session.

        Raises:
            AlreadyEnded, StateConflict: it does not run, or an earlier change is still open.
            Sealed: it is a step of a submission.
            InvalidRequest, TooLarge, LimitReached: the change is not allowed.
        """
        check_enterable(session)
        _check(wanted)
        return await self._write(session, partial(self._begun, wanted=wanted, asked_by=asked_by))

    async def withdraw(self, session: Session, *, asked_by: str) -> Session:
        """Withdraw the undecided change; return the session. Raises StateConflict if there is none."""
        check_enterable(session)
        return await self._write(session, partial(self._withdrawn, asked_by=asked_by))

    async def _write(self, session: Session, make: Callable[[Session], Session]) -> Session:
        written = await self._writer.change(session.id, make)
        if written is None:
            raise AlreadyEnded(f"{session.name} has ended", attempt=f"nsml logs {session.name}")
        return written

    def _withdrawn(self, session: Session, asked_by: str) -> Session:
        change = session.change
        if change is None or change.phase is ChangePhase.COMMIT:
            raise StateConflict(
                f"there is nothing to withdraw in {session.name}",
                why="no change waits for its step" if change is None else "it is decided already",
                attempt="" if change is None else "once it is made, set the former value again",
            )
        return session.with_change(
            withdrawn(change, f"withdrawn by {asked_by}", self._clock.time())
        )

    def _begun(self, session: Session, wanted: Wanted, asked_by: str) -> Session:
        now = self._clock.time()
        _check_runs(session)
        if wanted.kind is ChangeKind.CONTINUE:
            session = _unpaused(session, now)
        elif (change := session.change) is not None:
            raise _being_changed(session, change)
        number = session.changes[-1].number + 1 if session.changes else 1
        change = ProgramChange(
            number=number,
            kind=wanted.kind,
            attempt=session.attempt,
            asked_by=asked_by,
            asked_at=now,
            phase=ChangePhase.COMMIT if wanted.kind is ChangeKind.CONTINUE else ChangePhase.ASK,
            values=wanted.values,
            checkpoint=wanted.checkpoint,
            checkpoint_session=wanted.checkpoint_session,
            limit_s=wanted.limit_s,
            asked_at_step=wanted.at,
            wait_s=wanted.wait_s,
            since=now,
        )
        return replace(session, changes=(*_kept(session.changes, change), change))


def _check(wanted: Wanted) -> None:
    if wanted.kind is ChangeKind.SET:
        if not wanted.values:
            raise InvalidRequest("no knob is named", attempt="nsml set SESSION NAME=VALUE")
        if len(wanted.values) > knobs.MOST_AT_ONCE:
            raise TooLarge(f"{len(wanted.values)} knobs: at most {knobs.MOST_AT_ONCE} at once")
        for name, value in wanted.values.items():
            check_knob(name, value)
    if wanted.kind is ChangeKind.LOAD and not 0 < len(wanted.checkpoint.encode()) <= (
        MOST_CHECKPOINT_BYTES
    ):
        raise InvalidRequest("no checkpoint is named", attempt="nsml model ls SESSION")
    if wanted.at is not None and wanted.at > knobs.MOST_STEP:
        raise InvalidRequest(f"there is no step {wanted.at}")
    if not 0 <= wanted.wait_s <= knobs.LONGEST_WAIT_S:
        raise InvalidRequest(
            f"to wait {wanted.wait_s:g} s", why=f"{duration_text(knobs.LONGEST_WAIT_S)} at most"
        )
    if wanted.kind is ChangeKind.PAUSE and not 0 < wanted.limit_s <= knobs.LONGEST_PAUSE_S:
        raise InvalidRequest(
            f"a pause of {duration_text(wanted.limit_s) if wanted.limit_s > 1 else f'{wanted.limit_s:g} s'}",
            why=f"{duration_text(knobs.LONGEST_PAUSE_S)} is the longest",
        )


def _check_runs(session: Session) -> None:
    name = session.name
    if session.state.is_ended or session.state is SessionState.FINALIZING:
        raise AlreadyEnded(f"{name} has ended", attempt=f"nsml logs {name}")
    if session.state not in _CAN_CHANGE:
        raise StateConflict(
            f"{name} is {session.state.value}", why="only running programs can be changed"
        )


def _unpaused(session: Session, now: float) -> Session:
    """Check that it can continue; a pause not yet reached is withdrawn."""
    change = session.change
    if change is not None and change.kind is ChangeKind.PAUSE:
        return session.with_change(withdrawn(change, "it goes on", now))
    if change is not None:
        raise _being_changed(session, change)
    last = next(
        (
            one
            for one in reversed(session.changes)
            if one.kind in {ChangeKind.PAUSE, ChangeKind.CONTINUE}
            and one.phase is not ChangePhase.WITHDRAWN
        ),
        None,
    )
    was_paused = (
        last is not None and last.kind is ChangeKind.PAUSE and last.attempt == session.attempt
    )
    if session.state is not SessionState.PAUSED and not was_paused:
        raise StateConflict(f"{session.name} is not paused", why=f"it is {session.state.value}")
    return session


def _being_changed(session: Session, change: ProgramChange) -> StateConflict:
    where = f" at step {change.at:,}" if change.at is not None else ""
    return StateConflict(
        f"{session.name} is being changed",
        why=f"what {change.asked_by} asked for ({_words(change)}{where}) is not over",
        attempt=f"nsml set {session.name} --withdraw",
    )


def _kept(changes: tuple[ProgramChange, ...], new: ProgramChange) -> tuple[ProgramChange, ...]:
    """Return earlier changes, without the oldest ones that set no knobs if there is no room."""
    kept, size = list(changes), new.size + sum(one.size for one in changes)
    while len(kept) >= MOST_CHANGES or size > MOST_HISTORY_BYTES:
        least = next((one for one in kept if not one.is_set), None)
        if least is None:
            raise LimitReached(
                f"its knobs were set {len(kept)} times: a session keeps no more",
                attempt="nsml command SESSION",
            )
        kept.remove(least)
        size -= least.size
    return tuple(kept)


def _words(change: ProgramChange) -> str:
    given = " ".join(f"{name}={value}" for name, value in change.values.items())
    return " ".join(filter(None, (change.kind.value.lower(), given or change.checkpoint)))


class ProgramChanges:
    """The leader's loop: advances each open change once its processes have reported."""

    def __init__(
        self, *, state: LiveState, committer: Committer, contacts: AgentConnections, clock: Clock
    ) -> None:
        self._state = state
        self._committer = committer
        self._contacts = contacts
        self._clock = clock
        self._changes: Subscription | None = None

    def look_again(self) -> None:
        """Wake the loop: programs have reported."""
        if self._changes is not None:
            self._changes.poke()

    async def run(self) -> NoReturn:
        """Execute changes until cancelled.

        Raises:
            NotLeader: another control plane decides.
        """
        with self._state.subscribed(wants=_is_open_change) as self._changes:
            while True:
                open_ = [
                    stored.value
                    for stored in tuple(self._state.sessions.values())
                    if stored.value.changes and stored.value.change is not None
                ]
                for session in open_:
                    await self._look(session)
                try:
                    async with asyncio.timeout(LOOK_EVERY_S if open_ else None):
                        await self._changes.take()
                except TimeoutError:
                    pass

    async def _look(self, seen: Session) -> None:
        now = self._clock.time()

        def next_of(session: Session | None) -> Session | None:
            """Return the session with its change advanced; None if it does not advance."""
            if session is None or session.change is None:
                return None
            following = self._next(session, session.change, now)
            return None if following is session.change else session.with_change(following)

        def go(draft: Draft) -> Session | None:
            if (session := next_of(draft.session(seen.id))) is not None:
                draft.put_session(session)
            return session

        if next_of(seen) is None:
            return
        written = await self._committer.decide(go)
        if written is not None:
            last = written.changes[-1]
            _log.info(
                "session.change", session=written.name, number=last.number, phase=last.phase.value
            )

    def _next(self, session: Session, change: ProgramChange, now: float) -> ProgramChange:
        if change.phase is ChangePhase.ASK and (why := self._cannot(session)):
            return withdrawn(change, why, now)
        said = self._state.words.of(session.id, session.attempt)
        try:
            return decide(change, (one.rank for one in session.replicas), said, now)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            # A defect of ours, triggered by user code: it must not end the leader.
            _log.exception("session.change_undecided", session=session.name, number=change.number)
            is_decided = change.phase is ChangePhase.COMMIT
            return change if is_decided else withdrawn(change, "it could not be decided", now)

    def _cannot(self, session: Session) -> str:
        """Return why an agent of the session does not support changes; "" if all do."""
        for replica in session.replicas:
            link = self._contacts.link(replica.node)
            if link is not None and Ability.CHANGES not in link.abilities:
                return f"the nsml of node {replica.node} is too old for this: an administrator upgrades it"
        return ""


def _is_open_change(change: Change) -> bool:
    return isinstance(change, SessionChanged) and change.session.change is not None
