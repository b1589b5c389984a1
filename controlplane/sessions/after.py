"""Sessions that start after others: the leader queues them once those have ended, or stops them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.after import Verdict, together, verdict
from controlplane.domain.errors import NsmlError
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import HeldCause, Stop
from controlplane.sessions.stop import stopped_by
from controlplane.state.replica_reports import released

if TYPE_CHECKING:
    from controlplane.domain.values import After, Session
    from controlplane.history.sql.history import History
    from controlplane.state.committer import Committer
    from controlplane.state.draft import Draft
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Clock

LOOK_EVERY_S: Final = 1.0

_log = structlog.get_logger()


class AfterOthers:
    """The loop."""

    def __init__(
        self, *, state: LiveState, history: History, committer: Committer, clock: Clock
    ) -> None:
        self._state = state
        self._history = history
        self._committer = committer
        self._clock = clock

    async def run(self) -> NoReturn:
        """Look every second, until cancelled."""
        while True:
            try:
                await self.look()
            except NsmlError as error:
                _log.warning("session.after_not_looked_at", reason=f"{error.message}: {error.why}")
            await self._clock.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Queue held sessions with all conditions met, and stop those with conditions that can never be met.

        Raises:
            NotLeader: another control plane decides.
            HistoryUnavailable: the end state of one of the others cannot be read now.
        """
        waiting = [
            stored.value
            for stored in self._state.sessions.values()
            if waits_for_others(stored.value)
        ]
        known: dict[str, SessionState | None] = {}
        decisions = []
        for session in waiting:
            for one in session.spec.after:
                if one.session_id not in known:
                    known[one.session_id] = await self._state_of(one)
            states = [(one, known[one.session_id]) for one in session.spec.after]
            match together(verdict(one, state) for one, state in states):
                case Verdict.MET:
                    decisions.append(partial(_queue, seen=session, now=self._clock.time()))
                case Verdict.NEVER:
                    why = unmet_words(states)
                    decisions.append(partial(_stop, seen=session, why=why, now=self._clock.time()))
        if decisions:
            await self._committer.decide_all(decisions)

    async def _state_of(self, after: After) -> SessionState | None:
        """Return the state of one of the others; None if it was removed."""
        # In this order: an ended session is in the history before it leaves the live state.
        if (live := self._state.session(after.session_id)) is not None:
            return live.state
        row = await self._history.catalogue.session(after.session_id)
        return None if row is None else SessionState(row.state)


def waits_for_others(session: Session) -> bool:
    """Whether it is held until others have ended."""
    return session.state is SessionState.HELD and session.held_cause is HeldCause.AFTER


def unmet_words(states: list[tuple[After, SessionState | None]]) -> str:
    """Say why it never starts: the first session that did not succeed."""
    after, state = next(pair for pair in states if verdict(*pair) is Verdict.NEVER)
    if state is None:
        return f"it starts after the success of {after.name}, which was removed"
    return f"it starts after the success of {after.name}, which {_ENDED[state]}"


_ENDED: Final = {SessionState.FAILED: "failed", SessionState.STOPPED: "was stopped"}


def _queue(draft: Draft, seen: Session, now: float) -> None:
    session = draft.session(seen.id)
    if session is not None and waits_for_others(session):
        draft.put_session(released(session, now))


def _stop(draft: Draft, seen: Session, why: str, now: float) -> None:
    session = draft.session(seen.id)
    if session is not None and waits_for_others(session):
        stop = Stop(grace_s=session.spec.grace_s, reason=why, asked_by="nsml")
        draft.put_session(stopped_by(session, stop, now))
        _log.info("session.never_starts", session=session.name, reason=why)
