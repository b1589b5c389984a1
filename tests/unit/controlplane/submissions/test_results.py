"""What an evaluation gave is parsed strictly: its dataset's owner wrote the program."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controlplane.domain.boards.values import SubmissionCause
from controlplane.submissions.pipeline import Fail
from controlplane.submissions.results import Scores, scores_in


def result(**given: Any) -> bytes:
    return json.dumps({"score": "0.5", "rows": 10, **given}).encode()


def test_a_whole_result() -> None:
    given = result(private="1e-3", standard_error=0.25, check="0.5", more=[1])
    assert scores_in(given) == Scores(
        score=0.5, private=0.001, standard_error=0.25, checked=0.5, row_count=10
    )


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"standard_error": -1.0}, None),
        ({"standard_error": None}, None),
        ({"standard_error": 0}, 0.0),
    ],
)
def test_a_standard_error_that_is_none_is_left_out(
    given: dict[str, Any], wanted: float | None
) -> None:
    found = scores_in(result(**given))
    assert isinstance(found, Scores)
    assert found.standard_error == wanted


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", SubmissionCause.EVALUATION_FAILED),
        (b"\xff", SubmissionCause.EVALUATION_FAILED),
        (b"[]", SubmissionCause.EVALUATION_FAILED),
        (b'{"score": 0.5}', SubmissionCause.EVALUATION_FAILED),
        (b'{"score": "0.5", "standard_error": 1e400}', SubmissionCause.EVALUATION_FAILED),
        (result(rows="many"), SubmissionCause.EVALUATION_FAILED),
        (result(score="nan"), SubmissionCause.NOT_FINITE),
        (result(score="0x1"), SubmissionCause.NOT_FINITE),
        (result(private="inf"), SubmissionCause.NOT_FINITE),
        (result(check=""), SubmissionCause.NOT_FINITE),
    ],
)
def test_what_is_no_result_fails(data: bytes, cause: SubmissionCause) -> None:
    found = scores_in(data)
    assert isinstance(found, Fail)
    assert found.cause is cause


@pytest.mark.parametrize("rows", [-1, 1 << 53])
def test_a_number_of_rows_that_cannot_be_is_not_known(rows: int) -> None:
    found = scores_in(result(rows=rows))
    assert isinstance(found, Scores)
    assert found.row_count == 0
