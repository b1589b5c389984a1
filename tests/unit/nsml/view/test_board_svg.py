"""Pictures of boards: safe to embed whatever users wrote, and readable."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from nsml.v1 import boards_pb2 as pb
from nsml.view.board_svg import ROWS, WIDTH, board_svg


def board(**settings: object) -> pb.Board:
    return pb.Board(
        kind=pb.BOARD_KIND_METRIC,
        owner="kim",
        name="acc",
        settings=pb.BoardSettings(metric="val/acc", **settings),  # type: ignore[arg-type]
        entry_count=3,
    )


def entry(rank: int, owner: str = "lee", **facts: object) -> pb.BoardEntry:
    return pb.BoardEntry(rank=rank, owner=owner, score=1.0 / rank, **facts)  # type: ignore[arg-type]


def texts(picture: str) -> list[str]:
    return [one.text or "" for one in ET.fromstring(picture).iter() if one.tag.endswith("}text")]


def test_a_row_has_rank_change_user_score_and_trend() -> None:
    rows = [
        entry(1, team="vision", rank_before=3, standard_error=0.0125, trend=[0.5, 0.75, 1.0]),
        entry(2, "max", rank_before=1),
        pb.BoardEntry(owner="eva"),
    ]
    picture = board_svg(board(), rows)
    found = texts(picture)
    assert found[:3] == ["kim/acc", "val/acc", "3 entries"]
    assert found[3:-1] == ["1", "▲2", "lee (vision)", "1 ± 0.013", "2", "▼1", "max", "0.5"]
    assert found[-1] == "val/acc, the greatest first"
    assert picture.count("<polyline") == 1
    assert 'width="640"' in picture
    assert "prefers-color-scheme: dark" in picture


def test_different_scores_look_different() -> None:
    rows = [pb.BoardEntry(rank=1, owner="lee", score=5 / 6)]
    assert "0.833333" in texts(board_svg(board(), rows))
    rows.append(pb.BoardEntry(rank=2, owner="max", score=0.83333332))
    assert {"0.83333333", "0.83333332"} <= {*texts(board_svg(board(), rows))}


def test_only_the_first_rows_are_in_it() -> None:
    found = texts(board_svg(board(), [entry(rank) for rank in range(1, 50)]))
    assert found.count("lee") == ROWS


def test_a_board_without_scores_says_so() -> None:
    assert "no entries with a score yet" in texts(board_svg(board(), [pb.BoardEntry(owner="a")]))


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        "]]></style><script>",
        "\x1b[31mred",
        "\u202eabc",
        "a\u200bb\ufeff",
        "\U000e0041tag",
        "\x00\x08\uffff",
        "&lt;&#x41;",
        "x" * 10_000,
        "\n\r\u2028",
        "字" * 500,
    ],
)
def test_what_users_wrote_is_text_alone(hostile: str) -> None:
    row = entry(1, hostile, team=hostile)
    picture = board_svg(board(description=hostile), [row])
    tags = {one.tag.rpartition("}")[2] for one in ET.fromstring(picture).iter()}
    assert tags <= {"svg", "title", "desc", "style", "rect", "text", "line", "polyline"}
    assert not set("\x1b\u202e\u200b\ufeff\U000e0041\u2028\x00") & set(picture)
    assert len(picture) < 25_000


@pytest.mark.parametrize(
    "trend", [[1.0, 1.0], [-1.7e308, 1.7e308], [0.0] * 32, [5e-324, 0.0], [1.0]]
)
def test_any_trend_stays_in_the_picture(trend: list[float]) -> None:
    picture = board_svg(board(), [entry(1, trend=trend)])
    for line in ET.fromstring(picture).iter():
        for point in line.get("points", "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= WIDTH
            assert 60 <= y <= 100
