"""Boards and submissions at the command line."""

from __future__ import annotations

import csv
import io
import json
import threading
import time

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.app import App
from cli.boards import following
from cli.boards.exporting import csv_text
from cli.boards.watching import RankChanges
from cli.completion import names
from cli.main import run
from cli.watched_table import WatchedTable
from nsml.v1 import boards_pb2 as pb
from nsml.v1 import checkpoints_pb2, competitions_pb2, resources_pb2, sessions_pb2
from nsml.view import boards as view
from tests.unit.cli.conftest import FixedClock, Stream
from tests.unit.nsml.client.contract_server import EPOCH


@pytest.fixture
def session(state):
    """With two checkpoints, of which the last is the newest."""
    made = state.add("kim/digits/3")
    state.checkpoints[made.id] = [
        checkpoints_pb2.Checkpoint(name=name, digest=name * 8, session=made.name)
        for name in ("1", "best")
    ]
    return made


def step(kind, **fields):
    started = fields.pop("started", 0)
    made = pb.SubmissionStep(kind=kind, **fields)
    if started:
        made.started_at.seconds = started
    return made


SCORED = [
    pb.Submission(steps=[step("predict", waiting="no GPU is free")]),
    pb.Submission(
        state=pb.SUBMISSION_STATE_PREDICTING,
        steps=[step("predict", session="kim/digits/4", started=EPOCH + 86_388)],
    ),
    pb.Submission(state=pb.SUBMISSION_STATE_EVALUATING),
    pb.Submission(state=pb.SUBMISSION_STATE_SCORED, score=0.98765432109, rank=3),
]


def failed(cause, **fields):
    return pb.Submission(state=pb.SUBMISSION_STATE_FAILED, cause=cause, **fields)


# submit


def test_the_score_is_the_result_and_each_step_is_printed(nsml, state, session):
    state.submission_course = list(SCORED)
    result = nsml("submit", "digits/3", "best")
    assert result.stdout == "Score: 0.987654\nRank: 3\n"
    assert result.stderr.splitlines() == [
        "submission sub1: checkpoint best of kim/digits/3 to lee/digits",
        "queued",
        "queued: no GPU is free",
        "predicting",
        "evaluating",
    ]


def test_in_a_competition_the_rank_is_that_of_the_team(nsml, state, session):
    state.add_competition("lee/cup").team.name = "lions"
    scored = pb.Submission()
    scored.CopyFrom(SCORED[-1])
    scored.competition = "lee/cup"
    state.submission_course = [scored]
    of_board = "Rank: 3 (this submission, on the board of lee/digits)\n"
    assert nsml("submit", "digits/3").stdout.endswith(of_board), "there are no standings"
    state.add_standing("lee/cup", "tigers", 0.99)
    state.add_standing("lee/cup", "lions", 0.98, is_own=True)
    state.submission_course = [scored]
    result = nsml("submit", "digits/3")
    assert result.stdout.splitlines()[1] == "Rank: 2 (team lions in lee/cup, qualifying)"
    assert "rank         2 of " in nsml("competition", "show", "lee/cup").stdout
    state.submission_course = [scored]
    found = json.loads(nsml("submit", "digits/3", "-j").stdout)
    assert (found["competition"], found["team_rank"], found["rank"]) == ("lee/cup", 2, 3)
    state.fail_next["ListStandings"] = grpc.StatusCode.PERMISSION_DENIED
    state.submission_course = [scored]
    assert nsml("submit", "digits/3").stdout.endswith(of_board), "the score is there all the same"


def test_during_a_competition_a_board_names_its_limit(nsml, state):
    settings = pb.BoardSettings(limit=pb.SubmissionLimit(count=5))
    for name in ("kim/digits", "kim/other"):
        state.add_board(name, kind=pb.BOARD_KIND_DATASET, settings=settings)
    found = state.add_competition("lee/cup")
    of_phase = "limit       10 in 1d, of a team in lee/cup (qualifying)\n"
    assert of_phase in nsml("board", "info", "kim/digits").stdout
    assert "limit       5 in 1d\n" in nsml("board", "info", "kim/other").stdout
    state.fail_next["ListCompetitions"] = grpc.StatusCode.UNIMPLEMENTED
    assert "limit       5 in 1d\n" in nsml("board", "info", "kim/digits").stdout
    found.competition.settings.phases[0].ClearField("limit")
    assert "limit       5 in 1d\n" in nsml("board", "info", "kim/digits").stdout
    found.competition.settings.phases[0].limit.count = 10
    found.competition.state = competitions_pb2.COMPETITION_STATE_CLOSED
    assert "limit       5 in 1d\n" in nsml("board", "info", "kim/digits").stdout


