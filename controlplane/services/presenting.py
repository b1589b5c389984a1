"""Sessions with what viewers see beside their record: why they wait, summaries, checkpoints."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.identity import may_change
from controlplane.domain.lifecycle import SessionState
from controlplane.history.errors import HistoryUnavailable
from controlplane.operations.recent import Recent
from controlplane.services.convert.reported import struct
from controlplane.services.convert.sessions import session_message, usage_message
from nsml.v1 import sessions_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from controlplane.domain.identity import UserCaller
    from controlplane.domain.plan import Explanation
    from controlplane.domain.values import Session
    from controlplane.history.interface import History
    from controlplane.history.values import NodeSample, Summary
    from controlplane.operations.state import LiveState
    from controlplane.operations.usage import Usages
    from nsml.clock import Clock

_log = structlog.get_logger("services.presenting")

AT_ONCE: Final = 100
"""Sessions in one turn of the event loop: a few milliseconds."""

LATELY_S: Final = 15.0
"""What a node said of processes counts for so long."""

KEPT: Final = 4_096
"""Messages that are kept, some kilobytes each, for the next who looks at the same sessions."""


@dataclass
class _Question:
    """What several ask the history for at the same time."""

    ids: set[str] = field(default_factory=set)
    summaries: Mapping[str, Summary] | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


class Presenter:
    """Makes messages of sessions, as a viewer may see them; asks the history for many at once.

    The one place where sessions become messages for users, and so where values are hidden.
    Of many who watch the same sessions each costs little more than the bytes: a session is made
    a message once, and what the history has of it is read once for all who ask meanwhile.

    Args:
        waiting: why a queued session waits, where that is known.
        usages: what was measured of the devices of live sessions.
    """

    def __init__(
        self,
        *,
        state: LiveState,
        history: History,
        waiting: Callable[[str], Explanation | None],
        usages: Usages,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._usages = usages
        self._state = state
        self._history = history
        self._waiting = waiting
        self._made: Recent[tuple[str, bool], tuple[Session, sessions_pb2.Session]] = Recent(KEPT)
        self._turn = asyncio.Lock()
        self._question = _Question()

    async def session(self, session: Session, viewer: UserCaller) -> sessions_pb2.Session:
        """One session."""
        revisions = [self._revision(session)]
        if session.state.holds_devices:
            await self._history.telemetry.newest()
        [message] = await self._messages([session], revisions, viewer)
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
        samples = self._history.telemetry.known()
        messages = []
        for session, revision in zip(sessions, revisions, strict=True):
            # Who may see a session need not know what its owner has set for the program.
            message = self._message(session, may_change(viewer, owner=session.owner))
            message.revision = revision
            message.checkpoint_count = counts.get(session.id, 0)
            explanation = self._waiting(session.id)
            if explanation is not None and session.state is SessionState.QUEUED:
                message.waiting = explanation.reason
            if (summary := summaries.get(session.id)) is not None:
                values = _values(summary.step, summary.values)
                message.summary.CopyFrom(struct(values))
                message.summary_names.extend(values)
            live = self._usages.live(session.id)
            if live is not None and not message.HasField("usage"):
                message.usage.CopyFrom(usage_message(live.usage, session.attempts, live.idle_since))
            if session.state.holds_devices:
                self._add_use(message, session, samples)
            messages.append(message)
        return messages

    def _add_use(
        self, message: sessions_pb2.Session, session: Session, samples: Mapping[str, NodeSample]
    ) -> None:
        """What the processes of each replica take, as its node said lately."""
        lately = self._clock.time() - LATELY_S
        for replica in message.replicas:
            sample = samples.get(replica.node)
            if sample is None or sample.at < lately:
                continue
            which = session.id, session.attempt, replica.rank
            for one in sample.replicas:
                if (one.session_id, one.attempt, one.rank) == which:
                    replica.use.cpu_cores = one.cpu_cores
                    replica.use.memory_used_bytes = one.memory_used_bytes
                    replica.use.process_count = one.process_count

    def _message(self, session: Session, shows_values: bool) -> sessions_pb2.Session:
        """What its record alone says; the caller's own to change."""
        key = session.id, shows_values
        kept = self._made.get(key)
        if kept is None or kept[0] is not session:
            kept = session, session_message(session, shows_values=shows_values)
            self._made.keep(key, kept)
        message = sessions_pb2.Session()
        message.CopyFrom(kept[1])
        return message

    async def _beside(
        self, begun: Sequence[str]
    ) -> tuple[Mapping[str, Summary], Mapping[str, int]]:
        """What the history has of sessions that have begun; without it they are shown all the same."""
        if not begun:
            return {}, {}
        question = self._question
        question.ids.update(begun)
        # Whoever asks while an answer is on its way asks together with all others.
        async with self._turn:
            if question.summaries is None:
                # What is asked from now on must see what is written now.
                if self._question is question:
                    self._question = _Question()
                await self._ask(question)
        return question.summaries or {}, question.counts

    async def _ask(self, question: _Question) -> None:
        try:
            counts = await self._history.catalogue.checkpoint_counts(question.ids)
            question.summaries = await self._history.streams.summaries(question.ids)
            question.counts = counts
        except HistoryUnavailable as error:
            _log.warning("presenting.without_history", reason=error.why or error.message)
            question.summaries = {}


def _values(step: float | None, values: dict[str, object]) -> dict[str, object]:
    return values if step is None or "step" in values else {"step": step, **values}
