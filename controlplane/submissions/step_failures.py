"""Failures of steps by errors that the platform does not expect: since when, and when the next try is.

An outage of a store is none: it is a condition of its own, and steps go on as soon as it ends.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from controlplane.domain.boards.values import SubmissionState
from controlplane.domain.errors import NsmlError, Unavailable
from controlplane.history.errors import HistoryFenced
from controlplane.store.interface import (
    CommitUnknown,
    Compacted,
    LeaseLost,
    StoreUnavailable,
)
from controlplane.submissions.pipeline import REEVALUATE, Stage
from nsml.common.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from controlplane.history.board_values import ScoreRow
    from controlplane.history.sql.submissions import SqlSubmissions
    from nsml.common.clock import Clock

SHOWN_AFTER: Final = 3
"""Failures in a row until people see them; until then each sweep tries again."""
FIRST_PAUSE_S: Final = 5.0
"""Between tries after that; doubled after each,"""
LONGEST_PAUSE_S: Final = 300.0
"""up to this one."""
_OUTAGES: Final = (
    Unavailable,
    HistoryFenced,
    StoreUnavailable,
    CommitUnknown,
    LeaseLost,
    Compacted,
)
_PACKAGE: Final = "controlplane"
_ANY: Final = frozenset(SubmissionState)
_log = structlog.get_logger()


class StepKey(NamedTuple):
    """A step: the current one of a submission, or its evaluation for a later version of scores."""

    submission_id: str
    evaluation: int = 0
    """The version, of a re-evaluation; 0: it is none."""


class Shown(NamedTuple):
    """A step as its row shows it to people.

    Attributes:
        step: its name.
        failing_since: Unix time since when it shows a failure; 0.0: it does not.
    """

    step: str
    failing_since: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A step that failed.

    Attributes:
        evidence: the last error, for administrators.
        since: Unix time of the first failure of those in a row.
        count: failures in a row.
        next_at: when it is tried again, by the monotonic clock.
    """

    step: str
    evidence: str
    since: float
    count: int
    next_at: float

    @property
    def is_shown(self) -> bool:
        """Whether people see it."""
        return self.count >= SHOWN_AFTER


def is_unexpected(error: Exception) -> bool:
    """Whether an error is none of an outage, nor of a change of leaders."""
    return not isinstance(error, _OUTAGES)


def after_failure(
    known: Failure | None, shown: Shown, error: Exception, *, time: float, now: float
) -> Failure:
    """Return the failure of a step after one more error.

    Args:
        known: the failure before; None: it did not fail last time.
        shown: its row: another leader may have counted its failures before.
        error: the last one.
        time: Unix time.
        now: the same by the monotonic clock.
    """
    before = known if known is not None and known.step == shown.step else None
    since = before.since if before is not None else shown.failing_since or time
    first = SHOWN_AFTER if shown.failing_since else 1
    count = before.count + 1 if before is not None else first
    return Failure(
        step=shown.step,
        evidence=_evidence(error),
        since=since,
        count=count,
        next_at=now + _pause_s(count),
    )


def _pause_s(count: int) -> float:
    if count < SHOWN_AFTER:
        return 0.0
    doubled = min(count - SHOWN_AFTER, 32)
    return min(FIRST_PAUSE_S * 2.0**doubled, LONGEST_PAUSE_S)