def test_a_submission_that_is_no_new_best_says_so(nsml, state, session):
    state.submission_course = [
        pb.Submission(state=pb.SUBMISSION_STATE_SCORED, score=0.91, rank=3, keeps_best=True)
    ]
    result = nsml("submit", "digits/3")
    assert result.stdout == "Score: 0.91\nRank: 3\n"
    assert result.stderr.splitlines()[-1] == "note: no new best: your best score remains 0.91"
    assert "your best score remains 0.91" in nsml("submission", "info", "sub1").stdout
    state.submission_course = list(SCORED)
    assert "no new best" not in nsml("submit", "digits/3").stderr


def test_a_terminal_has_one_line_that_changes(nsml, state, session):
    state.submission_course = list(SCORED)
    result = nsml("submit", "digits/3", "best", terminal=True)
    assert result.stdout == "Score: 0.987654\nRank: 3\n"
    drawn = result.stderr.split("\r\x1b[K")
    assert "queued: no GPU is free" in drawn
    assert "predicting for 12s" in drawn
    assert drawn[-1] == "", "the line is erased at the end"
    assert "\n" not in "".join(drawn[1:])


def test_without_a_checkpoint_it_is_the_newest(nsml, state, session):
    for words in (["digits/3"], ["digits/3", "@last"]):
        nsml("submit", *words, "--no-wait")
    assert [one.checkpoint for one in state.submissions.values()] == ["best", "best"]


def test_the_batch_is_passed_on(nsml, state, session):
    nsml("submit", "-b", "64", "-v", "--no-wait", "digits/3")
    nsml("submit", "--no-wait", "digits/3")
    assert state.batches == [64, 0]


def test_who_does_not_wait_gets_the_id(nsml, state, session):
    result = nsml("submit", "--no-wait", "digits/3")
    assert result.stdout == "sub1\n"
    assert "WatchSubmission" not in state.calls
    assert json.loads(nsml("submit", "--no-wait", "digits/3", "-j").stdout)["id"] == "sub2"


def test_json_is_the_whole_submission(nsml, state, session):
    state.submission_course = list(SCORED)
    found = json.loads(nsml("submit", "digits/3", "-j").stdout)
    assert (found["state"], found["score"], found["rank"]) == ("SCORED", 0.98765432109, 3)


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (pb.SUBMISSION_CAUSE_LOAD_FAILED, 1),
        (pb.SUBMISSION_CAUSE_ENDED_EARLY, 1),
        (pb.SUBMISSION_CAUSE_STOPPED, 1),
        (pb.SUBMISSION_CAUSE_PLATFORM, 3),
    ],
)
def test_a_failure_has_its_cause_and_an_exit_code(nsml, state, session, cause, code):
    state.submission_course = [failed(cause)]
    result = nsml("submit", "digits/3", "best", check=False)
    assert (result.code, result.stdout) == (code, "")
    assert "error: submission sub1 failed (" in result.stderr
    assert "why: " in result.stderr
    assert "try: " in result.stderr


def test_a_failure_as_json_is_a_record_and_an_error(nsml, state, session):
    state.submission_course = [failed(pb.SUBMISSION_CAUSE_TOO_LARGE, message="it has 9 GiB")]
    result = nsml("submit", "digits/3", "best", "-j", check=False)
    assert json.loads(result.stdout)["cause"] == "TOO_LARGE"
    error = json.loads(result.stderr.splitlines()[-1])["error"]
    assert (result.code, error["reason"], error["why"]) == (1, "TOO_LARGE", "it has 9 GiB")


def test_a_limit_names_the_next_permitted_instant(nsml, state, session):
    state.submission_limit_at = "2023-11-15T22:25:20Z"  # 12 minutes after the clock of the tests
    result = nsml("submit", "digits/3", "best", "--utc", check=False)
    assert result.code == 7
    assert "next submission possible at 11-15 22:25Z (in 12m)" in result.stderr
    assert "nsml submit -t digits/3 best" in result.stderr
    assert not state.submissions


def test_a_lost_answer_submits_once(nsml, state, session):
    state.fail_next["CreateSubmission"] = grpc.StatusCode.UNAVAILABLE
    assert nsml("submit", "--no-wait", "digits/3").stdout == "sub1\n"
    assert len(state.submissions) == 1


