"""Boards and submissions as people and programs read them."""

from __future__ import annotations

import math

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from nsml.common.units import moment, short_moment
from nsml.v1 import boards_pb2 as pb
from nsml.view import boards as view
from nsml.view.tables import pick, render

NOW = 1_700_000_000.0


def submission(**fields) -> pb.Submission:
    made = pb.Submission(
        id="sub1", dataset="lee/digits", owner="kim", session="kim/digits/3", checkpoint="best"
    )
    made.MergeFrom(pb.Submission(**fields))
    return made


def at(seconds: float) -> Timestamp:
    return Timestamp(seconds=int(seconds))


CAUSES = [name for name in pb.SubmissionCause.keys() if not name.endswith("_UNSPECIFIED")]  # noqa: SIM118 - no mapping


def test_every_cause_of_the_contract_has_texts_of_its_own() -> None:
    assert {name.removeprefix("SUBMISSION_CAUSE_") for name in CAUSES} == set(view.CAUSE_WORDS)
    for texts in zip(*view.CAUSE_WORDS.values(), strict=True):
        assert all(texts)
    assert len({words.short for words in view.CAUSE_WORDS.values()}) == len(CAUSES)
    assert len({words.what for words in view.CAUSE_WORDS.values()}) == len(CAUSES)


def test_every_state_of_the_contract_has_a_word() -> None:
    states = {number for name, number in pb.SubmissionState.items() if "UNSPEC" not in name}
    assert states == set(view.STATE_WORDS)
    assert len({word.glyph for word in view.STATE_WORDS.values()}) == len(states)
    assert view.state_word(77).word == "77"


@pytest.mark.parametrize("cause", CAUSES)
def test_a_failure_says_what_happened_and_what_to_do(cause: str) -> None:
    number = pb.SubmissionCause.Value(cause)
    failed = submission(state=pb.SUBMISSION_STATE_FAILED, cause=number)
    words = view.cause_words(number)
    assert view.why_text(failed) == words.what
    assert "{" not in view.advice_text(failed)
    assert view.state_text(failed) == f"✗ Failed ({words.short})"
    assert view.progress_text(failed) == f"failed: {words.what}"
    assert view.submission_record(failed)["cause"] == cause.removeprefix("SUBMISSION_CAUSE_")


def test_the_platforms_own_sentence_comes_first() -> None:
    failed = submission(
        state=pb.SUBMISSION_STATE_FAILED,
        cause=pb.SUBMISSION_CAUSE_MALFORMED,
        message="the prediction has 99 rows, the test set 100",
    )
    assert view.why_text(failed) == "the prediction has 99 rows, the test set 100"


def test_advice_on_a_failed_evaluation_names_what_a_participant_may_read() -> None:
    failed = submission(
        state=pb.SUBMISSION_STATE_FAILED, cause=pb.SUBMISSION_CAUSE_EVALUATION_FAILED
    )
    advice = view.advice_text(failed)
    assert f"nsml dataset pull {failed.dataset} --only evaluation.py" in advice
    assert f"nsml submission info {failed.id}" in advice


def test_advice_names_the_open_logs_of_a_dry_run() -> None:
    failed = submission(
        state=pb.SUBMISSION_STATE_FAILED,
        cause=pb.SUBMISSION_CAUSE_LOAD_FAILED,
        is_test=True,
        steps=[pb.SubmissionStep(kind="predict", session="kim/digits/4")],
    )
    assert "nsml logs kim/digits/4" in view.advice_text(failed)
    failed.is_test = False
    assert "nsml submit -t kim/digits/3 best" in view.advice_text(failed)


def test_a_cause_of_a_newer_control_plane_is_named_by_its_number() -> None:
    failed = submission(state=pb.SUBMISSION_STATE_FAILED, cause=99)
    assert view.submission_record(failed)["cause"] == "99"
    assert view.why_text(failed)


@pytest.mark.parametrize(
    ("state", "step", "text"),
    [
        (pb.SUBMISSION_STATE_QUEUED, None, "queued"),
        (
            pb.SUBMISSION_STATE_QUEUED,
            pb.SubmissionStep(kind="predict", waiting="no GPU is free"),
            "queued: no GPU is free",
        ),
        (
            pb.SUBMISSION_STATE_PREDICTING,
            pb.SubmissionStep(kind="predict", started_at=at(NOW - 12)),
            "predicting for 12s",
        ),
        (
            pb.SUBMISSION_STATE_EVALUATING,
            pb.SubmissionStep(kind="predict", started_at=at(NOW - 12)),
            "evaluating",
        ),
        (
            pb.SUBMISSION_STATE_PREDICTING,
            pb.SubmissionStep(
                kind="predict", started_at=at(NOW - 12), waiting="a fault", failing_since=at(NOW)
            ),
            f"predicting: a fault (since {short_moment(NOW, NOW)})",
        ),
        (pb.SUBMISSION_STATE_SCORED, None, "scored"),
    ],
)
def test_progress_is_one_line(state: int, step: pb.SubmissionStep | None, text: str) -> None:
    one = submission(state=state, steps=[step] if step else [])
    assert view.progress_text(one, NOW) == text


