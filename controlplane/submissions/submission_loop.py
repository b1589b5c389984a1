"""The leader's loop of submissions: in which order they, and their re-evaluations, are looked at, and when.

It keeps nothing but what is in the stores. A try of a step has one session, made with a request id that names it, and
each change of a row names the states that it is made from: a leader that takes over decides the same again, finds the
same sessions, and repeats nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from controlplane.domain.changes import SessionChanged
from controlplane.domain.errors import NsmlError
from controlplane.domain.lifecycle import SessionState
from controlplane.history.board_values import SUBMITTED
from controlplane.store.interface import StoreError
from controlplane.submissions.start_order import MOST_QUEUED, next_predictions
from controlplane.submissions.step_failures import StepKey, is_unexpected
from controlplane.submissions.work_queue import WorkQueue
from nsml.common.concurrency import TaskGroup, each_at_once

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from controlplane.domain.changes import Change
    from controlplane.history.board_values import SubmissionEntry, SubmissionRow
    from controlplane.history.sql.history import History
    from controlplane.history.subscriptions import Change as Committed
    from controlplane.state.live_state import LiveState
    from controlplane.state.subscriptions import Subscription
    from controlplane.submissions.reevaluation_advance import ReevaluationAdvance
    from controlplane.submissions.session_cleanup import SessionCleanup
    from controlplane.submissions.step_failures import StepFailures
    from controlplane.submissions.submission_advance import SubmissionAdvance
    from nsml.common.clock import Clock

SWEEP_EVERY_S: Final = 3.0
"""Interval between sweeps, for what is noticed by no change: a quota or a node that a step waits for, an upload that
ended."""
SWEEP_REST: Final = 4.0
"""Least interval between sweeps, as a multiple of one's duration: with thousands on their way, they become rare."""
SOON_S: Final = 0.1
"""Interval between looks at what is about to be possible: results on their way, and surely leading again."""
AT_ONCE: Final = 8
MOST_REEVALUATED: Final = 8
"""Evaluations of a re-evaluation of one board that run together: submissions go on meanwhile."""
CLEAN_EVERY_S: Final = 60.0
_log = structlog.get_logger()