def test_who_got_no_answer_reads_where_to_look(nsml, state, session):
    result = nsml("submit", "digits/3", check=False, NSML_SERVER="127.0.0.1:1")
    assert result.code == 3
    assert "nsml submission ls" in result.stderr


def test_what_is_not_there_is_named(nsml, state, session):
    assert nsml("submit", "digits/9", check=False).code == 5
    assert nsml("submit", "digits/3", "worst", check=False).code == 5


def test_ctrl_c_leaves_it_running_and_says_how_to_look(nsml, state, session, monkeypatch):
    def interrupted(*_words):
        raise KeyboardInterrupt

    monkeypatch.setattr(following, "_followed", interrupted)
    result = nsml("submit", "digits/3", check=False)
    assert result.code == 130
    assert "submission sub1 continues: nsml submission info -w sub1" in result.stderr
    assert state.submissions["sub1"].state == pb.SUBMISSION_STATE_QUEUED


def test_a_dry_run_shows_what_the_program_prints(nsml, state, session):
    running = state.add("kim/digits/4", sessions_pb2.SESSION_STATE_SUCCEEDED)
    state.log(running, b"load nsml model\nepoch 1\n")
    state.submission_course = list(SCORED)
    result = nsml("submit", "-t", "digits/3", "best")
    assert result.stdout == "load nsml model\nepoch 1\nScore: 0.987654\nRank: 3\n"
    assert "dry run sub1: checkpoint best of kim/digits/3 to lee/digits" in result.stderr
    assert "Session kim/digits/4 is started" in result.stderr
    assert state.submissions["sub1"].is_test


def test_a_dry_run_ends_with_its_result_if_its_output_is_gone(nsml, state, session):
    state.submission_course = list(SCORED)
    result = nsml("submit", "-t", "digits/3", "best")
    assert result.stdout == "Score: 0.987654\nRank: 3\n"
    assert "the output of kim/digits/4 cannot be shown" in result.stderr


def test_a_real_submission_shows_no_output(nsml, state, session):
    running = state.add("kim/digits/4", sessions_pb2.SESSION_STATE_SUCCEEDED)
    state.log(running, b"secret labels\n")
    state.submission_course = list(SCORED)
    assert "secret" not in nsml("submit", "digits/3", "best").stdout
    assert "ReadLogs" not in state.calls[-20:]


# submission


def test_submissions_are_listed_newest_first(nsml, state, session):
    for number in range(5):
        state.add_submission(session, score=number / 10, state=pb.SUBMISSION_STATE_SCORED)
    rows = [line.split()[0] for line in nsml("submission", "ls").stdout.splitlines()[2:]]
    assert rows == ["sub5", "sub4", "sub3", "sub2", "sub1"]
    assert len(nsml("submission", "ls", "-n", "2").stdout.splitlines()) == 4
    assert nsml("submission", "ls", "-o", "name").stdout.split() == rows


def test_no_submissions_says_how_to_make_one(nsml, state):
    assert "nsml submit SESSION" in nsml("submission", "ls").stderr


def test_one_submission_is_shown_with_what_to_do(nsml, state, session):
    state.add_submission(
        session, state=pb.SUBMISSION_STATE_FAILED, cause=pb.SUBMISSION_CAUSE_INFER_FAILED
    )
    text = nsml("submission", "info", "sub1").stdout
    assert "✗ Failed (infer failed)" in text
    assert "nsml submit -t kim/digits/3 best" in text
    assert nsml("submission", "info", "nope", check=False).code == 5
    cause = pb.SUBMISSION_CAUSE_EVALUATION_FAILED
    state.add_submission(session, state=pb.SUBMISSION_STATE_FAILED, cause=cause)
    text = nsml("submission", "info", "sub2").stdout
    assert "owner sees why it failed: nsml submission info sub2\n" in text


def test_info_follows_to_the_end(nsml, state, session):
    state.add_submission(session)
    state.submission_course = list(SCORED)
    assert nsml("submission", "info", "-w", "sub1").stdout == "Score: 0.987654\nRank: 3\n"


# board


@pytest.fixture
def board(state):
    state.add("lee/digits/1")
    state.add_board("lee/digits", kind=pb.BOARD_KIND_DATASET)
    for owner, score, of in (("lee", 0.9, "lee/digits/1"), ("kim", 0.8, "kim/digits/3")):
        found = next((one for one in state.sessions.values() if one.name == of), None)
        state.add_entry(
            "lee/digits",
            owner,
            score,
            rank_before=1,
            session=of,
            session_id=found.id if found else "gone",
            submission_id=f"sub-{owner}",
            state=pb.SUBMISSION_STATE_SCORED,
            checkpoint="best",
            args=f"--lr 0.{owner == 'kim':d}1 --width 3",
        )
    return "lee/digits"


