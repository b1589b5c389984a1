"""Session messages with data beside their record: wait reasons, summaries, checkpoints."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.domain.lifecycle import SessionState
from controlplane.domain.policy import ALLOW, CHANGE, SEE, may
from controlplane.history.errors import HistoryUnavailable
from controlplane.history.values import CheckpointCount
from controlplane.records.session_summaries import EVERY_S
from controlplane.sessions.convert import session_message, shorten, usage_message
from controlplane.state.lru import LruDict
from controlplane.wire.catalogue import version_names
from controlplane.wire.chunking import beside, entries_of
from controlplane.wire.reported import config_message, struct
from controlplane.wire.times import timestamp
from nsml.v1 import sessions_pb2

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from controlplane.domain.identity import UserCaller
    from controlplane.domain.plan import Explanation
    from controlplane.domain.values import Session
    from controlplane.history.sql.history import History
    from controlplane.history.values import NodeSample, Summary, TrainingProgress
    from controlplane.limits.user_storage import Kept
    from controlplane.records.session_summaries import LastReport, LastReports, Reports
    from controlplane.state.live_state import LiveState
    from controlplane.usage.usage import Live, Usages
    from nsml.common.clock import Clock

_log = structlog.get_logger()

AT_ONCE: Final = 100
"""Sessions in one turn of the event loop: a few milliseconds."""


KEPT: Final = 4_096
"""Cached messages, some kilobytes each, for the next viewers of the same sessions."""


_SAVES: Final = frozenset({SessionState.RUNNING, SessionState.PAUSED, SessionState.FINALIZING})
"""States in which checkpoints may wait on their nodes."""


class Presenter:
    """Builds session messages for viewers.

    The only place where sessions become messages for users, and so where values are hidden.
    Each further watcher of the same sessions costs little more than the bytes: messages of
    sessions and of their reports are built once.

    Args:
        reports: reads their reports from the history.
        waiting: returns why a queued session waits, if known.
        usages: measured device usage of live sessions.
        kept, project_kept: whether there is room for checkpoints of a user's, and of a project's, sessions.
    """

    def __init__(
        self,
        *,
        state: LiveState,
        history: History,
        reports: LastReports,
        waiting: Callable[[str], Explanation | None],
        usages: Usages,
        kept: Kept,
        project_kept: Kept,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._kept = kept
        self._project_kept = project_kept
        self._usages = usages
        self._state = state
        self._history = history
        self._reports = reports
        self._waiting = waiting
        self._made: LruDict[tuple[str, bool, bool], tuple[Session, sessions_pb2.Session]] = LruDict(
            KEPT
        )
        self._told: LruDict[str, tuple[LastReport, float, sessions_pb2.SessionReport]] = LruDict(
            KEPT
        )

    async def session(self, session: Session, viewer: UserCaller) -> sessions_pb2.Session:
        """Build one session, with its whole summary, its packages, its dataset versions and its reported configuration."""
        revisions = [self._revision(session)]
        if session.state.holds_devices:
            await self._history.telemetry.newest()
        begun = _ids_with_reports([session])
        reports = await self._reports.of(begun, whole=True)
        short = reports._replace(summaries={})
        [message] = self._messages([session], revisions, viewer, short)
        if (summary := reports.summaries.get(session.id)) is not None:
            made = partial(_add_summary, message, summary)
            await beside(made, of=entries_of(summary.values))
        if session.attempt or session.spec.environment_lock:
            await self._add_lock(message)
        if session.spec.output_datasets and session.attempt:
            await self._add_made(message, viewer)
        if begun:
            await self._add_config(message)
        return message

    async def _add_config(self, message: sessions_pb2.Session) -> None:
        """Add the configuration that its programs reported, if the history is available."""
        try:
            found = await self._history.reported_config.of([message.id])
        except HistoryUnavailable as error:
            _log.warning("presenting.without_history", reason=error.why or error.message)
            return
        if (config := found.get(message.id)) is not None:
            made = partial(config_message, config, message.reported_config)
            await beside(made, of=len(config.values))

    async def _add_made(self, message: sessions_pb2.Session, viewer: UserCaller) -> None:
        """Add the dataset versions it made, if the history is available."""
        try:
            made = await self._history.catalogue.seen_made_by(message.id, viewer.user)
        except HistoryUnavailable as error:
            _log.warning("presenting.without_history", reason=error.why or error.message)
            return
        message.made_datasets.extend(version_names(made))

    async def _add_lock(self, message: sessions_pb2.Session) -> None:
        """Add its lock, if the history is available."""
        try:
            lock = await self._history.environment_locks.facts_of(message.id)
        except HistoryUnavailable as error:
            _log.warning("presenting.without_history", reason=error.why or error.message)
            return
        if lock is not None:
            message.environment_lock.digest = lock.digest
            message.environment_lock.package_count = lock.package_count

    async def sessions(
        self,
        sessions: Sequence[Session],
        viewer: UserCaller,
        names: Sequence[str] = (),
        *,
        is_short: bool = False,
    ) -> AsyncGenerator[sessions_pb2.Session, None]:
        """Build many, in the same order; other tasks run in between.

        Summaries have their first values, and those of `names`. `is_short`: long commands and environments are
        truncated.
        """
        # Read first: no revision may be newer than the message of its session.
        revisions = [self._revision(session) for session in sessions]
        for start in range(0, len(sessions), AT_ONCE):
            some = sessions[start : start + AT_ONCE]
            reported = await self._reports.of(_ids_with_reports(some))
            summaries = await self._with_names(reported.summaries, names)
            reported = reported._replace(summaries=summaries)
            known = revisions[start : start + AT_ONCE]
            for message in self._messages(some, known, viewer, reported, is_short=is_short):
                yield message
            await asyncio.sleep(0)

    def _revision(self, session: Session) -> int:
        stored = self._state.sessions.get(session.id)
        return stored.revision if stored else 0

    async def _with_names(
        self, summaries: Mapping[str, Summary], names: Sequence[str]
    ) -> Mapping[str, Summary]:
        """Read incomplete summaries again, with the values of `names`."""
        cut = [one for one, summary in summaries.items() if summary.left_out]
        if not names or not cut:
            return summaries
        try:
            return {**summaries, **await self._history.streams.listed_summaries(cut, names)}
        except HistoryUnavailable as error:
            _log.warning("presenting.without_history", reason=error.why or error.message)
            return summaries

    def _messages(
        self,
        sessions: Sequence[Session],
        revisions: Sequence[int],
        viewer: UserCaller,
        reported: Reports,
        *,
        is_short: bool = False,
    ) -> list[sessions_pb2.Session]:
        samples = self._history.telemetry.known()
        messages = []
        for session, revision in zip(sessions, revisions, strict=True):
            # Environment values are hidden from users who may only see the session.
            is_own = may(viewer, CHANGE, session) is ALLOW
            message = self._message(session, is_own, is_short)
            message.revision = revision
            count = reported.checkpoints.get(session.id, CheckpointCount())
            message.checkpoint_count, message.lost_checkpoint_count = count.there, count.lost
            _add_saved(message, count.saved_at, self._clock.time())
            explanation = self._waiting(session.id)
            if explanation is not None and session.state is SessionState.QUEUED:
                message.waiting = explanation.reason
            elif session.state is SessionState.PREPARING:
                message.waiting = next((one.waiting for one in session.replicas if one.waiting), "")
            elif session.state in _SAVES:
                message.waiting = self._kept.words(
                    session.owner, is_own=is_own
                ) or self._project_words(viewer, session, is_own=is_own)
            _add_summary(message, reported.summaries.get(session.id))
            _add_training(message, session, reported.training.get(session.id))
            _add_usage(message, session, self._usages.live(session.id))
            uses = self._uses(session, samples)
            for replica in message.replicas:
                if (use := uses.get(replica.rank)) is not None:
                    replica.use.CopyFrom(use)
            messages.append(message)
        return messages

    def _project_words(self, viewer: UserCaller, session: Session, *, is_own: bool) -> str:
        """Say that checkpoints wait for room in the session's project; "" if they do not."""
        project = self._state.project(session.project or session.owner)
        if project is None:
            return ""
        # Former members must not see how much the others keep.
        sees = is_own and may(viewer, SEE, project) is ALLOW
        return self._project_kept.words(project.name, is_own=sees)

    async def reports(
        self, session_ids: Collection[str], names: Sequence[str] = ()
    ) -> list[sessions_pb2.SessionReport]:
        """Build the last reports of live sessions for watchers, with the values of `names`."""
        made = {one.session_id: one for one in self._known_reports(session_ids)}
        cut = [one for one, report in made.items() if report.summary_left_out]
        if not names or not cut:
            return list(made.values())
        known = {one: last.summary for one in cut if (last := self._reports.last(one))}
        short = {one: summary for one, summary in known.items() if summary is not None}
        for session_id, summary in (await self._with_names(short, names)).items():
            report = sessions_pb2.SessionReport()
            report.CopyFrom(made[session_id])
            _add_summary(report, summary)
            made[session_id] = report
        return list(made.values())

    def _known_reports(self, session_ids: Iterable[str]) -> Iterator[sessions_pb2.SessionReport]:
        now = self._clock.monotonic()
        for session_id in session_ids:
            session, last = self._state.session(session_id), self._reports.last(session_id)
            if session is None or last is None:
                continue
            told = self._told.get(session_id)
            # Most watchers need it at the same time.
            if told is None or told[0] is not last or now - told[1] >= EVERY_S:
                told = last, now, self._report(session, last)
                self._told.keep(session_id, told)
            yield told[2]

    def _report(self, session: Session, last: LastReport) -> sessions_pb2.SessionReport:
        message = sessions_pb2.SessionReport(session_id=session.id)
        if session.spec.is_sealed:
            return message
        saved = last.checkpoints
        message.checkpoint_count, message.lost_checkpoint_count = saved.there, saved.lost
        if (at := timestamp(min(saved.saved_at, self._clock.time()))) is not None:
            message.saved_at.CopyFrom(at)
        _add_summary(message, last.summary)
        _add_training(message, session, last.training)
        _add_usage(message, session, last.usage)
        for rank, use in self._uses(session, self._history.telemetry.known()).items():
            message.uses[rank].CopyFrom(use)
        return message

    def _uses(
        self, session: Session, samples: Mapping[str, NodeSample]
    ) -> dict[int, sessions_pb2.ReplicaUse]:
        """Return the process usage of each replica, by rank, as recently reported by its node.

        Not of a sealed session: its program could tell bits of hidden inputs by the memory that it takes.
        """
        if session.spec.is_sealed or not session.state.holds_devices:
            return {}
        found = {}
        for replica in session.replicas:
            sample = samples.get(replica.node)
            if sample is None:
                continue
            which = session.id, session.attempt, replica.rank
            for one in sample.replicas:
                if (one.session_id, one.attempt, one.rank) == which:
                    found[replica.rank] = sessions_pb2.ReplicaUse(
                        cpu_cores=one.cpu_cores,
                        memory_used_bytes=one.memory_used_bytes,
                        process_count=one.process_count,
                    )
        return found

    def _message(
        self, session: Session, shows_values: bool, is_short: bool
    ) -> sessions_pb2.Session:
        """Build a message from its record alone; the caller may change it."""
        key = session.id, shows_values, is_short
        kept = self._made.get(key)
        if kept is None or kept[0] is not session:
            kept = session, session_message(session, shows_values=shows_values)
            if is_short:
                shorten(kept[1])
            self._made.keep(key, kept)
        message = sessions_pb2.Session()
        message.CopyFrom(kept[1])
        return message


