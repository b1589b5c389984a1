"""The leader's loop of submissions: makes their steps' sessions, takes their results, evaluates again, and cleans up.

It keeps nothing but what is in the stores. A try of a step has one session, made with a request id that names it, and
each change of a row names the states that it is made from: a leader that takes over decides the same again, finds the
same sessions, and repeats nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import structlog

from controlplane.domain.boards.values import (
    UNFINISHED,
    SubmissionCause,
    SubmissionState,
)
from controlplane.domain.changes import SessionChanged
from controlplane.domain.errors import NotFound, NsmlError
from controlplane.domain.lifecycle import SessionState
from controlplane.history.board_values import SUBMITTED, ScoreRow
from controlplane.history.sql.submissions import KeptUntil
from controlplane.store.interface import StoreError
from controlplane.submissions.pipeline import (
    Action,
    Fail,
    GiveUp,
    Predicted,
    Result,
    Stage,
    Start,
    Started,
    Step,
    Take,
    Wait,
    next_evaluation,
    next_step,
)
from controlplane.submissions.results import Scores
from controlplane.submissions.session_maker import Refused, Waits, step_request
from controlplane.submissions.start_order import MOST_QUEUED, next_predictions
from controlplane.submissions.work_queue import WorkQueue
from nsml.common.concurrency import TaskGroup, each_at_once
from nsml.spec import submission_exits as exits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from controlplane.domain.changes import Change
    from controlplane.history.board_values import SubmissionEntry, SubmissionRow
    from controlplane.history.sql.history import History
    from controlplane.history.subscriptions import Change as Committed
    from controlplane.sessions.remove import Remover
    from controlplane.sessions.stop import Stopper
    from controlplane.state.live_state import LiveState
    from controlplane.state.references import References
    from controlplane.state.subscriptions import Subscription
    from controlplane.submissions.results import Results
    from controlplane.submissions.session_maker import SessionMaker
    from nsml.common.clock import Clock

SWEEP_EVERY_S: Final = 3.0
"""Interval between sweeps, for what is noticed by no change: a quota or a node that a step waits for, an upload that
ended."""
SWEEP_REST: Final = 4.0
"""Least interval between sweeps, as a multiple of one's duration: with thousands on their way, they become rare."""
SOON_S: Final = 0.1
"""Interval between looks at what is about to be possible: results on their way, and surely leading again."""
AT_ONCE: Final = 8
MOST_ACTIONS: Final = 8
"""Of one submission in a sweep."""
MOST_REEVALUATED: Final = 8
"""Evaluations of a re-evaluation of one board that run together: submissions go on meanwhile."""
START_WITHIN_S: Final = 7 * 86_400.0
"""How long a step may wait for its session to be made, from the submission or the end of the step before."""
CLEAN_EVERY_S: Final = 60.0
CLEANED_AT_ONCE: Final = 100
KEPT_PREDICT_S: Final = 600.0
"""How long the session of a prediction stays after the submission is over: nobody may read what it wrote."""
KEPT_SCORED_S: Final = 86_400.0
"""How long the session of an evaluation stays that gave a score; the dataset's owner reads what it printed."""
KEPT_FAILED_S: Final = 7 * 86_400.0
"""How long others stay: of evaluations that failed, and of predictions of dry runs."""
GIVEN_UP_BY: Final = "nsml"