def test_a_board_is_made_from_its_options(nsml, state):
    nsml(
        *("board", "create", "fast", "--metric", "loss", "--min", "--filter", "ds:mnist"),
        *("--per", "team", "--value", "last", "--team", "-m", "our best"),
    )
    settings = state.boards["kim/fast"].settings
    assert settings == pb.BoardSettings(
        metric="loss",
        direction=pb.SCORE_DIRECTION_MIN,
        filter="ds:mnist",
        best_per=pb.BEST_PER_TEAM,
        value=pb.METRIC_VALUE_LAST,
        visibility=resources_pb2.VISIBILITY_TEAM,
        description="our best",
    )


def test_a_board_of_a_dataset_is_set_by_its_options(nsml, state):
    state.add_board("kim/digits", kind=pb.BOARD_KIND_DATASET)
    nsml(
        *("board", "set", "digits", "--limit", "3/12h", "--failed-limit", "9", "--close"),
        *("--public-score", "ladder=0.01", "--predict-time", "30m", "--evaluate-time", "90s"),
        *("--prediction-size", "1M", "--check-every", "10", "--by", "team"),
    )
    settings = state.boards["kim/digits"].settings
    assert (settings.limit.count, settings.limit.window.seconds) == (3, 43_200)
    assert (settings.failed_limit.count, settings.failed_limit.window.seconds) == (9, 86_400)
    assert (settings.public_score, settings.ladder_step) == (pb.PUBLIC_SCORE_LADDER, 0.01)
    assert (settings.predict_time.seconds, settings.evaluate_time.seconds) == (1800, 90)
    assert (settings.prediction_bytes, settings.check_every) == (1_000_000, 10)
    assert (settings.best_per, settings.is_open) == (pb.BEST_PER_TEAM, False)
    assert not settings.HasField("metric")
    nsml("board", "set", "digits", "--limit", "none", "--open", "--public-score", "exact")
    settings = state.boards["kim/digits"].settings
    assert (settings.limit.count, settings.is_open) == (0, True)
    assert settings.public_score == pb.PUBLIC_SCORE_EXACT


@pytest.mark.parametrize(
    "words",
    [
        ["--limit", "3/"],
        ["--limit", "0/1d"],
        ["--limit", "-1"],
        ["--limit", "3/0s"],
        ["--limit", "٣/1d"],
        ["--limit", "9999999999"],
        ["--public-score", "secret"],
        ["--public-score", "exact=1"],
        ["--public-score", "ladder=0"],
        ["--public-score", "ladder=-1"],
        ["--public-score", "ladder=nan"],
        ["--public-score", "ladder="],
        ["--per", "country"],
        ["--value", "mean"],
        ["--max", "--min"],
        ["--open", "--close"],
        ["--filter", "lr>"],
        ["--check-every", "-1"],
        ["--prediction-size", "many"],
        ["--predict-time", "soon"],
        [],
    ],
)
def test_a_wrong_setting_is_refused_before_anything_is_sent(nsml, state, words):
    state.add_board("kim/digits", kind=pb.BOARD_KIND_DATASET)
    assert nsml("board", "set", "digits", *words, check=False).code == 2
    assert "UpdateBoard" not in state.calls


def test_a_board_without_a_metric_is_refused(nsml, state):
    result = nsml("board", "create", "fast", check=False)
    assert result.code == 2
    assert "--metric" in result.stderr


def test_anothers_board_is_not_changed(nsml, state, board):
    assert nsml("board", "set", board, "--close", check=False).code == 4
    assert nsml("board", "rm", board, "-y", check=False).code == 4
    assert nsml("board", "info", "nothing", check=False).code == 5


def test_a_board_is_shown_with_ranks_and_scores(nsml, state, session, board):
    result = nsml("board", "show", board)
    assert "lee/digits: score, max first, 2 entries" in result.stderr
    head, _, first, second = result.stdout.splitlines()
    assert head.split()[:5] == ["Rank", "±", "Owner", "Score", "Submitted"]
    assert first.split()[:3] == ["1", "lee", "0.9"]
    assert second.split()[:4] == ["2", "-1", "kim", "(you)"]


