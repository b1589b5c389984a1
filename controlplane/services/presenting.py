"""Sessions with what viewers see beside their record: why they wait, summaries, checkpoints."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.identity import may_change
from controlplane.history.errors import HistoryUnavailable
from controlplane.services.convert.sessions import session_message

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from controlplane.domain.identity import UserCaller
    from controlplane.domain.plan import Explanation
    from controlplane.domain.values import Session
    from controlplane.history.interface import History
    from controlplane.history.values import Summary
    from controlplane.operations.state import LiveState
    from nsml.v1 import sessions_pb2

_log = structlog.get_logger("services.presenting")

AT_ONCE: Final = 100
"""Sessions in one turn of the event loop: a few milliseconds."""


class Presenter:
    """Makes messages of sessions, as a viewer may see them; asks the history for many at once.

    The one place where sessions become messages for users, and so where values are hidden.

    Args:
        waiting: why a queued session waits, where that is known.
    """

    def __init__(
        self,
        *,
        state: LiveState,
        history: History,
        waiting: Callable[[str], Explanation | None],
    ) -> None:
        self._state = state
        self._history = history
        self._waiting = waiting

    async def session(self, session: Session, viewer: UserCaller) -> sessions_pb2.Session:
        """One session."""
        [message] = await self._messages([session], [self._revision(session)], viewer)
        return message

    async def sessions(
        self, sessions: Sequence[Session], viewer: UserCaller
    ) -> AsyncGenerator[sessions_pb2.Session, None]:
        """Many, in the same order; others run in between."""
        # Taken at once: no revision may be newer than what is told of its session.
        revisions = [self._revision(session) for session in sessions]
        for start in range(0, len(sessions), AT_ONCE):
            end = start + AT_ONCE
            for message in await self._messages(sessions[start:end], revisions[start:end], viewer):
                yield message
            await asyncio.sleep(0)

    def _revision(self, session: Session) -> int:
        stored = self._state.sessions.get(session.id)
        return stored.revision if stored else 0

    async def _messages(
        self, sessions: Sequence[Session], revisions: Sequence[int], viewer: UserCaller
    ) -> list[sessions_pb2.Session]:
        begun = [session.id for session in sessions if session.attempt]
        summaries, counts = await self._beside(begun)
        messages = []
        for session, revision in zip(sessions, revisions, strict=True):
            summary = summaries.get(session.id)
            explanation = self._waiting(session.id)
            messages.append(
                session_message(
                    session,
                    # Who may see a session need not know what its owner has set for the program.
                    shows_values=may_change(viewer, owner=session.owner),
                    revision=revision,
                    waiting=explanation.reason if explanation else "",
                    summary=_values(summary.step, summary.values) if summary else None,
                    checkpoint_count=counts.get(session.id, 0),
                )
            )
        return messages

    async def _beside(
        self, begun: Sequence[str]
    ) -> tuple[Mapping[str, Summary], Mapping[str, int]]:
        """What the history has of sessions that have begun; without it they are shown all the same."""
        if not begun:
            return {}, {}
        try:
            summaries = await self._history.streams.summaries(begun)
            return summaries, await self._history.catalogue.checkpoint_counts(begun)
        except HistoryUnavailable as error:
            _log.warning("presenting.without_history", reason=error.why or error.message)
            return {}, {}


def _values(step: float | None, values: dict[str, object]) -> dict[str, object]:
    return values if step is None or "step" in values else {"step": step, **values}