def table(entries: list[pb.BoardEntry], room: int | None = None) -> list[str]:
    board = pb.Board(kind=pb.BOARD_KIND_DATASET, owner="lee", name="digits")
    columns = pick(view.columns_for(board, entries), items=entries)
    return list(render(columns, entries, now=NOW, room=room).lines)


def entries() -> list[pb.BoardEntry]:
    return [
        pb.BoardEntry(
            rank=1,
            rank_before=2,
            owner="kim",
            team="blue",
            score=0.98765432109,
            session="kim/digits/3",
            checkpoint="best",
            args="--lr 0.1",
            submission_id="sub2",
            state=pb.SUBMISSION_STATE_SCORED,
            is_own=True,
            submitted_at=at(NOW - 120),
            gpu_seconds=3600,
        ),
        pb.BoardEntry(
            owner="lee",
            session="lee/digits/1",
            checkpoint="9",
            submission_id="sub3",
            state=pb.SUBMISSION_STATE_FAILED,
            cause=pb.SUBMISSION_CAUSE_TOO_LARGE,
        ),
    ]


def test_a_board_is_a_table() -> None:
    lines = table(entries())
    assert lines[0].split() == [
        "Rank", "±", "Owner", "Team", "Score", "Submitted", "Session", "Model", "Args", "GPU", "time"
    ]  # fmt: skip
    assert "0.987654 " in lines[2]
    assert "kim (you)" in lines[2]
    assert "+1" in lines[2]
    assert lines[3].startswith("-")
    assert "✗ Failed (too large)" in lines[3]


@pytest.mark.parametrize("room", [80, 60, 40, 20])
def test_a_narrow_terminal_still_shows_ranks_and_scores(room: int) -> None:
    lines = table(entries(), room)
    assert all(len(line) <= room for line in lines)
    assert any("0.987654" in line for line in lines) or room < 40
    assert any("0.98" in line for line in lines)


def test_different_scores_of_a_table_look_different() -> None:
    close = entries()[0]
    close.rank, close.score = 2, 0.98765432108
    lines = table([entries()[0], close])
    assert "0.98765432109" in lines[2]
    assert "0.98765432108" in lines[3]


def test_different_scores_of_submissions_look_different() -> None:
    found = [submission(score=5 / 6), submission(score=0.83333334), submission()]
    lines = render(view.submission_columns(found), found, now=NOW).lines
    shown = [word for line in lines[2:] for word in line.split() if word.startswith("0.")]
    assert shown == ["0.83333333", "0.83333334"]
    assert [view.submission_record(one)["score"] for one in found[:2]] == [5 / 6, 0.83333334]


def test_hostile_text_is_escaped_in_a_table() -> None:
    bad = entries()
    bad[0].owner, bad[0].args = "kim\x1b[2J", "--x \x1b]0;title\x07"
    assert not any("\x1b" in line or "\x07" in line for line in table(bad))


def test_columns_of_nsml() -> None:
    assert [column.title for column in view.nsml_columns()] == [
        "Owner", "Score", "Submitted", "Session", "Model", "Args"
    ]  # fmt: skip


def test_records_have_none_for_what_is_not_there() -> None:
    scored, failed = map(view.entry_record, entries())
    assert (scored["score"], scored["rank"], scored["is_own"]) == (0.98765432109, 1, True)
    assert (failed["score"], failed["rank"], failed["cause"]) == (None, None, "TOO_LARGE")
    assert view.nsml_record(entries()[0])["checkpoint"] == "best"
    odd = pb.BoardEntry(rank=1, owner="kim", score=math.nan, trend=[math.inf])
    assert math.isnan(view.entry_record(odd)["score"])


