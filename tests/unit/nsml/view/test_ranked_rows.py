"""What boards and standings show alike."""

from __future__ import annotations

import pytest

from nsml.v1 import boards_pb2
from nsml.v1 import competitions_pb2 as pb
from nsml.view import boards, competitions
from nsml.view import ranked_rows as view

SHARED = ("rank", "rank_before", "private_score", "submitted_at", "gpu_seconds", "trend")


@pytest.mark.parametrize("kind", [boards_pb2.BoardEntry, pb.Standing])
@pytest.mark.parametrize(
    ("rank", "before", "text"),
    [(1, 3, "+2"), (3, 1, "-2"), (2, 2, ""), (4, 0, "new"), (0, 3, ""), (0, 0, "")],
)
def test_changes_of_ranks(
    kind: type[boards_pb2.BoardEntry | pb.Standing], rank: int, before: int, text: str
) -> None:
    assert view.change_text(kind(rank=rank, rank_before=before)) == text


def test_a_trend_rises_when_scores_get_better() -> None:
    assert view.trend_text([0.1, 0.5, 0.9], is_min=False) == "▁▅█"
    assert view.trend_text([0.9, 0.5, 0.1], is_min=True) == "▁▅█"
    assert view.trend_text([0.5, 0.5], is_min=True) == "▁▁"
    assert view.trend_text([0.5], is_min=True) == ""


@pytest.mark.parametrize(("seconds", "text"), [(0, "-"), (0.2, "<1s"), (5400, "1h30m")])
def test_gpu_time(seconds: float, text: str) -> None:
    assert view.gpu_time_text(seconds) == text


def test_shared_columns_show_the_same_of_an_entry_and_of_a_team() -> None:
    values = {"rank": 2, "rank_before": 3, "score": 0.25, "private_score": 0.5, "gpu_seconds": 60.0}
    entry = boards_pb2.BoardEntry(**values, trend=[0.1, 0.9])
    row = pb.Standing(**values, trend=[0.1, 0.9])
    entry.submitted_at.seconds = row.submitted_at.seconds = 1_000
    of_board = {one.key: one for one in boards.columns_for(boards_pb2.Board())}
    of_standings = {one.key: one for one in competitions.standing_columns()}
    for key in (*SHARED, "score"):
        one, other = of_board[key], of_standings[key]
        assert one.title == other.title
        assert one.cell(entry, 2_000.0) == other.cell(row, 2_000.0) != "-", key