def _ids_with_reports(sessions: Iterable[Session]) -> list[str]:
    """Return the sessions whose programs may have reported what their viewers read."""
    return [one.id for one in sessions if one.attempt and not one.spec.is_sealed]


def _add_saved(message: sessions_pb2.Session, saved_at: float, now: float) -> None:
    """Use the time of its newest checkpoint if it is newer than its node's infrequent report."""
    at = timestamp(min(saved_at, now))  # a node's clock may be ahead
    if at is not None and message.HasField("progress"):
        known = message.progress.saved_at
        if at.ToNanoseconds() > known.ToNanoseconds():
            known.CopyFrom(at)


def _add_summary(
    message: sessions_pb2.Session | sessions_pb2.SessionReport, summary: Summary | None
) -> None:
    if summary is not None:
        values = _values(summary.step, summary.values)
        message.summary.CopyFrom(struct(values))
        message.summary_names[:] = values
        message.summary_left_out = summary.left_out


def _add_training(
    message: sessions_pb2.Session | sessions_pb2.SessionReport,
    session: Session,
    training: TrainingProgress | None,
) -> None:
    if training is None:
        return
    reported, estimate = training.reported, training.estimate
    is_running = session.state is SessionState.RUNNING and session.attempt == training.attempt
    made = sessions_pb2.TrainingProgress(
        done=reported.done,
        of=reported.of,
        unit=reported.unit,
        origin=reported.origin,
        attempt=training.attempt,
        reported_at=timestamp(reported.time),
        ends_at=timestamp(estimate.ends_at or 0.0) if is_running else None,
        next_report_at=timestamp(estimate.next_at or 0.0) if is_running else None,
    )
    message.training.CopyFrom(made)


def _add_usage(
    message: sessions_pb2.Session | sessions_pb2.SessionReport, session: Session, live: Live | None
) -> None:
    """Add the usage of a live session, unless its record has the final one."""
    if live is not None and session.usage is None and not session.spec.is_sealed:
        message.usage.CopyFrom(usage_message(live.usage, session.attempts, live.idle_since))


def _values(step: float | None, values: dict[str, object]) -> dict[str, object]:
    return values if step is None or "step" in values else {"step": step, **values}
