"""Values in the tables of boards and submissions."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from controlplane.domain.boards.scores import standard_error
from controlplane.domain.boards.values import (
    DEFAULT_SETTINGS,
    BestPer,
    BoardKind,
    BoardSettings,
    Entry,
    MetricValue,
    PublicScore,
    ScoreDirection,
    SubmissionCause,
    SubmissionLimit,
    SubmissionState,
)
from controlplane.domain.values import Visibility

if TYPE_CHECKING:
    from collections.abc import Callable

    from controlplane.history.values import PageKey


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardRow:
    """A board. The board of a dataset has a row once a setting was changed: until then DEFAULT_SETTINGS hold.

    Attributes:
        team: the owner's at its creation, for boards of sessions; those of datasets are seen as the dataset is.
    """

    owner: str
    name: str
    kind: BoardKind
    settings: BoardSettings
    created_at: float
    team: str = ""

    @property
    def visibility(self) -> Visibility:
        """Of a board of sessions."""
        return self.settings.visibility


class BoardMaking(NamedTuple):
    """The result of making a board; both False: there is one of that name."""

    is_made: bool = False
    is_full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionRow:
    """A submission. Instants are Unix times, 0.0: not yet; texts and numbers that are not known are "" and 0.

    Attributes:
        number: its place among the submissions to its dataset, test ones included, from 1; 0 before it is added.
        owner_id: permanent id of the owner, whose name may get another user.
        team: the owner's when it was submitted; "": none.
        session, predict_session, evaluate_session: full names.
        args: the session's arguments as one line.
        checkpoint_digest: of its manifest.
        predict_tries, evaluate_tries: sessions made for each step.
        prediction_digest: of the prediction's manifest, which is kept as long as the submission.
        request_id: unique per owner; "": none.
        gpu_seconds: of the submitted session until then.
        rerun_of: the submission that it repeats, for a competition's organiser: it counts for nobody; "": none.
        failing_since: since when its step has failed again and again by an error of the platform; 0.0: it does not.
    """

    id: str
    owner: str
    dataset_owner: str
    dataset: str
    dataset_version: int
    session_id: str
    session: str
    checkpoint: str
    submitted_at: float
    number: int = 0
    owner_id: str = ""
    team: str = ""
    args: str = ""
    memo: str = ""
    checkpoint_digest: str = ""
    is_test: bool = False
    batch: int = 0
    state: SubmissionState = SubmissionState.QUEUED
    cause: SubmissionCause = SubmissionCause.NONE
    message: str = ""
    ended_at: float = 0.0
    predict_session_id: str = ""
    predict_session: str = ""
    predict_tries: int = 0
    predict_started_at: float = 0.0
    predict_ended_at: float = 0.0
    evaluate_session_id: str = ""
    evaluate_session: str = ""
    evaluate_tries: int = 0
    evaluate_started_at: float = 0.0
    evaluate_ended_at: float = 0.0
    prediction_digest: str = ""
    request_id: str = ""
    gpu_seconds: float = 0.0
    rerun_of: str = ""
    failing_since: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """The evaluation of a submission's prediction in one version of a board's scores.

    Attributes:
        evaluation: the version, from 1; 0 in SqlSubmissions.change: the one that is shown.
        state: EVALUATING, SCORED or FAILED.
        private: score on the rows that participants do not see; None: there are none.
        checked: score of a second evaluation of the same prediction; None: there was none.
        row_count: rows that were scored; 0: not known.
        session_id, session, tries: of a re-evaluation; those of the first evaluation are in the SubmissionRow.
        ended_at: when it got its score or failed; 0.0: not yet.
        failing_since: of a re-evaluation, as that of the SubmissionRow.
    """

    submission_id: str
    evaluation: int = 0
    state: SubmissionState = SubmissionState.SCORED
    cause: SubmissionCause = SubmissionCause.NONE
    message: str = ""
    score: float | None = None
    private: float | None = None
    standard_error: float | None = None
    checked: float | None = None
    row_count: int = 0
    session_id: str = ""
    session: str = ""
    tries: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0
    failing_since: float = 0.0


class SubmissionEntry(NamedTuple):
    """A submission with its score in one version; None: not evaluated in it."""

    row: SubmissionRow
    score: ScoreRow | None = None

    @property
    def state(self) -> SubmissionState:
        """Of this version."""
        return self.row.state if self.score is None else self.score.state

    @property
    def cause(self) -> SubmissionCause:
        """Of this version."""
        return self.row.cause if self.score is None else self.score.cause


class SubmissionPage(NamedTuple):
    """A page of submissions, newest first; `next`: `after` of the next page, None after the last."""

    entries: tuple[SubmissionEntry, ...]
    next: PageKey | None = None


class PastSubmissions(NamedTuple):
    """When a participant submitted to a dataset in a window, oldest first; without test ones.

    Attributes:
        counted: those that were scored or are on their way.
        failed: those that failed by their own code; of what failed otherwise (NOT_COUNTED) there is nothing.
    """

    counted: tuple[float, ...] = ()
    failed: tuple[float, ...] = ()


class EvaluationState(NamedTuple):
    """The versions of a board's scores.

    Attributes:
        shown: the version that the board shows.
        newest: greater than `shown` while predictions are evaluated again.
        done, of: how many of how many are evaluated in `newest`, while it is not shown; else 0.
        dataset_version: the version of the dataset whose evaluation `newest` uses; 0: of each submission.
        shown_dataset_version: the same of `shown`.
    """

    shown: int = 1
    newest: int = 1
    done: int = 0
    of: int = 0
    dataset_version: int = 0
    shown_dataset_version: int = 0

    @property
    def is_running(self) -> bool:
        """Whether a re-evaluation is not over."""
        return self.newest > self.shown


class BoardCounts(NamedTuple):
    """Submissions to a dataset, test ones and re-runs apart, in the version of scores that is shown.

    Attributes:
        failed: how many of all failed.
        own_failed: of these, of the participant who asks.
        has_private: some have a score on private rows.
    """

    every: int = 0
    failed: int = 0
    own_failed: int = 0
    has_private: bool = False
    state: EvaluationState = EvaluationState()


def entry_of(found: SubmissionEntry, *, is_private: bool = False) -> Entry:
    """Return what is ranked of a submission, by its exact score or the one on private rows.

    It counts as scored when its first evaluation ended, so that a re-evaluation changes no order of scores shown.
    """
    row, score = found
    value, error = None, None
    if score is not None and score.state is SubmissionState.SCORED:
        value = score.private if is_private else score.score
    if score is not None and value is not None and not is_private:
        error = standard_error(value, score.standard_error, score.row_count)
    return Entry(
        id=row.id,
        owner=row.owner,
        team=row.team,
        score=value,
        submitted_at=row.submitted_at,
        scored_at=row.ended_at,
        standard_error=error,
        digest=row.prediction_digest,
    )


SUBMITTED: Final = "submitted"
"""The key that `Changes.follow` takes for new submissions and re-evaluations, of any dataset."""


def board_key(owner: str, name: str) -> str:
    """The key that `Changes.follow` takes for the board of a dataset: reported after each change of its submissions."""
    return f"board/{owner}/{name}"


def _limit(value: Any) -> SubmissionLimit:
    count, window_s = value
    return SubmissionLimit(count=int(count), window_s=float(window_s))


_READ: Final[dict[str, Callable[[Any], Any]]] = {
    "direction": ScoreDirection,
    "best_per": BestPer,
    "value": MetricValue,
    "public_score": PublicScore,
    "visibility": Visibility,
    "limit": _limit,
    "failed_limit": _limit,
}


def encode_settings(settings: BoardSettings) -> str:
    """Encode as JSON."""
    values = {one.name: getattr(settings, one.name) for one in fields(settings)}
    for name in ("limit", "failed_limit"):
        values[name] = [values[name].count, values[name].window_s]
    return json.dumps(values, separators=(",", ":"))


def decode_settings(text: str, kind: BoardKind) -> BoardSettings:
    """Decode; what a newer version wrote and this one does not know is left at its default."""
    default = DEFAULT_SETTINGS[kind]
    found = json.loads(text)
    values = {}
    for one in fields(default):
        values[one.name] = getattr(default, one.name)
        if one.name in found:
            parse = _READ.get(one.name, type(values[one.name]))
            with contextlib.suppress(ValueError, TypeError):
                values[one.name] = parse(found[one.name])
    return BoardSettings(**values)
