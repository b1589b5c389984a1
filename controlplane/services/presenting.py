"""Sessions with what viewers see beside their record: why they wait, summaries, checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.services.convert.sessions import session_message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from controlplane.domain.plan import Explanation
    from controlplane.domain.values import Session
    from controlplane.history.interface import History
    from controlplane.operations.state import LiveState
    from nsml.v1 import sessions_pb2


class Presenter:
    """Makes messages of sessions; asks the history once for many.

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

    async def session(self, session: Session) -> sessions_pb2.Session:
        """One session."""
        return (await self.sessions([session]))[0]

    async def sessions(self, sessions: Sequence[Session]) -> list[sessions_pb2.Session]:
        """Many, in the same order."""
        begun = [session.id for session in sessions if session.attempt]
        summaries = await self._history.streams.summaries(begun) if begun else {}
        counts = await self._history.catalogue.checkpoint_counts(begun) if begun else {}
        messages = []
        for session in sessions:
            stored = self._state.sessions.get(session.id)
            summary = summaries.get(session.id)
            explanation = self._waiting(session.id)
            messages.append(
                session_message(
                    session,
                    revision=stored.revision if stored else 0,
                    waiting=explanation.reason if explanation else "",
                    summary=_values(summary.step, summary.values) if summary else None,
                    checkpoint_count=counts.get(session.id, 0),
                )
            )
        return messages


def _values(step: float | None, values: dict[str, object]) -> dict[str, object]:
    return values if step is None or "step" in values else {"step": step, **values}