def test_close_scores_of_a_board_have_more_digits_and_records_have_all(nsml, state, session, board):
    state.add_entry(board, "eve", 5 / 6, submission_id="e1")
    state.add_entry(board, "max", 0.83333334, submission_id="e2")
    shown = nsml("board", "show", board).stdout
    assert "0.83333333 " in shown
    assert "0.83333334 " in shown
    found = json.loads(nsml("board", "show", board, "-j").stdout)["items"]
    assert {0.9, 5 / 6, 0.83333334} <= {one["score"] for one in found}
    assert "0.8333333333333334" in nsml("board", "export", board).stdout


def test_a_selection_is_asked_for(nsml, state, session, board):
    words = ("--mine", "--per", "none", "-n", "7", "--private-scores", "--evaluation", "2")
    found = json.loads(nsml("board", "show", board, *words, "-j").stdout)
    assert [one["owner"] for one in found["items"]] == ["kim"]
    assert found["board"]["name"] == "lee/digits"
    request = state.entry_requests[-1]
    assert (request.own_only, request.limit, request.best_per) == (True, 7, pb.BEST_PER_NONE)
    assert (request.by_private, request.evaluation) == (True, 2)


def test_entries_beyond_one_response_are_counted(nsml, state, board):
    for number in range(1000):
        state.add_entry(board, "eve", 0.1, submission_id=f"e{number}")
    assert "(the first 1,000 of 1,002)" in nsml("board", "show", board).stderr
    assert "(the first 1,000 of 1,002)" in nsml("board", "export", board).stderr
    assert "(the first" not in nsml("board", "show", board, "-n", "5").stderr


def test_a_broken_connection_is_told_on_a_line_of_its_own(nsml, state, session):
    state.breaks_watch = 1
    state.submission_course = list(SCORED)
    result = nsml("submit", "digits/3", "best", terminal=True)
    assert result.stdout == "Score: 0.987654\nRank: 3\n"
    assert "\r\x1b[Kconnection lost, reconnecting (" in result.stderr
    assert "reconnected\n" in result.stderr


def test_boards_are_listed(nsml, state, board):
    state.add_board("kim/best", settings=pb.BoardSettings(metric="acc"))
    rows = nsml("board", "ls").stdout.splitlines()[2:]
    assert [row.split()[:2] for row in rows] == [
        ["kim/best", "sessions"],
        ["lee/digits", "dataset"],
    ]


def test_the_columns_of_nsml(nsml, state, session, board):
    lines = nsml("dataset", "board", board).stdout.splitlines()
    assert lines[0].split() == ["Owner", "Score", "Submitted", "Session", "Model", "Args"]
    assert len(lines) == 4
    assert state.entry_requests[-1].best_per == pb.BEST_PER_NONE
    (item, _) = json.loads(nsml("dataset", "board", board, "-j").stdout)["items"]
    assert (item["owner"], item["score"], item["checkpoint"]) == ("lee", 0.9, "best")


def test_a_board_of_sessions_is_no_board_of_a_dataset(nsml, state):
    state.add_board("kim/best")
    assert nsml("dataset", "board", "best", check=False).code == 6


def test_the_entry_above_is_compared(nsml, state, session, board):
    for name, rate in (("lee/digits/1", "0.01"), ("kim/digits/3", "0.11")):
        one = next(one for one in state.sessions.values() if one.name == name)
        one.spec.args.extend(["--lr", rate])
        values = json.dumps({"optimizer": {"decay": float(rate) * 2}, "seed": 1})
        one.reported_config.runs.add(origin="wandb", json=values)
    result = nsml("board", "diff", board)
    assert [line.split()[0] for line in result.stderr.splitlines()[:2]] == ["#2", "#1"]
    row = next(line for line in result.stdout.splitlines() if line.startswith("lr"))
    assert row.split() == ["lr", "0.11", "0.01"]
    row = next(line for line in result.stdout.splitlines() if "decay" in line)
    assert row.split() == ["optimizer.decay", "0.22", "0.02"]
    assert "1 value of the reported config" in result.stdout + result.stderr


def test_of_a_hidden_session_the_board_shows_the_arguments(nsml, state, session, board):
    hidden = next(one for one in state.sessions.values() if one.name == "lee/digits/1")
    del state.sessions[hidden.id]
    result = nsml("board", "diff", board, "1")
    assert "not visible to you" in result.stderr
    rows = [line.split() for line in result.stdout.splitlines()[2:]]
    assert rows == [["lr", "0.11", "0.01"]]


