"""Values of boards and submissions. Numbers of enumerations are those of nsml/v1/boards.proto, and are stored."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from controlplane.domain.values import Visibility

DAY_S: Final = 86_400.0


class BoardKind(enum.IntEnum):
    """What a board ranks: sessions by a metric, or submissions to a dataset."""

    METRIC = 1
    DATASET = 2


class ScoreDirection(enum.IntEnum):
    """Which scores are better: the greatest or the least."""

    MAX = 1
    MIN = 2


class BestPer(enum.IntEnum):
    """Which entries are listed: all, or the best of each user or team; users without a team by themselves."""

    NONE = 1
    USER = 2
    TEAM = 3


class MetricValue(enum.IntEnum):
    """Which value of a session's metric counts."""

    BEST = 1
    LAST = 2


class PublicScore(enum.IntEnum):
    """What is shown of the scores of submissions; see `public_scores`."""

    EXACT = 1
    OWN_BEST = 2
    LADDER = 3


class SubmissionState(enum.IntEnum):
    """Where a submission is."""

    QUEUED = 1
    PREDICTING = 2
    EVALUATING = 3
    SCORED = 4
    FAILED = 5

    @property
    def is_over(self) -> bool:
        """Whether it has a score, or never will."""
        return self in OVER


OVER: Final = frozenset({SubmissionState.SCORED, SubmissionState.FAILED})
UNFINISHED: Final = frozenset(set(SubmissionState) - OVER)


class SubmissionCause(enum.IntEnum):
    """Why a submission failed; NONE: it did not."""

    NONE = 0
    ENDED_EARLY = 1
    NOT_PAUSED = 2
    LOAD_FAILED = 3
    INFER_FAILED = 4
    NO_PREDICTION = 5
    TOO_LARGE = 6
    PREDICTION_TIMEOUT = 7
    MALFORMED = 8
    EVALUATION_FAILED = 9
    EVALUATION_TIMEOUT = 10
    NOT_FINITE = 11
    PLATFORM = 12
    REMOVED = 13
    STOPPED = 14
    LIMIT_EXCEEDED = 15


NOT_COUNTED: Final = frozenset({SubmissionCause.PLATFORM, SubmissionCause.REMOVED})
"""Causes of failed submissions that count for no limit: the participant's code did not fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionLimit:
    """At most `count` submissions of a participant in the last `window_s` seconds; 0: no limit."""

    count: int = 0
    window_s: float = DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSettings:
    """What the owner of a board sets; see nsml.v1.BoardSettings.

    Attributes:
        filter: which sessions count, as `nsml ps --filter` takes it; "": all.
        ladder_step: in units of the score; 0: the standard error of the difference.
        limit: of submissions that were scored or are on their way.
        failed_limit: of those that failed by their own code.
        predict_s: from the call of nsml.paused().
        check_every: one evaluation in so many runs twice; 0: none.
    """

    metric: str = ""
    direction: ScoreDirection = ScoreDirection.MAX
    filter: str = ""
    best_per: BestPer = BestPer.NONE
    value: MetricValue = MetricValue.BEST
    public_score: PublicScore = PublicScore.EXACT
    ladder_step: float = 0.0
    limit: SubmissionLimit = SubmissionLimit()
    failed_limit: SubmissionLimit = SubmissionLimit()
    predict_s: float = 3_600.0
    evaluate_s: float = 600.0
    prediction_bytes: int = 256 * 1024 * 1024
    visibility: Visibility = Visibility.PRIVATE
    description: str = ""
    is_open: bool = True
    check_every: int = 0


DEFAULT_SETTINGS: Final = {
    BoardKind.METRIC: BoardSettings(best_per=BestPer.USER),
    BoardKind.DATASET: BoardSettings(),
}
"""Settings of a board of which nothing was set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is ranked: a session, or a submission.

    Attributes:
        id: unique on its board.
        team: the owner's when it was submitted; "": none.
        score: None: it has none; an infinity or NaN is treated so too.
        submitted_at: of a session, when the value was reported.
        scored_at: when it got its first score; of a session, as `submitted_at`.
        standard_error: of the score; None: not known.
        digest: of the prediction; "": not known.
    """

    id: str
    owner: str
    score: float | None
    submitted_at: float
    team: str = ""
    scored_at: float = 0.0
    standard_error: float | None = None
    digest: str = ""

    @property
    def participant(self) -> tuple[str, str]:
        """The team, else the user: ("team" or "user", name)."""
        return ("team", self.team) if self.team else ("user", self.owner)
