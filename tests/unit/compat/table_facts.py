"""Facts of NSML's tables and messages: a function a row of `nsml.spec.nsml_compat`."""

from __future__ import annotations

import json
from types import SimpleNamespace

import grpc
import pytest

from cli.sessions import run
from controlplane.domain.boards.submission_limits import next_permitted
from controlplane.domain.boards.values import BoardSettings, SubmissionLimit
from controlplane.domain.errors import Sealed
from controlplane.domain.sealing import check_readable
from controlplane.domain.values import SessionSpec, SessionStage
from nsml.v1 import boards_pb2
from nsml.v1 import sessions_pb2 as pb
from nsml.view import nsml_style
from tests.unit.compat.place import Place
from tests.unit.nsml.client.contract_server import EPOCH

NOW = float(EPOCH + 86_400)


def _session(state: int = pb.SESSION_STATE_RUNNING, **fields: object) -> pb.Session:
    made = pb.Session(id="s1", name="kim/mnist/1", state=state, attempt=1, **fields)  # type: ignore[arg-type]
    made.created_at.seconds = EPOCH
    return made


def form_of_tables(place: Place) -> None:
    assert place.session
    for ask in (place.nsml, place.in_style):
        header, rule, first = ask("dataset", "ls").stdout.splitlines()
        assert set(rule) == {"-", " "}
        ends = [len(part) for part in rule.split("  ")]
        assert header[: ends[0]].strip() == "Name"
        assert first[ends[0] : ends[0] + 2] == "  "


def columns_of_ps(place: Place) -> None:
    assert place.session
    wanted = "Name Created Args Status Summary Description # of Models Size Type"
    row = place.rows("ps")
    assert " ".join(row) == wanted
    assert row["Args"] == "--lr 0.1"
    assert (row["# of Models"], row["Size"]) == ("1", "7 Bytes")
    assert row["Description"] == "first try"
    assert place.nsml("ps").stdout.splitlines()[0].split()[-1] != "Type"


def statuses(_: Place) -> None:
    word = nsml_style.status_word
    assert word(_session(pb.SESSION_STATE_PREPARING), NOW) == "Allocated"
    assert word(_session(), NOW) == "Running"
    for state in ("SUCCEEDED", "FAILED", "STOPPED"):
        assert word(_session(pb.SessionState.Value(f"SESSION_STATE_{state}")), NOW) == "Exited"
    assert word(_session(pb.SESSION_STATE_QUEUED), NOW) == "Queued"
    idle = _session()
    episode = idle.episodes.add(kind=pb.EPISODE_KIND_IDLE)
    episode.since.seconds = int(NOW) - 3599
    assert word(idle, NOW) == "Running"
    episode.since.seconds = int(NOW) - 3600
    assert word(idle, NOW) == "Zombie"
    episode.until.seconds = int(NOW) - 10
    assert word(idle, NOW) == "Running", "it returns to Running"


def words_of_ages(_: Place) -> None:
    ages = {
        5: "just now",
        30: "seconds ago",
        60: "a minute ago",
        120: "2 minutes ago",
        3600: "an hour ago",
        4 * 3600: "4 hours ago",
        86_400: "a day ago",
        3 * 86_400: "3 days ago",
        30 * 86_400: "a month ago",
        90 * 86_400: "3 months ago",
        365 * 86_400: "a year ago",
        800 * 86_400: "2 years ago",
    }
    assert {seconds: nsml_style.age_text(seconds) for seconds in ages} == ages
    waiting = _session(pb.SESSION_STATE_QUEUED)
    waiting.attempt = 0
    assert nsml_style.created_text(waiting, NOW) == "Not created yet"


def summary_of_ps(_: Place) -> None:
    session = _session()
    session.summary.update({"test/loss": 22.86811, "step": 7, "epoch": 2, "lr": 0.002})
    session.summary.update({"test/accuracy": 98.09})
    shown = "epoch=2, lr=0.002, test/accuracy=98.09, test/loss=22.868"
    assert nsml_style.summary_text(session) == shown


def descriptions(_: Place) -> None:
    text = nsml_style.description_text
    assert text(_session(memo="second try")) == "second try"
    assert text(_session()) == ""
    of = "kim/mnist/3"
    submit = _session(origin=pb.Origin(kind=pb.ORIGIN_KIND_SUBMISSION, name=of))
    assert text(submit) == "submit of kim/mnist/3"
    assert text(_session(origin=pb.Origin(kind=pb.ORIGIN_KIND_FORK, name=of))) == of


def types(_: Place) -> None:
    (column,) = [one for one in nsml_style.sessions({}) if one.title == "Type"]
    words = {
        pb.SESSION_STAGE_UNSPECIFIED: "normal",
        pb.SESSION_STAGE_PREDICT: "submit",
        pb.SESSION_STAGE_PREDICT_TEST: "submit(test)",
        pb.SESSION_STAGE_INFER: "infer",
        pb.SESSION_STAGE_EVALUATE: "evaluate",
    }
    for stage, word in words.items():
        assert column.cell(_session(spec=pb.SessionSpec(stage=stage)), NOW) == word


def columns_of_model_ls(place: Place) -> None:
    assert place.rows("model", "ls", place.session.name) == {
        "Checkpoint": "best",
        "Last Modified": "a day ago",
        "Elapsed": "12.500",
        "Summary": "val/accuracy=0.98765, step=2",
        "Size": "7 Bytes",
    }