class SubmissionLoop:
    """The loop. It may run twice for a moment, on the leader and on one that does not know yet that it was deposed.

    Args:
        leads: whether this control plane surely leads.
    """

    def __init__(
        self,
        *,
        history: History,
        state: LiveState,
        submissions: SubmissionAdvance,
        reevaluations: ReevaluationAdvance,
        cleanup: SessionCleanup,
        failures: StepFailures,
        clock: Clock,
        leads: Callable[[], bool],
    ) -> None:
        self._history = history
        self._submissions = history.submissions
        self._state = state
        self._advance = submissions
        self._reevaluations = reevaluations
        self._cleanup = cleanup
        self._failures = failures
        self._clock = clock
        self._leads = leads
        self._soon: dict[str, None] = {}
        self._is_soon = asyncio.Event()
        self._evaluations_due = asyncio.Event()
        self._held_back = 0
        """Number of new submissions that could not start at the last sweep."""

    async def run(self) -> NoReturn:
        """Advance a submission whenever the session of a step changes, and all every few seconds; until cancelled.

        What has news goes before what a sweep found: a sweep of thousands holds up no score. One that is new, on
        whichever control plane, is met by a sweep at once, unless the last one is too fresh.
        """
        queue = WorkQueue()
        with (
            self._state.subscribed(wants=_is_of_step) as sessions,
            self._history.streams.changed(SUBMITTED) as submitted,
        ):
            try:
                async with TaskGroup() as group:
                    for _ in range(AT_ONCE):
                        group.create_task(self._work(queue), name="submission")
                    group.create_task(
                        self._follow(sessions, submitted, queue), name="submissions.changed"
                    )
                    group.create_task(self._look_again(queue), name="submissions.soon")
                    group.create_task(self._sweep_again(submitted, queue), name="submissions.sweep")
                    group.create_task(self._evaluate_again(), name="submissions.evaluations")
                    group.create_task(self._clean_again(), name="submissions.clean")
            finally:
                self._failures.clear()
        raise AssertionError

    async def _work(self, queue: WorkQueue) -> NoReturn:
        while True:
            async with queue.next() as submission_id:
                await self.advance(submission_id)

    async def _follow(
        self, sessions: Subscription, submitted: Committed, queue: WorkQueue
    ) -> NoReturn:
        left: set[str] = set()
        while True:
            changed = [
                change.session
                for change in await sessions.take()
                if isinstance(change, SessionChanged)
            ]
            queue.add_urgent(session.spec.submission_id for session in changed)
            left.update(one.id for one in changed if one.state is not SessionState.QUEUED)
            if len(left) >= MOST_QUEUED // 2:
                left.clear()
                if self._held_back:
                    submitted.set()  # as if they were new: the queue has room for some

    async def _look_again(self, queue: WorkQueue) -> NoReturn:
        while True:
            await self._is_soon.wait()
            await self._clock.sleep(SOON_S)
            queue.add_urgent(self._soon)
            if not self._soon:
                self._is_soon.clear()

    async def _sweep_again(self, submitted: Committed, queue: WorkQueue) -> NoReturn:
        while True:
            begun = self._clock.monotonic()
            with self._noted():
                queue.add(await self.due())
            self._evaluations_due.set()
            rest_s = SWEEP_REST * (self._clock.monotonic() - begun)
            await self._clock.sleep(rest_s)
            await submitted.wait_for(max(SWEEP_EVERY_S - rest_s, 0.0))

    async def _evaluate_again(self) -> NoReturn:
        while True:
            await self._evaluations_due.wait()
            self._evaluations_due.clear()
            with self._noted():
                await self.advance_evaluations()

    async def _clean_again(self) -> NoReturn:
        while True:
            with self._noted():
                await self._cleanup.clean()
            await self._clock.sleep(CLEAN_EVERY_S)

    @staticmethod
    @contextlib.contextmanager
    def _noted() -> Iterator[None]:
        """Log what a store did not do: it is tried again."""
        try:
            yield
        except (NsmlError, StoreError) as error:
            _log.warning("submissions.not_looked_at", reason=str(error))

    async def due(self) -> list[str]:
        """Return the submissions that may go on now, oldest first, then new ones that may start.

        Not those that wait for a change of a session, or that failed and are tried later.

        Raises:
            HistoryUnavailable: they cannot be listed now.
        """
        rows = await self._submissions.unfinished()
        self._failures.keep({row.id for row in rows})
        new = [
            row
            for row in rows
            if not (row.predict_session_id or row.prediction_digest) and self._may_try(row)
        ]
        begun = [row for row in rows if row.predict_session_id or row.prediction_digest]
        turns = next_predictions(new, ((row, self._is_queued(row)) for row in begun))
        self._held_back = len(new) - len(turns)
        due = [row for row in begun if self._may_try(row) and self._may_go_on(row)]
        return [one.id for one in (*due, *turns)]

    def _may_try(self, row: SubmissionRow) -> bool:
        return self._failures.may_try(StepKey(row.id))

    def _is_queued(self, row: SubmissionRow) -> bool:
        session = self._state.session(row.evaluate_session_id or row.predict_session_id)
        return session is not None and session.state is SessionState.QUEUED

    def _may_go_on(self, row: SubmissionRow) -> bool:
        if row.failing_since or self._failures.has(StepKey(row.id)):
            return True
        has_predicted = bool(row.prediction_digest)
        session = self._state.session(
            row.evaluate_session_id if has_predicted else row.predict_session_id
        )
        if session is None or session.state is SessionState.HELD or session.state.is_ended:
            return True
        noted_at = row.evaluate_started_at if has_predicted else row.predict_started_at
        return session.started_at not in {0.0, noted_at}

    async def advance(self, submission_id: str) -> None:
        """Advance a submission as far as it goes now; if it is over, its re-evaluations are next."""
        await self._guarded(StepKey(submission_id), partial(self._look_at, submission_id))

    async def _look_at(self, submission_id: str) -> float:
        """Advance a submission; return since when it has shown a failure, 0.0: it does not."""
        row = await self._submissions.get(submission_id)
        if row is None or row.state.is_over:
            self._soon.pop(submission_id, None)
            self._evaluations_due.set()
        elif await self._advance.advance(row):
            self._soon[submission_id] = None
            self._is_soon.set()
        else:
            self._soon.pop(submission_id, None)
        return row.failing_since if row is not None else 0.0

    async def advance_evaluations(self) -> None:
        """Advance the evaluations of re-evaluations, and show those that are over.

        Raises:
            HistoryUnavailable: they cannot be listed now.
        """
        for owner, dataset in await self._submissions.running_evaluations():
            unfinished = partial(self._submissions.unfinished_scores, owner, dataset)
            # Those that failed and are tried later hold up no others.
            found = await unfinished(limit=MOST_REEVALUATED + self._failures.evaluations)
            due = [one for one in found if self._failures.may_try(_evaluation_key(one))]
            await each_at_once(due[:MOST_REEVALUATED], self._advance_evaluation, most=AT_ONCE)
            # Showing it looks at all of its scores.
            if not await unfinished(limit=1) and self._leads():
                at = self._clock.time()
                await self._submissions.show_evaluation(owner, dataset, at=at)
        await self._failures.forget_evaluations()

    async def _advance_evaluation(self, one: SubmissionEntry) -> None:
        async def advance() -> float:
            await self._reevaluations.advance(one)
            return one.score.failing_since if one.score is not None else 0.0

        await self._guarded(_evaluation_key(one), advance)

    async def _guarded(self, key: StepKey, advance: Callable[[], Awaitable[float]]) -> None:
        """Advance one; it is tried again later, whatever happened, and holds up no other.

        `advance` returns since when it has shown a failure, 0.0: it does not.
        """
        if not self._failures.may_try(key):
            return
        try:
            failing_since = await advance()
        except Exception as error:  # noqa: BLE001 - one bad record must not end the leader's loops
            self._soon.pop(key.submission_id, None)
            if isinstance(error, (NsmlError, StoreError)):
                _log.warning(
                    "submission.not_advanced", submission=key.submission_id, reason=str(error)
                )
            else:
                _log.exception("submission.not_advanced", submission=key.submission_id)
            if is_unexpected(error) and self._leads():
                await self._failures.failed(key, error)
        else:
            if self._leads():
                await self._failures.recovered(key, failing_since)


def _evaluation_key(one: SubmissionEntry) -> StepKey:
    return StepKey(one.row.id, one.score.evaluation if one.score is not None else 0)


def _is_of_step(change: Change) -> bool:
    return isinstance(change, SessionChanged) and bool(change.session.spec.submission_id)