@pytest.mark.parametrize(("words", "code"), [(["2"], 2), (["9"], 5), (["0"], 2)])
def test_a_rank_that_cannot_be_compared(nsml, state, session, board, words, code):
    assert nsml("board", "diff", board, *words, check=False).code == code


def test_who_has_no_entry_compares_nothing(nsml, state, board):
    del state.entries[board][1]
    assert nsml("board", "diff", board, check=False).code == 5


def test_who_is_first_has_nobody_above(nsml, state, session, board):
    del state.entries[board][0]
    state.entries[board][0].rank = 1
    assert nsml("board", "diff", board, check=False).code == 5


def test_a_board_is_a_file(nsml, state, session, board, tmp_path):
    text = nsml("board", "export", board).stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["rank"], row["owner"], row["score"]) for row in rows] == [
        ("1", "lee", "0.9"),
        ("2", "kim", "0.8"),
    ]
    assert rows[0]["args"] == "'--lr 0.01 --width 3"
    nsml("board", "export", board, "-o", str(tmp_path / "digits.json"))
    found = json.loads((tmp_path / "digits.json").read_text())
    assert [one["score"] for one in found["items"]] == [0.9, 0.8]
    nsml("board", "export", board, "--csv", "-o", str(tmp_path / "digits.csv"))
    assert (tmp_path / "digits.csv").read_text() == text
    assert json.loads(nsml("board", "export", board, "--json").stdout)["board"]["owner"] == "lee"
    where = str(tmp_path / "nowhere" / "x.csv")
    assert nsml("board", "export", board, "-o", where, check=False).code == 5


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1"]
)
def test_no_spreadsheet_runs_a_cell(text):
    (row,) = csv.DictReader(io.StringIO(csv_text(["a", "b"], [{"a": text, "b": -1.5}])))
    assert row["a"].startswith("'")
    assert row["b"] == "-1.5"


@given(st.text(max_size=20))
def test_no_text_begins_as_a_formula(text):
    (row,) = csv.DictReader(io.StringIO(csv_text(["a"], [{"a": text}])))
    assert not row["a"].startswith(("=", "+", "-", "@", "\t", "\r"))


def test_a_board_is_removed_after_a_yes(nsml, state):
    state.add_board("kim/best")
    assert nsml("board", "rm", "best", check=False).code == 2
    assert "kim/best" in state.boards
    nsml("board", "rm", "best", "-y")
    assert "kim/best" not in state.boards


def test_predictions_are_evaluated_again_after_a_yes(nsml, state):
    state.add_board("kim/digits", kind=pb.BOARD_KIND_DATASET)
    state.add_entry("kim/digits", "lee", 0.5)
    assert nsml("board", "reevaluate", "digits", check=False).code == 2
    assert nsml("board", "reevaluate", "digits", stdin="y\n", terminal=True).code == 0
    assert state.boards["kim/digits"].to_reevaluate == 1


# board watch


def entry(number, rank, **fields):
    return pb.BoardEntry(submission_id=f"s{number}", owner="kim", rank=rank, **fields)


def test_ranks_that_changed_since_the_watch_began_are_marked():
    changes = RankChanges()
    first = changes.marked([entry(1, 1, rank_before=4), entry(2, 2)])
    assert [one.rank_before for one in first] == [4, 0]
    shown = changes.marked([entry(2, 1), entry(1, 2, rank_before=4), entry(3, 3)])
    assert [one.rank_before for one in shown] == [2, 1, 0]


def watched(environ, *, is_terminal=False, flags=None):
    app = App(
        environ={**environ, "NO_COLOR": "1"},
        stdout=Stream(is_terminal=is_terminal),
        stderr=Stream(is_terminal=is_terminal),
        stdin=Stream(),
        given_clock=FixedClock(),
    )
    app.flags = flags or app.flags
    table = WatchedTable(
        app, key=lambda one: one.submission_id, record=view.entry_record, none="no entries yet"
    )
    board = pb.Board(kind=pb.BOARD_KIND_DATASET, owner="lee", name="digits")

    def take(*rows):
        before = len(app.stdout.raw_bytes)
        table.take(rows, view.columns_for(board), view.headline(board))
        return app.stdout.raw_bytes[before:].decode()

    return take


def test_a_watched_board_is_redrawn_in_place(environ):
    take = watched(environ, is_terminal=True)
    assert "no entries yet" in take()
    text = take(entry(1, 1, score=0.5, is_own=True)).rpartition("\x1b[J")[2]
    assert "kim (you)" in text
    assert "0.5" in text