def _evidence(error: Exception) -> str:
    """Return the type of an error and the last of our lines that it went through: `KeyError in results.py:80`.

    With its text if that is written for people: an unexpected error may quote anything, secrets too.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if _PACKAGE in PurePath(one.filename).parts]
    at = f" in {PurePath(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    text = f": {error}" if isinstance(error, NsmlError) else ""
    return f"{type(error).__name__}{at}{text}"


def found_by_step(failures: Iterable[tuple[StepKey, Failure]]) -> dict[str, str]:
    """Return the steps at which submissions fail, each with how many, and the oldest failure."""
    by_step: dict[str, list[tuple[float, str, str]]] = {}
    for key, one in failures:
        if one.is_shown:
            by_step.setdefault(one.step, []).append((one.since, key.submission_id, one.evidence))
    return {
        step: f"{counted(len(some), 'submission')}; the first, {min(some)[1]}: {min(some)[2]}"
        for step, some in sorted(by_step.items())
    }


class StepFailures:
    """The steps that failed last time.

    Args:
        report: called with what `found_by_step` returns, after each change of it.
    """

    def __init__(
        self,
        submissions: SqlSubmissions,
        clock: Clock,
        report: Callable[[dict[str, str]], None],
    ) -> None:
        self._submissions = submissions
        self._clock = clock
        self._report = report
        self._known: dict[StepKey, Failure] = {}
        self._reported: dict[str, str] = {}

    def may_try(self, key: StepKey) -> bool:
        """Whether a step may be tried now."""
        known = self._known.get(key)
        return known is None or self._clock.monotonic() >= known.next_at

    def has(self, key: StepKey) -> bool:
        """Whether a step failed last time."""
        return key in self._known

    @property
    def evaluations(self) -> int:
        """How many evaluations of re-evaluations failed last time."""
        return sum(bool(key.evaluation) for key in self._known)

    async def failed(self, key: StepKey, error: Exception) -> None:
        """Note that a step failed, and show it to people once that is so again and again."""
        shown = await self._shown(key)
        failure = self._known[key] = after_failure(
            self._known.get(key),
            shown,
            error,
            time=self._clock.time(),
            now=self._clock.monotonic(),
        )
        self._update()
        if failure.is_shown and not shown.failing_since:
            await self._show(key, failure.since)

    async def recovered(self, key: StepKey, failing_since: float) -> None:
        """Note that a step did not fail; `failing_since`: as its row shows it until now."""
        self._forget([key])
        if failing_since:
            await self._show(key, 0.0)

    def keep(self, submission_ids: Collection[str]) -> None:
        """Forget failures of all submissions but these, apart from re-evaluations."""
        self._forget(
            [
                key
                for key in self._known
                if not key.evaluation and key.submission_id not in submission_ids
            ]
        )

    async def forget_evaluations(self) -> None:
        """Forget failures of evaluations that are over, or gone with their dataset.

        Raises:
            HistoryUnavailable: they cannot be read now.
        """
        for key in [key for key in self._known if key.evaluation]:
            score = await self._score(key)
            if score is None or score.state.is_over:
                self._forget([key])

    def clear(self) -> None:
        """Forget all: another control plane leads."""
        self._forget(list(self._known))

    def _forget(self, keys: Iterable[StepKey]) -> None:
        gone = [self._known.pop(key, None) for key in keys]
        if any(gone):
            self._update()

    def _update(self) -> None:
        found = found_by_step(self._known.items())
        if found != self._reported:
            self._reported = found
            self._report(found)

    async def _shown(self, key: StepKey) -> Shown:
        try:
            if key.evaluation:
                score = await self._score(key)
                return Shown(REEVALUATE, score.failing_since if score is not None else 0.0)
            row = await self._submissions.get(key.submission_id)
        except Exception as error:  # noqa: BLE001 - it may be what failed
            _log.warning("submission.not_read", submission=key.submission_id, reason=str(error))
            known = self._known.get(key)
            return Shown(known.step if known is not None else "read")
        if row is None:
            return Shown("read")
        stage = Stage.EVALUATE if row.prediction_digest else Stage.PREDICT
        return Shown(stage.value, row.failing_since)

    async def _score(self, key: StepKey) -> ScoreRow | None:
        scores = await self._submissions.scores_of(key.submission_id)
        return next((one for one in scores if one.evaluation == key.evaluation), None)

    async def _show(self, key: StepKey, since: float) -> None:
        try:
            if key.evaluation:
                await self._submissions.change_score(*key, _ANY, failing_since=since)
            else:
                await self._submissions.change(key.submission_id, _ANY, failing_since=since)
        except Exception as error:  # noqa: BLE001 - the condition shows it all the same
            _log.warning("submission.not_changed", submission=key.submission_id, reason=str(error))
