"""What settings of boards are possible."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from controlplane.domain.boards.values import DAY_S, DEFAULT_SETTINGS, BoardKind, BoardSettings
from controlplane.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from controlplane.domain.boards.values import SubmissionLimit

MOST_METRIC: Final = 256
"""Maximum characters in the name of a metric."""
MOST_FILTER: Final = 1_000
MOST_DESCRIPTION: Final = 300
MOST_SUBMISSIONS: Final = 1_000_000
"""Maximum count of a limit."""
LEAST_WINDOW_S: Final = 60.0
MOST_WINDOW_S: Final = 366.0 * DAY_S
MOST_PREDICT_S: Final = 7.0 * DAY_S
MOST_EVALUATE_S: Final = DAY_S
MOST_PREDICTION_BYTES: Final = 64 << 30
MOST_CHECK_EVERY: Final = 1_000_000

_OF_SESSIONS: Final = frozenset({"filter", "value", "visibility"})
_OF_DATASETS: Final = frozenset(
    {
        *("public_score", "ladder_step", "limit", "failed_limit", "predict_s", "evaluate_s"),
        *("prediction_bytes", "is_open", "check_every"),
    }
)
_WORDS: Final = {
    "public_score": "public score",
    "ladder_step": "step of the Ladder",
    "failed_limit": "limit of failed submissions",
    "limit": "limit of submissions",
    "predict_s": "time of predictions",
    "evaluate_s": "time of evaluations",
    "prediction_bytes": "size of predictions",
    "is_open": "closing of submissions",
    "check_every": "second evaluation",
}


def check_settings(settings: BoardSettings, kind: BoardKind) -> BoardSettings:
    """Check and return all settings of a board.

    Raises:
        InvalidRequest: one is not possible, or of the other kind of board. Filters are not parsed.
    """
    _check_kind(settings, kind)
    if kind is BoardKind.METRIC and not settings.metric:
        raise InvalidRequest("a board needs a metric", attempt="--metric val/acc")
    _check_line(settings.metric, "name of the metric", MOST_METRIC)
    _check_line(settings.filter, "filter", MOST_FILTER)
    _check_line(settings.description, "description", MOST_DESCRIPTION)
    if not (math.isfinite(settings.ladder_step) and settings.ladder_step >= 0.0):
        raise InvalidRequest(
            f"the step of the Ladder cannot be {settings.ladder_step}",
            why="it is a difference of scores, or 0 for their standard error",
        )
    _check_limit(settings.limit, "limit of submissions")
    _check_limit(settings.failed_limit, "limit of failed submissions")
    _check_span(settings.predict_s, "time of predictions", 1.0, MOST_PREDICT_S)
    _check_span(settings.evaluate_s, "time of evaluations", 1.0, MOST_EVALUATE_S)
    _check_count(settings.prediction_bytes, "bytes of predictions", 1, MOST_PREDICTION_BYTES)
    _check_count(settings.check_every, "interval of second evaluations", 0, MOST_CHECK_EVERY)
    return settings


def _check_kind(settings: BoardSettings, kind: BoardKind) -> None:
    of_others, where = (
        (_OF_DATASETS, "datasets") if kind is BoardKind.METRIC else (_OF_SESSIONS, "sessions")
    )
    default = DEFAULT_SETTINGS[kind]
    for name in (one.name for one in fields(settings)):
        if name in of_others and getattr(settings, name) != getattr(default, name):
            raise InvalidRequest(
                f"this board cannot have a {_WORDS.get(name, name)}",
                why=f"only boards of {where} have one"
                if name != "visibility"
                else "who sees the dataset sees its board",
                attempt="nsml dataset share DATASET --public" if name == "visibility" else "",
            )


def _check_line(text: str, what: str, most: int) -> None:
    if len(text) > most:
        raise InvalidRequest(f"the {what} has {len(text)} characters", why=f"at most {most}")
    if not text.isprintable():
        raise InvalidRequest(
            f"the {what} {text[:40]!a} is not one line of text",
            why="it has line breaks or control characters",
        )


def _check_limit(limit: SubmissionLimit, what: str) -> None:
    _check_count(limit.count, what, 0, MOST_SUBMISSIONS)
    _check_span(limit.window_s, f"window of the {what}", LEAST_WINDOW_S, MOST_WINDOW_S)


def _check_count(count: int, what: str, least: int, most: int) -> None:
    if not least <= count <= most:
        raise InvalidRequest(f"the {what} cannot be {count}", why=f"{least} to {most:,}")


def _check_span(seconds: float, what: str, least: float, most: float) -> None:
    if not least <= seconds <= most:  # NaN neither
        raise InvalidRequest(
            f"the {what} cannot be {seconds:g} s", why=f"{least:g} to {most:g} seconds"
        )