def test_without_a_terminal_only_what_looks_different_is_written(environ):
    take = watched(environ)
    first, second = entry(1, 1, score=0.5, rank_before=1), entry(2, 2, score=0.4, rank_before=2)
    header, _rule, *rows = take(first, second).splitlines()
    assert (header.split()[:2], len(rows)) == (["Rank", "Owner"], 2)
    for hidden in ({"trend": [0.1, 0.5]}, {"rank_low": 1, "rank_high": 2}, {"standard_error": 0.1}):
        again = entry(1, 1, score=0.5, rank_before=1, **hidden)
        assert take(again, second) == "", hidden
    aged = entry(1, 1, score=0.5, rank_before=1, gpu_seconds=70)
    aged.submitted_at.seconds = EPOCH
    assert take(aged, second) == "", "only time has passed"
    [line] = take(aged, entry(2, 2, score=0.45, rank_before=2)).splitlines()
    assert "0.45" in line
    assert take(aged) == "", "one that left has no line"
    [line] = take(aged, entry(2, 2, score=0.45, rank_before=2)).splitlines()
    assert "0.45" in line


def test_lines_of_changes_are_for_programs(environ, state, board):
    """A reader that takes three lines and leaves."""

    class Reader(Stream):
        lines = 0

        def write(self, text):
            super().write(text)
            self.lines += text.count("\n")
            if self.lines >= 3:
                raise BrokenPipeError
            return len(text)

    def improve():
        deadline = time.monotonic() + 60
        while "WatchBoard" not in state.calls or out.lines < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        state.add_entry("lee/digits", "eve", 0.7, submission_id="sub-eve")

    out = Reader()
    app = App(
        environ=environ,
        stdout=out,
        stderr=Stream(),
        stdin=Stream(),
        given_clock=FixedClock(),
    )
    helper = threading.Thread(target=improve)
    helper.start()
    code = int(run(["board", "show", board, "-w", "-o", "jsonl"], app))
    helper.join()
    assert code == 141
    rows = [json.loads(line) for line in out.raw_bytes.decode().splitlines()]
    assert [row["owner"] for row in rows] == ["lee", "kim", "eve"]


def test_a_watch_writes_no_documents(nsml, state, board):
    assert nsml("board", "show", board, "-w", "-j", check=False).code == 2
    assert nsml("board", "show", board, "-w", "--private-scores", check=False).code == 2
    assert nsml("board", "watch", "nothing", check=False).code == 5


# infer, and what lists say of steps


def test_a_session_that_answers_is_made_of_a_checkpoint(nsml, state, session):
    session.spec.entry = "main.py"
    session.spec.args.extend(["--lr", "0.1", "--pause", "0", "--iteration=9"])
    result = nsml("infer", "-g", "2", "digits/3", "1")
    made = list(state.sessions.values())[-1]
    assert made.spec.stage == sessions_pb2.SESSION_STAGE_INFER
    assert made.origin.kind == sessions_pb2.ORIGIN_KIND_INFER
    assert made.spec.initial_checkpoint.name == "1"
    assert list(made.spec.args) == ["--lr", "0.1", "--pause", "1"]
    assert made.spec.resources.gpu_thousandths == 2000
    assert list(made.command) == ["nsml", "infer", "kim/digits/3", "1", "-g", "2"]
    assert f"nsml exec {made.name} 'nsml.infer(data)'" in result.stderr
    assert f"nsml stop {made.name}" in result.stderr


def test_the_newest_checkpoint_answers_by_default(nsml, state, session):
    session.spec.entry = "main.py"
    nsml("infer", "digits/3")
    made = list(state.sessions.values())[-1]
    assert made.spec.initial_checkpoint.name == "best"
    assert json.loads(nsml("ps", "-j").stdout)["items"][0]["type"] == "infer"


def test_another_run_of_it_is_an_ordinary_session_unless_it_is_a_rerun(nsml, state, session):
    session.spec.entry = "main.py"
    nsml("infer", "digits/3")
    first = list(state.sessions.values())[-1]
    state.checkpoints[first.id] = list(state.checkpoints[session.id])
    for command, stage in (
        ("rerun", sessions_pb2.SESSION_STAGE_INFER),
        ("fork", sessions_pb2.SESSION_STAGE_UNSPECIFIED),
    ):
        nsml(command, first.name)
        assert list(state.sessions.values())[-1].spec.stage == stage


