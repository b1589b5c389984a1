"""Settings and names of boards, and predictions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.boards.board_names import BoardReference, check_board, parse_board
from controlplane.domain.boards.predictions import (
    PredictedFile,
    PredictionRefused,
    check_prediction,
)
from controlplane.domain.boards.settings import check_settings
from controlplane.domain.boards.values import (
    DEFAULT_SETTINGS,
    BestPer,
    BoardKind,
    MetricValue,
    PublicScore,
    ScoreDirection,
    SubmissionCause,
    SubmissionLimit,
    SubmissionState,
)
from controlplane.domain.errors import InvalidRequest
from controlplane.domain.values import Visibility
from nsml.v1 import boards_pb2

METRIC = replace(DEFAULT_SETTINGS[BoardKind.METRIC], metric="val/acc")
DATASET = DEFAULT_SETTINGS[BoardKind.DATASET]


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        (BoardKind, boards_pb2.BoardKind),
        (ScoreDirection, boards_pb2.ScoreDirection),
        (BestPer, boards_pb2.BestPer),
        (MetricValue, boards_pb2.MetricValue),
        (PublicScore, boards_pb2.PublicScore),
        (SubmissionState, boards_pb2.SubmissionState),
        (SubmissionCause, boards_pb2.SubmissionCause),
    ],
)
def test_numbers_are_those_of_the_contract(kind: Any, numbers: Any) -> None:
    named = dict(numbers.items())
    prefix = next(name for name, number in named.items() if not number).removesuffix("UNSPECIFIED")
    of_contract = {name.removeprefix(prefix): number for name, number in named.items() if number}
    assert {one.name: int(one) for one in kind if one} == of_contract


def test_possible_settings_stay() -> None:
    metric = replace(
        METRIC,
        direction=ScoreDirection.MIN,
        filter="owner=kim",
        best_per=BestPer.TEAM,
        value=MetricValue.LAST,
        visibility=Visibility.PUBLIC,
        description="손글씨",
    )
    assert check_settings(metric, BoardKind.METRIC) == metric
    dataset = replace(
        DATASET,
        metric="accuracy",
        best_per=BestPer.USER,
        public_score=PublicScore.LADDER,
        ladder_step=0.01,
        limit=SubmissionLimit(count=5),
        failed_limit=SubmissionLimit(count=20, window_s=3600.0),
        predict_s=60.0,
        evaluate_s=60.0,
        prediction_bytes=1,
        is_open=False,
        check_every=10,
    )
    assert check_settings(dataset, BoardKind.DATASET) == dataset
    assert check_settings(DATASET, BoardKind.DATASET) == DATASET


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"metric": ""}, "metric"),
        ({"metric": "x" * 257}, "257 characters"),
        ({"metric": "a\nb"}, "one line"),
        ({"description": "a\x1b[31mb"}, "one line"),
        ({"description": "a\u202eb"}, "one line"),
        ({"filter": "x" * 1001}, "filter"),
        ({"public_score": PublicScore.LADDER}, "public score"),
        ({"limit": SubmissionLimit(count=1)}, "limit of submissions"),
        ({"is_open": False}, "closing"),
        ({"check_every": 2}, "second evaluation"),
    ],
)
def test_a_board_of_sessions_has_no_other_settings(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_settings(replace(METRIC, **changed), BoardKind.METRIC)
    assert said in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"filter": "owner=kim"}, "filter"),
        ({"value": MetricValue.LAST}, "value"),
        ({"visibility": Visibility.PUBLIC}, "visibility"),
        ({"ladder_step": -0.1}, "-0.1"),
        ({"ladder_step": math.nan}, "nan"),
        ({"ladder_step": math.inf}, "inf"),
        ({"limit": SubmissionLimit(count=-1)}, "-1"),
        ({"limit": SubmissionLimit(count=1_000_001)}, "1000001"),
        ({"limit": SubmissionLimit(count=1, window_s=0.0)}, "window of the limit of submissions"),
        ({"failed_limit": SubmissionLimit(window_s=math.nan)}, "failed submissions"),
        ({"failed_limit": SubmissionLimit(window_s=1e9)}, "failed submissions"),
        ({"predict_s": 0.0}, "time of predictions"),
        ({"predict_s": math.inf}, "time of predictions"),
        ({"evaluate_s": 1e6}, "time of evaluations"),
        ({"prediction_bytes": 0}, "bytes of predictions"),
        ({"prediction_bytes": 1 << 60}, "bytes of predictions"),
        ({"check_every": -1}, "second evaluations"),
    ],
)
def test_impossible_settings_of_a_dataset_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_settings(replace(DATASET, **changed), BoardKind.DATASET)
    assert said in refused.value.message
    assert refused.value.why


@pytest.mark.parametrize("name", ["a", "best-acc", "0.9_x", "a.b.c", "x" * 64])
def test_names_of_boards(name: str) -> None:
    assert check_board(name) == name
    assert parse_board(name) == BoardReference("", name)
    assert parse_board(f"kim/{name}") == BoardReference("kim", name)


@pytest.mark.parametrize(
    "name", ["", ".", "a..b", "a.", ".a", "-a", "A", "a/b", "a b", "x" * 65, "a\n", "\uff41"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="board"):
        check_board(name)


@pytest.mark.parametrize("text", ["", "/", "kim/", "/a", "a/b/c", "Kim/a", "a b", "..", "None"])
def test_other_references_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_board(text)
    assert refused.value.attempt == "NAME or OWNER/NAME"


def test_a_reference_names_the_board_of_a_dataset_as_the_dataset() -> None:
    assert parse_board("kim/MNIST_2") == BoardReference("kim", "MNIST_2")


@given(st.text(max_size=70))
def test_any_text_is_a_reference_or_refused(text: str) -> None:
    try:
        owner, name = parse_board(text)
    except InvalidRequest:
        return
    assert text == (f"{owner}/{name}" if owner else name)


def test_a_prediction_is_one_regular_file() -> None:
    one = PredictedFile("prediction", 100)
    assert check_prediction([one], 100) == one


@pytest.mark.parametrize(
    ("listing", "cause"),
    [
        ([], SubmissionCause.NO_PREDICTION),
        ([PredictedFile("prediction", 0)], SubmissionCause.NO_PREDICTION),
        ([PredictedFile("prediction", 101)], SubmissionCause.TOO_LARGE),
        ([PredictedFile("prediction", 5, is_regular=False)], SubmissionCause.MALFORMED),
        ([PredictedFile("prediction/x", 5)], SubmissionCause.MALFORMED),
        ([PredictedFile("../prediction", 5)], SubmissionCause.MALFORMED),
        ([PredictedFile("prediction", 5), PredictedFile("x", 5)], SubmissionCause.MALFORMED),
    ],
)
def test_what_is_no_prediction_has_a_cause(
    listing: list[PredictedFile], cause: SubmissionCause
) -> None:
    with pytest.raises(PredictionRefused) as refused:
        check_prediction(listing, 100)
    assert refused.value.cause is cause