_STAGE_STATE: Final = {
    Stage.PREDICT: SubmissionState.PREDICTING,
    Stage.EVALUATE: SubmissionState.EVALUATING,
}
_RESULT: Final = {Stage.PREDICT: exits.PREDICTION, Stage.EVALUATE: exits.EVALUATION}
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
        references: References,
        maker: SessionMaker,
        results: Results,
        stopper: Stopper,
        remover: Remover,
        clock: Clock,
        leads: Callable[[], bool],
    ) -> None:
        self._history = history
        self._submissions = history.submissions
        self._state = state
        self._references = references
        self._maker = maker
        self._results = results
        self._stopper = stopper
        self._remover = remover
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
                await self.clean()
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

        Not those that wait for a change of a session.

        Raises:
            HistoryUnavailable: they cannot be listed now.
        """
        rows = await self._submissions.unfinished()
        new = [row for row in rows if not (row.predict_session_id or row.prediction_digest)]
        begun = [row for row in rows if row.predict_session_id or row.prediction_digest]
        turns = next_predictions(new, ((row, self._is_queued(row)) for row in begun))
        self._held_back = len(new) - len(turns)
        return [one.id for one in (*filter(self._may_go_on, begun), *turns)]

    def _is_queued(self, row: SubmissionRow) -> bool:
        session = self._state.session(row.evaluate_session_id or row.predict_session_id)
        return session is not None and session.state is SessionState.QUEUED

    def _may_go_on(self, row: SubmissionRow) -> bool:
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
        await self._guarded(self._look_at, submission_id, submission_id)

    async def _look_at(self, submission_id: str) -> None:
        row = await self._submissions.get(submission_id)
        if row is not None and not row.state.is_over:
            await self._advance(row)
            return
        self._soon.pop(submission_id, None)
        self._evaluations_due.set()

    def _look_soon(self, submission_id: str) -> None:
        self._soon[submission_id] = None
        self._is_soon.set()

    async def advance_evaluations(self) -> None:
        """Advance the evaluations of re-evaluations, and show those that are over.

        Raises:
            HistoryUnavailable: they cannot be listed now.
        """
        for owner, dataset in await self._submissions.running_evaluations():
            unfinished = partial(self._submissions.unfinished_scores, owner, dataset)
            await each_at_once(
                await unfinished(limit=MOST_REEVALUATED),
                lambda one: self._guarded(self._advance_score, one, one.row.id),
                most=AT_ONCE,
            )
            # Showing it looks at all of its scores.
            if not await unfinished(limit=1) and self._leads():
                at = self._clock.time()
                await self._submissions.show_evaluation(owner, dataset, at=at)

    async def _guarded(self, advance: Callable[[Any], Any], one: Any, submission_id: str) -> None:
        """Advance one; it is tried again in the next sweep, whatever happened, and holds up no other."""
        try:
            await advance(one)
        except (NsmlError, StoreError) as error:
            self._soon.pop(submission_id, None)
            _log.warning("submission.not_advanced", submission=submission_id, reason=str(error))
        except Exception:  # noqa: BLE001 - one bad record must not end the leader's loops
            self._soon.pop(submission_id, None)
            _log.exception("submission.not_advanced", submission=submission_id)

    async def _advance(self, row: SubmissionRow) -> None:
        for _ in range(MOST_ACTIONS):
            predict = evaluate = None
            if row.prediction_digest:
                evaluate = await self._evaluation(row)
            else:
                predict = await self._step(row.predict_session_id, Stage.PREDICT)
            action = next_step(row, predict, evaluate, self._clock.time())
            self._note(row, predict or evaluate, action)
            if action is None:
                return
            if not self._leads():
                self._look_soon(row.id)  # it may lead again in a moment
                return
            changed = await self._carry_out(row, action, predict, evaluate)
            if changed is None:
                return
            row = changed

    def _note(self, row: SubmissionRow, step: Step | None, action: Action | None) -> None:
        """Note whether the step has ended, and its result is on its way: no change reports when it is kept."""
        if step is not None and step.cause is not None and isinstance(action, Wait):
            self._look_soon(row.id)
        else:
            self._soon.pop(row.id, None)

    async def _carry_out(
        self, row: SubmissionRow, action: Action, predict: Step | None, evaluate: Step | None
    ) -> SubmissionRow | None:
        """Return the changed row; None: nothing more can be done now."""
        done: SubmissionRow | None = None
        match action:
            case Start(stage=stage, number=number):
                done = await self._start(row, stage, number)
            case Started(stage=stage, at=at):
                done = await self._change(
                    row, {f"{stage}_started_at": at, "state": _STAGE_STATE[stage], "message": ""}
                )
            case GiveUp(session_id=session_id):
                await self._give_up(session_id)
            case Take(stage=Stage.PREDICT, session_id=session_id):
                done = await self._take_prediction(row, session_id, predict)
            case Take(session_id=session_id):
                done = await self._take_score(row, session_id, evaluate)
            case Predicted(why=why):
                done = await self._end_predicted(row, why, evaluate)
            case Fail():
                done = await self._fail(row, action, predict, evaluate)
        return done

    async def _end_predicted(
        self, row: SubmissionRow, why: str, evaluate: Step | None = None
    ) -> SubmissionRow | None:
        """End a dry run with a prediction that cannot be scored."""
        fields = {
            "state": SubmissionState.SCORED,
            "ended_at": self._clock.time(),
            "message": f"the prediction succeeded; {why}",
        }
        ended = {"evaluate_ended_at": evaluate.ended_at} if evaluate is not None else {}
        return await self._change(row, {**fields, **ended})

    async def _start(self, row: SubmissionRow, stage: Stage, number: int) -> SubmissionRow | None:
        make = self._maker.predict if stage is Stage.PREDICT else self._maker.evaluate
        made = await make(row, number)
        match made:
            case Waits(reason=reason):
                since = row.predict_ended_at if stage is Stage.EVALUATE else 0.0
                if self._clock.time() > (since or row.submitted_at) + START_WITHIN_S:
                    why = f"it could not start within 7 days: {reason}"
                    return await self._fail(row, Fail(SubmissionCause.PLATFORM, why))
                if row.message == reason:
                    return None
                await self._change(row, {"message": reason})
                return None
            case Refused(fail=fail):
                return await self._fail(row, fail)
            case None:
                # A dry run without a small test set: that it predicts is all there is to know.
                return await self._end_predicted(
                    row, "the dataset has no folder test_submit to evaluate it on"
                )
        fields = {
            f"{stage}_session_id": made.id,
            f"{stage}_session": made.name,
            f"{stage}_tries": number,
            f"{stage}_started_at": 0.0,
            f"{stage}_ended_at": 0.0,
            "message": "",
        }
        return await self._change(row, fields)

    async def _take_prediction(
        self, row: SubmissionRow, session_id: str, step: Step | None
    ) -> SubmissionRow | None:
        settings = await self._maker.settings(row.dataset_owner, row.dataset)
        found = await self._results.prediction(session_id, settings.prediction_bytes)
        if isinstance(found, Fail):
            return await self._fail(row, found, step)
        return await self._change(
            row,
            {
                "prediction_digest": found,
                "predict_ended_at": step.ended_at if step is not None else 0.0,
                "state": SubmissionState.EVALUATING,
            },
        )

    async def _take_score(
        self, row: SubmissionRow, session_id: str, step: Step | None
    ) -> SubmissionRow | None:
        found = await self._results.scores(session_id)
        if isinstance(found, Fail):
            return await self._fail(row, found, None, step)
        now = self._clock.time()
        return await self._change(
            row,
            {
                "state": SubmissionState.SCORED,
                "evaluate_ended_at": step.ended_at if step is not None else now,
                "ended_at": now,
                "message": "",
            },
            score=ScoreRow(submission_id=row.id, ended_at=now, **_values(found)),
            if_shown=step.shown if step is not None else 0,
        )

    async def _fail(
        self,
        row: SubmissionRow,
        fail: Fail,
        predict: Step | None = None,
        evaluate: Step | None = None,
    ) -> SubmissionRow | None:
        times = {
            f"{stage}_ended_at": step.ended_at
            for stage, step in ((Stage.PREDICT, predict), (Stage.EVALUATE, evaluate))
            if step is not None and step.ended_at
        }
        _log.info("submission.failed", submission=row.id, cause=fail.cause.name)
        return await self._change(row, {**_failed(fail, self._clock.time()), **times})

    async def _change(
        self,
        row: SubmissionRow,
        fields: Mapping[str, Any],
        *,
        score: ScoreRow | None = None,
        if_shown: int = 0,
    ) -> SubmissionRow | None:
        return await self._submissions.change(
            row.id, UNFINISHED, score=score, if_shown=if_shown, **fields
        )

    async def _advance_score(self, entry: SubmissionEntry) -> None:
        """Advance an evaluation of a re-evaluation."""
        row, score = entry.row, entry.score
        for _ in range(MOST_ACTIONS):
            if score is None or score.state.is_over:
                return
            step = await self._step(score.session_id, Stage.EVALUATE)
            now = self._clock.time()
            action = next_evaluation(score.session_id, score.tries, score.started_at, step, now)
            if not self._leads():
                return
            score = await self._carry_out_score(row, score, action)

    async def _carry_out_score(
        self, row: SubmissionRow, score: ScoreRow, action: Action
    ) -> ScoreRow | None:
        change = partial(
            self._submissions.change_score, row.id, score.evaluation, {SubmissionState.EVALUATING}
        )
        now, done = self._clock.time(), None
        match action:
            case Start(number=number):
                fields, is_made = await self._start_score(row, score, number)
                changed = await change(**fields) if fields else None
                done = changed if is_made else None
            case Started(at=at):
                done = await change(started_at=at)
            case GiveUp(session_id=session_id):
                await self._give_up(session_id)
            case Take(session_id=session_id):
                found = await self._results.scores(session_id)
                if isinstance(found, Fail):
                    done = await change(**_failed(found, now))
                else:
                    taken = {"state": SubmissionState.SCORED, "ended_at": now, "message": ""}
                    done = await change(**taken, **_values(found))
            case Fail():
                done = await change(**_failed(action, now))
        return done

    async def _start_score(
        self, row: SubmissionRow, score: ScoreRow, number: int
    ) -> tuple[dict[str, Any], bool]:
        """Return the fields to change, and whether to go on."""
        made = await self._maker.evaluate(row, number, evaluation=score.evaluation)
        match made:
            case Waits(reason=reason):
                return {"message": reason} if score.message != reason else {}, False
            case Refused(fail=fail):
                return _failed(fail, self._clock.time()), False
            case None:
                return {}, False
        made_fields = {"session_id": made.id, "session": made.name, "tries": number}
        return {**made_fields, "started_at": 0.0, "message": ""}, True

    async def _evaluation(self, row: SubmissionRow) -> Step | None:
        """Return the session of a submission's first evaluation; a re-evaluation may have been shown since it began."""
        step = await self._step(row.evaluate_session_id, Stage.EVALUATE)
        if step is None or step.cause is None:
            return step
        state = await self._submissions.evaluation(row.dataset_owner, row.dataset)
        wanted = state.shown_dataset_version or row.dataset_version
        return replace(step, shown=state.shown, is_outdated=step.dataset_version != wanted)

    async def _step(self, session_id: str, stage: Stage) -> Step | None:
        """Return the session of a step as it is now; None: there is none, or it was removed."""
        session = await self._references.by_id(session_id) if session_id else None
        if session is None:
            return None
        if not session.state.is_ended or session.end is None:
            return Step(
                session_id=session.id,
                started_at=session.started_at,
                is_held=session.state is SessionState.HELD,
            )
        result = Result.NONE
        if not session.end.exit_code:
            result = await self._results.state(session.id, _RESULT[stage])
        return Step(
            session_id=session.id,
            started_at=session.started_at,
            ended_at=session.ended_at,
            cause=session.end.cause,
            exit_code=session.end.exit_code,
            is_given_up=session.stop is not None and session.stop.asked_by == GIVEN_UP_BY,
            dataset_version=session.spec.datasets[0].version if session.spec.datasets else 0,
            result=result,
        )

    async def _give_up(self, session_id: str) -> None:
        """Stop a session that is held: nobody may release it, and the step is tried again."""
        session = self._state.session(session_id)
        if session is not None and session.state is SessionState.HELD:
            await self._stopper.stop(
                session, asked_by=GIVEN_UP_BY, grace_s=None, reason="it could not be started"
            )

    async def clean(self) -> None:
        """Remove sessions of submissions that have been over for long enough, with what they recorded."""
        await self._stop_orphans()
        now = self._clock.time()
        before = KeptUntil(
            predicted=now - KEPT_PREDICT_S, scored=now - KEPT_SCORED_S, failed=now - KEPT_FAILED_S
        )
        for row in await self._submissions.with_sessions(before, limit=CLEANED_AT_ONCE):
            for stage, session_id in kept_too_long(row, now):
                tries = row.predict_tries if stage is Stage.PREDICT else row.evaluate_tries
                if self._leads() and await self._all_removed(row, stage, session_id, tries):
                    gone: dict[str, Any] = {f"{stage}_session_id": ""}
                    await self._submissions.change(row.id, {row.state}, **gone)
        for score in await self._submissions.scores_with_sessions(
            limit=CLEANED_AT_ONCE, before=now - KEPT_SCORED_S
        ):
            of = await self._submissions.get(score.submission_id)
            if of is None or not self._leads():
                continue
            given = Stage.EVALUATE, score.session_id, score.tries, score.evaluation
            if await self._all_removed(of, *given):
                await self._submissions.change_score(
                    score.submission_id, score.evaluation, {score.state}, session_id=""
                )

    async def _stop_orphans(self) -> None:
        """Stop sessions of submissions that are gone, with their dataset: nobody takes their results."""
        steps = [
            one.value
            for one in self._state.sessions.values()
            if one.value.spec.submission_id
            and not one.value.state.is_ended
            and one.value.state is not SessionState.FINALIZING
        ]
        known = await self._submissions.known({one.spec.submission_id for one in steps})
        for session in steps:
            if session.spec.submission_id not in known and self._leads():
                why = "its dataset was removed, with its submissions"
                await self._stopper.stop(session, asked_by=GIVEN_UP_BY, grace_s=None, reason=why)

    async def _all_removed(
        self, row: SubmissionRow, stage: Stage, session_id: str, tries: int, evaluation: int = 0
    ) -> bool:
        """Remove the session of a step and those of its earlier tries; False: it has to be tried again later."""
        owner = row.owner if stage is Stage.PREDICT else row.dataset_owner
        for number in range(1, tries):
            request = owner, step_request(row.id, stage, number, evaluation)
            live = self._state.by_request(*request)
            earlier = live or await self._history.catalogue.session_by_request(*request)
            if earlier is not None and not await self._removed(earlier.id):
                return False
        return await self._removed(session_id)

    async def _removed(self, session_id: str) -> bool:
        """Remove a session; False: it has to be tried again later."""
        session = await self._references.by_id(session_id)
        if session is None:
            return True
        if not session.state.is_ended:
            return False
        try:
            await self._remover.remove(session)
        except NotFound:
            return True
        except (NsmlError, StoreError) as error:
            _log.warning("submissions.session_not_removed", session=session_id, reason=str(error))
            return False
        return True


def kept_too_long(row: SubmissionRow, now: float) -> list[tuple[Stage, str]]:
    """Return the sessions of a submission that is over, which have been kept for as long as they should."""
    is_scored = row.state is SubmissionState.SCORED
    predict_s = KEPT_FAILED_S if row.is_test else KEPT_PREDICT_S
    evaluate_s = KEPT_SCORED_S if is_scored else KEPT_FAILED_S
    kept = (
        (Stage.PREDICT, row.predict_session_id, predict_s),
        (Stage.EVALUATE, row.evaluate_session_id, evaluate_s),
    )
    return [
        (stage, session_id)
        for stage, session_id, kept_s in kept
        if session_id and now >= row.ended_at + kept_s
    ]


def _is_of_step(change: Change) -> bool:
    return isinstance(change, SessionChanged) and bool(change.session.spec.submission_id)


def _values(found: Scores) -> dict[str, Any]:
    return {
        "score": found.score,
        "private": found.private,
        "standard_error": found.standard_error,
        "checked": found.checked,
        "row_count": found.row_count,
    }


def _failed(fail: Fail, now: float) -> dict[str, Any]:
    return {
        "state": SubmissionState.FAILED,
        "cause": fail.cause,
        "message": fail.text,
        "ended_at": now,
    }