@pytest.fixture
def steps(state, session):
    """The session, and the steps of a submission and of a dry run."""
    stages = (
        sessions_pb2.SESSION_STAGE_PREDICT,
        sessions_pb2.SESSION_STAGE_PREDICT_TEST,
        sessions_pb2.SESSION_STAGE_EVALUATE,
    )
    for number, stage in enumerate(stages, start=4):
        spec = sessions_pb2.SessionSpec(stage=stage, submission_id=f"sub{number}")
        state.add(f"kim/digits/{number}", spec=spec)


@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize(
    ("words", "types"),
    [
        (["ps"], ["normal"]),
        (["ps", "-a"], ["normal"]),
        (["ps", "-n", "1"], ["normal"]),
        (["ps", "--submissions"], ["evaluate", "submit(test)", "submit", "normal"]),
        (["ps", "-a", "--submissions"], ["evaluate", "submit(test)", "submit", "normal"]),
        (["ps", "submission:*"], ["evaluate", "submit(test)", "submit"]),
        (["ps", "submission:sub4"], ["submit"]),
        (["ps", "type:evaluate,normal"], ["evaluate", "normal"]),
        (["ps", "!submission:*"], ["normal"]),
    ],
)
def test_lists_have_steps_of_submissions_on_request(nsml, state, steps, is_older, words, types):
    state.knows_no_project = is_older
    found = json.loads(nsml(*words, "-j").stdout)["items"]
    assert [one["type"] for one in found] == types


def test_a_list_says_what_a_step_is_for(nsml, steps):
    lines = nsml("ps", "--submissions").stdout.splitlines()
    assert "Type" in lines[0].split()
    assert "evaluate" in lines[2].split()
    assert "Type" not in nsml("ps", "-a").stdout.splitlines()[0].split()
    text = nsml("status", "--explain", "kim/digits/4").stdout
    assert "submission: sub4 (submit): nsml submission info sub4" in text


def test_in_the_style_of_nsml_sessions_that_predict_are_listed(nsml, steps):
    listed = nsml("ps", NSML_STYLE="nsml").stdout.splitlines()[2:]
    assert [line.split()[-1] for line in listed] == ["submit(test)", "submit", "normal"]


def test_in_the_style_of_nsml_a_score_has_all_its_digits(nsml, state, session):
    state.submission_course = list(SCORED)
    result = nsml("submit", "digits/3", "best", NSML_STYLE="nsml")
    assert result.stdout == "Score: 0.98765432109\nRank: 3\nDone\n"


def test_completed_names_are_without_steps(steps, environ):
    app = App(environ=environ, stdout=Stream(), stderr=Stream(), stdin=Stream())
    assert [one.value for one in names(app, "session", "kim/")] == ["kim/digits/3"]


def test_a_failed_evaluation_names_its_log(nsml, state, session):
    predict = step("predict", session="kim/digits/4", started=EPOCH)
    evaluate = step("evaluate", session="lee/digits/9", started=EPOCH)
    evaluate.ended_at.seconds = EPOCH + 5
    state.submission_course = [
        failed(pb.SUBMISSION_CAUSE_EVALUATION_FAILED, steps=[predict, evaluate])
    ]
    nsml("submit", "digits/3", "best", check=False)
    shown = nsml("submission", "info", "sub1").stdout
    assert "nsml logs lee/digits/9" in shown
    assert "nsml logs kim/digits/4" not in shown, "nobody reads that"


def test_names_are_completed(nsml, state, session, board, environ, monkeypatch):
    monkeypatch.setattr("cli.completion._PATIENCE_S", 60.0)
    state.add_board("kim/best")
    state.add_submission(session)
    app = App(environ=environ, stdout=Stream(), stderr=Stream(), stdin=Stream())
    boards = {one.value for one in names(app, "board", "")}
    assert boards == {"best", "kim/best", "lee/digits"}
    assert [one.value for one in names(app, "submission", "s")] == ["sub1"]


@pytest.mark.parametrize(
    ("best_per", "words", "listed"),
    [
        (pb.BEST_PER_NONE, [], ""),
        (pb.BEST_PER_USER, [], ", the best of each user"),
        (pb.BEST_PER_USER, ["--per", "none"], ""),
        (pb.BEST_PER_NONE, ["--per", "team"], ", the best of each team"),
    ],
)
def test_the_line_above_a_board_says_what_of_its_entries_is_listed(
    nsml, state, board, best_per, words, listed
):
    state.boards["lee/digits"].settings.best_per = best_per
    result = nsml("board", "show", "lee/digits", *words)
    assert f"lee/digits: score, max first, 2 entries{listed}\n" in result.stderr