def checkpoint_without_report(place: Place) -> None:
    (checkpoint,) = place.state.checkpoints[place.session.id]
    checkpoint.summary.Clear()
    row = place.rows("model", "ls", place.session.name)
    assert (row["Elapsed"], row["Summary"]) == ("0.000", "")


def columns_of_dataset_ls(place: Place) -> None:
    assert place.session
    place.state.datasets[0].tags.append("example")
    assert place.rows("dataset", "ls") == {
        "Name": "mnist",
        "Size": "3.5 MB",
        "Last Modified": "4 hours ago",
        "Author": "kim",
        "Description": "#example",
        "Tag": "#example",
    }


def bare_lists(place: Place) -> None:
    name = place.session.name
    for words in (("ps",), ("model", "ls", name), ("dataset", "ls")):
        ours = json.loads(place.nsml(*words, "-j").stdout)["items"]
        assert json.loads(place.in_style(*words, "-j").stdout) == ours != []


def message_of_run(place: Place) -> None:
    assert place.folder
    assert place.in_style("run").stdout == "Session kim/None/1 is started\n"
    assert place.nsml("run").stdout == "Session kim/None/2 started\n"


def message_of_submit(place: Place) -> None:
    name = place.session.name
    place.state.submission_course = [
        boards_pb2.Submission(state=boards_pb2.SUBMISSION_STATE_SCORED, score=0.9855, rank=2)
    ]
    assert place.in_style("submit", name, "best").stdout == "Score: 0.9855\nRank: 2\nDone\n"


def columns_of_boards(place: Place) -> None:
    name = "kim/mnist"
    place.state.add_board(name, kind=boards_pb2.BOARD_KIND_DATASET)
    place.state.add_entry(
        name, "kim", 0.9855, session="kim/mnist/1", submission_id="s1", checkpoint="best", args="-x"
    )
    row = place.rows("dataset", "board", name)
    assert row.pop("Submitted").endswith(" ago")
    assert row == {
        "Owner": "kim",
        "Score": "0.9855",
        "Session": "kim/mnist/1",
        "Model": "best",
        "Args": "-x",
    }
    (item,) = json.loads(place.in_style("dataset", "board", name, "-j").stdout)
    assert item["score"] == 0.9855


def name_without_dataset(place: Place) -> None:
    place.run()
    assert place.newest.name == "kim/None/1"


def unknown_session(place: Place) -> None:
    done = place.in_style("logs", "kim/mnist/9", check=False)
    assert done.code == 5
    first, *rest = done.stderr.splitlines()
    assert first == 'Error: Invalid value for "SESSION": No valid sessions'
    assert "kim/mnist/9" in " ".join(rest)
    assert place.nsml("logs", "kim/mnist/9", check=False).stderr.startswith("error: ")


def rejected(place: Place) -> None:
    place.state.free_gpus = 0
    assert place.folder
    done = place.in_style("run", "--no-queue", check=False)
    assert done.code == 7
    assert "Rejected: not enough resources for your request\n" in done.stderr
    assert "Please retry later" in done.stderr


def over_quota(_: Place) -> None:
    told = "Error: Fail to run nsml session due to lack of available GPU for you"
    assert nsml_style.error_lines("OVER_QUOTA", "kim has 5 of 5 GPUs") == [told]


def no_credit(_: Place) -> None:
    told = nsml_style.error_lines("NO_CREDIT", "the budget of vision is used up")
    assert told[0] == "Rejected: not enough credit (balance: 0)"


def denied(place: Place) -> None:
    assert place.folder
    place.state.fail_next["CreateSession"] = grpc.StatusCode.PERMISSION_DENIED
    done = place.in_style("run", check=False)
    assert done.code == 4
    first, second = done.stderr.splitlines()[-2:]
    assert (first, second[:7]) == ("Error: Invalid request", "  why: ")


def sealed(_: Place) -> None:
    spec = SessionSpec(stage=SessionStage.PREDICT)
    with pytest.raises(Sealed) as refused:
        check_readable(SimpleNamespace(name="kim/mnist/4", spec=spec))  # type: ignore[arg-type]
    why = "Only nsml rm is valid for submit sessions"
    assert refused.value.why == why
    told = nsml_style.error_lines(refused.value.reason, str(refused.value), why)
    assert told == [f'Error: Invalid value for "SESSION": {why}']


def steps_stay(place: Place) -> None:
    spec = pb.SessionSpec(stage=pb.SESSION_STAGE_PREDICT)
    origin = pb.Origin(kind=pb.ORIGIN_KIND_SUBMISSION, name="kim/mnist/1")
    place.ended("kim/mnist/2", spec=spec, origin=origin)
    row = place.rows("ps", "-a")
    assert (row["Type"], row["Description"]) == ("submit", "submit of kim/mnist/1")


def limits_of_submissions(_: Place) -> None:
    times = [NOW - 60.0]
    hourly = SubmissionLimit(count=1, window_s=3_600.0)
    found = next_permitted(times, limit=hourly.count, window=hourly.window_s, now=NOW)
    assert found == NOW + 3540.0
    assert BoardSettings().limit.count == 0, "none, unless the owner sets one"


def words_of_uploads(place: Place) -> None:
    assert place.folder
    packing, sending, _ = place.in_style("run").stderr.splitlines()
    assert packing.startswith("packing   1 file 15 Bytes")
    assert sending.startswith("sending   1 file 15 Bytes")


def interrupted(place: Place) -> None:
    assert run._aborted(run._Submission()) == "run aborted: Interrupted by user"
