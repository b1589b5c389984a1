"""Boards to and from the contract's messages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from controlplane.domain.boards.values import (
    BestPer,
    BoardKind,
    BoardSettings,
    MetricValue,
    PublicScore,
    ScoreDirection,
    SubmissionLimit,
)
from controlplane.domain.errors import InvalidRequest
from controlplane.wire.resources import VISIBILITIES, to_visibility
from controlplane.wire.times import duration, seconds_of, timestamp
from nsml.v1 import boards_pb2 as pb

if TYPE_CHECKING:
    from enum import IntEnum

    from controlplane.boards.boards import Board

_OF_SESSIONS: Final = frozenset({"filter", "value", "visibility"})
_OF_DATASETS: Final = frozenset(
    {
        "public_score",
        "ladder_step",
        "limit",
        "failed_limit",
        "predict_time",
        "evaluate_time",
        "prediction_bytes",
        "is_open",
        "check_every",
    }
)
_ENUMS: Final[dict[str, type[IntEnum]]] = {
    "direction": ScoreDirection,
    "best_per": BestPer,
    "value": MetricValue,
    "public_score": PublicScore,
}
_PLAIN: Final = (
    "metric",
    "filter",
    "ladder_step",
    "prediction_bytes",
    "description",
    "is_open",
    "check_every",
)


def to_settings(message: pb.BoardSettings, known: BoardSettings, kind: BoardKind) -> BoardSettings:
    """Return settings with those of a request in place of the known ones.

    Raises:
        InvalidRequest: a setting of the other kind of board, or an unknown choice.
    """
    given = {field.name for field, _ in message.ListFields()}
    if wrong := given & (_OF_SESSIONS if kind is BoardKind.DATASET else _OF_DATASETS):
        names = ", ".join(sorted(one.replace("_", " ") for one in wrong))
        what = "datasets" if kind is BoardKind.METRIC else "sessions"
        raise InvalidRequest(
            f"only boards of {what} have: {names}",
            why="those of datasets are seen by who sees the dataset"
            if "visibility" in wrong
            else "",
        )
    changed: dict[str, Any] = {one: getattr(message, one) for one in _PLAIN if one in given}
    for name, of in _ENUMS.items():
        if name in given:
            changed[name] = _choice(of, getattr(message, name), name)
    if (visibility := to_visibility(message.visibility)) is not None:
        changed["visibility"] = visibility
    for name in ("limit", "failed_limit"):
        if name in given:
            changed[name] = _limit(getattr(message, name), getattr(known, name))
    if "predict_time" in given:
        changed["predict_s"] = seconds_of(message.predict_time)
    if "evaluate_time" in given:
        changed["evaluate_s"] = seconds_of(message.evaluate_time)
    return replace(known, **changed)


def to_best_per(number: int, known: BestPer) -> BestPer:
    """Return a choice of a request, else the board's own."""
    return BestPer(_choice(BestPer, number, "best_per")) if number else known


def _choice(of: type[IntEnum], number: int, name: str) -> IntEnum:
    try:
        return of(number)
    except ValueError:
        raise InvalidRequest(f"there is no {name.replace('_', ' ')} {number}") from None


def _limit(message: pb.SubmissionLimit, known: SubmissionLimit) -> SubmissionLimit:
    if not message.HasField("window"):
        return SubmissionLimit(count=message.count, window_s=known.window_s)
    return SubmissionLimit(count=message.count, window_s=seconds_of(message.window))


def board_message(board: Board, *, may_change: bool) -> pb.Board:
    """Build the message of a board, without its numbers."""
    return pb.Board(
        kind=int(board.kind),  # type: ignore[arg-type]
        owner=board.owner,
        name=board.name,
        settings=_settings_message(board),
        created_at=timestamp(board.created_at),
        may_change=may_change,
    )


def _settings_message(board: Board) -> pb.BoardSettings:
    settings = board.settings
    message = pb.BoardSettings(
        metric=settings.metric,
        direction=int(settings.direction),  # type: ignore[arg-type]
        best_per=int(settings.best_per),  # type: ignore[arg-type]
        visibility=VISIBILITIES[board.visibility],
        description=settings.description,
    )
    if board.kind is BoardKind.METRIC:
        message.filter = settings.filter
        message.value = int(settings.value)  # type: ignore[assignment]
        return message
    message.public_score = int(settings.public_score)  # type: ignore[assignment]
    message.ladder_step = settings.ladder_step
    message.limit.CopyFrom(_limit_message(settings.limit))
    message.failed_limit.CopyFrom(_limit_message(settings.failed_limit))
    message.predict_time.CopyFrom(duration(settings.predict_s))
    message.evaluate_time.CopyFrom(duration(settings.evaluate_s))
    message.prediction_bytes = settings.prediction_bytes
    message.is_open = settings.is_open
    message.check_every = settings.check_every
    return message


def _limit_message(limit: SubmissionLimit) -> pb.SubmissionLimit:
    return pb.SubmissionLimit(count=limit.count, window=duration(limit.window_s))