def test_a_board_says_its_settings() -> None:
    settings = pb.BoardSettings(
        metric="acc",
        direction=pb.SCORE_DIRECTION_MIN,
        best_per=pb.BEST_PER_TEAM,
        public_score=pb.PUBLIC_SCORE_LADDER,
        ladder_step=0.01,
        limit=pb.SubmissionLimit(count=3),
        prediction_bytes=1 << 20,
        check_every=10,
        is_open=False,
    )
    settings.predict_time.seconds = 3600
    board = pb.Board(
        kind=pb.BOARD_KIND_DATASET, owner="lee", name="digits", settings=settings, evaluation=2
    )
    text = "\n".join(view.board_lines(board))
    for words in (
        "acc, min first", "the best of each team", "ladder=0.01", "3 in 1d", "1h at most",
        "1 in 10", "closed",
    ):  # fmt: skip
        assert words in text
    record = view.board_record(board)
    assert record["limit"] == {"count": 3, "window_s": 86_400}
    assert (record["public_score"], record["is_open"]) == ("ladder=0.01", False)
    assert view.headline(board) == "lee/digits: acc, min first, 0 entries, closed, evaluation 2"


def test_a_submission_in_lines() -> None:
    one = submission(
        state=pb.SUBMISSION_STATE_SCORED,
        score=0.5,
        rank=2,
        steps=[pb.SubmissionStep(kind="predict", session="kim/digits/4", started_at=at(NOW - 60))],
        evaluation_output="rows 10\n0.5",
        next_at=at(NOW + 720),
    )
    text = "\n".join(view.submission_lines(one, NOW))
    for words in (
        "score       0.5",
        "rank        2",
        "kim/digits/4, runs for 1m",
        "| 0.5",
        "(in 12m)",
    ):
        assert words in text


def test_a_step_that_fails_or_waits_says_why_in_its_line() -> None:
    since = short_moment(NOW, NOW)
    again = pb.SubmissionStep(
        kind="reevaluate",
        session="kim/digits/9",
        started_at=at(NOW - 60),
        waiting="a fault",
        failing_since=at(NOW),
    )
    one = submission(state=pb.SUBMISSION_STATE_SCORED, score=0.5, steps=[again])
    text = "\n".join(view.submission_lines(one, NOW))
    assert f"reevaluate  kim/digits/9, runs for 1m, a fault (since {since})" in text
    [step] = view.submission_record(one)["steps"]
    assert (step["kind"], step["failing_since"]) == ("reevaluate", moment(NOW))
    again = pb.SubmissionStep(kind="reevaluate", waiting="no node fits")
    one = submission(state=pb.SUBMISSION_STATE_SCORED, score=0.5, steps=[again])
    assert "reevaluate  no node fits" in "\n".join(view.submission_lines(one, NOW))


def test_a_board_says_why_its_re_evaluation_waits() -> None:
    board = pb.Board(
        kind=pb.BOARD_KIND_DATASET, owner="lee", name="digits", reevaluated=3, to_reevaluate=9
    )
    assert view.headline(board).endswith("re-evaluating 3 of 9")
    assert view.board_record(board)["reevaluation_step"] is None
    board.reevaluation_step.waiting = "no node fits"
    assert view.headline(board).endswith("re-evaluating 3 of 9 (no node fits)")
    assert "waits       no node fits" in "\n".join(view.board_lines(board))
    assert view.board_record(board)["reevaluation_step"]["waiting"] == "no node fits"


def test_an_entry_that_fails_by_the_platform_says_so() -> None:
    entry = pb.BoardEntry(submission_id="u1", state=pb.SUBMISSION_STATE_EVALUATING)
    score = next(one for one in view.COLUMNS if one.key == "score")
    assert view.entry_why(entry) == ""
    assert "platform fault" not in score.cell(entry, NOW)
    entry.failing_since.CopyFrom(at(NOW))
    assert score.cell(entry, NOW).endswith("(platform fault)")
    assert view.entry_why(entry).endswith(f"(since {short_moment(NOW, NOW)})")
    assert view.entry_record(entry)["failing_since"] == moment(NOW)


def test_when_the_next_submission_is_permitted() -> None:
    assert view.next_text(NOW + 720, NOW).endswith("(in 12m)")
    assert view.next_text(NOW - 1, NOW) == "next submission possible now"


@pytest.mark.parametrize("word", ["", "none", "user", "team"])
def test_words_of_best_per_are_read_back(word: str) -> None:
    assert view.best_per_word(view.best_per_named(word)) == word


@pytest.mark.parametrize("word", ["exact", "own-best", "ladder"])
def test_words_of_public_scores_are_read_back(word: str) -> None:
    settings = pb.BoardSettings(public_score=view.public_score_named(word))
    assert view.public_score_word(settings) == word
