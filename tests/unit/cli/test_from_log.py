"""plot, events and export of what sessions printed."""

from __future__ import annotations

import csv
import io
import json

import pytest

from nsml.v1 import sessions_pb2 as pb

LOG = b"hello\nstep 1 loss: 0.5\nstep 2 loss: 0.25\nthe score is 7\nstep 3 loss: 0.125"


@pytest.fixture
def session(state):
    session = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    state.log(session, LOG)
    return session


def rows(text):
    return [(one["metric"], one["step"], one["value"]) for one in csv.DictReader(io.StringIO(text))]


LOSSES = [("loss", "1", "0.5"), ("loss", "2", "0.25"), ("loss", "3", "0.125")]


@pytest.mark.parametrize(
    "words",
    [("plot", "--csv"), ("events", "-o", "csv"), ("export",)],
    ids=lambda words: words[0],
)
def test_numbers_of_the_log_are_points(nsml, session, words):
    command, *options = words
    printed = nsml(command, "@last", *options, "--from-log", "auto").stdout
    assert [(m, s, str(float(v))) for m, s, v in rows(printed)] == LOSSES
    both = nsml(
        *(command, "@last", *options, "--from-log", "auto"), *("--from-log", r"score=score is (\d)")
    ).stdout
    assert [m for m, *_ in rows(both)] == ["loss", "loss", "score", "loss"]


def test_a_chart_says_that_it_is_of_the_log(nsml, session):
    drawn = nsml("plot", "@last", "--from-log", "auto", "--chart")
    assert "loss" in drawn.stdout
    assert "from the log" in drawn.stderr
    told = nsml("plot", "@last", "--from-log", "auto", "--table", "-m", "lo*").stdout
    assert told.startswith("loss of kim/mnist/1 fell 0.5 -> 0.125 over 3 points")


def test_points_have_the_time_of_their_line(nsml, session):
    items = json.loads(nsml("events", "@last", "--from-log", "auto", "-j").stdout)["items"]
    # The server receives a byte a second.
    assert [item["time"][11:19] for item in items] == ["22:13:42", "22:14:00", "22:14:33"]


def test_a_later_attempt_supersedes_what_an_earlier_one_printed(nsml, state):
    session = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    session.attempt = 2
    state.log(session, b"step 1 loss: 5\nstep 2 loss: 4\n", attempt=1)
    state.log(session, b"step 2 loss: 3\nstep 3 loss: 2\n", attempt=2)
    printed = nsml("events", "@last", "-o", "csv", "--from-log", "auto").stdout
    assert [(s, float(v)) for _, s, v in rows(printed)] == [("1", 5), ("2", 3), ("3", 2)]
    every = nsml("events", "@last", "-o", "csv", "--from-log", "auto", "--attempts").stdout
    assert [float(v) for *_, v in rows(every)] == [5, 4, 3, 2]


@pytest.mark.parametrize(
    ("words", "why"),
    [(("loss",), "takes auto or NAME=PATTERN"), (("loss=x",), "no group"), (("a=(",), "RE2")],
)
@pytest.mark.parametrize("command", ["plot", "events", "export"])
def test_what_is_no_request_is_refused(nsml, session, command, words, why):
    refused = nsml(command, "@last", "--from-log", *words, check=False)
    assert refused.code == 2
    assert why in refused.stderr
    assert "--from-log auto" in refused.stderr


def test_a_log_without_numbers_says_so(nsml, state):
    state.log(state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED), b"nothing\n")
    for command in (("plot", "--chart"), ("plot", "--csv"), ("events",)):
        told = nsml(command[0], "@last", *command[1:], "--from-log", "auto", terminal=True)
        assert "no line of the log has a metric" in told.stdout + told.stderr
    told = nsml("plot", "@last", "--chart", "--from-log", "a=(x)", terminal=True)
    assert "no line of the log matches" in told.stdout + told.stderr


def test_a_session_without_reports_hints_at_what_it_printed(nsml, session, state):
    told = nsml("plot", "@last", terminal=True)
    assert "loss is in the log: nsml plot --from-log auto kim/mnist/1" in told.stderr + told.stdout
    state.report(session, "acc", 0.5, step=1)
    assert "in the log" not in nsml("plot", "@last", terminal=True).stderr


def test_the_choice_of_loggers_excludes_its_opposite(nsml, project):
    refused = nsml("run", "--echo", "wandb", "--no-echo", check=False)
    assert refused.code == 2
    assert "exclude one another" in refused.stderr
    refused = nsml("run", "--echo", "wandbb", check=False)
    assert "did you mean wandb?" in refused.stderr
    refused = nsml("run", "--env", "NSML_ECHO=wandb", check=False)
    assert "set by the platform" in refused.stderr


def test_metrics_of_the_log_belong_to_the_session(nsml, state, project):
    nsml("run", "--metric", "auto", "--metric", r"q=q is (\d)", "--no-echo")
    [made] = state.sessions.values()
    assert list(made.spec.log_metrics) == ["auto", r"q=q is (\d)"]
    assert made.spec.environment["NSML_ECHO"] == "none"
    words = nsml("command", "@last").stdout
    assert "--metric auto" in words
    assert "--no-echo" in words
    dry = nsml("run", "--metric", "auto", "--echo", "mlflow,wandb", "--dry-run")
    assert "metrics from the log: auto" in dry.stderr
    assert "loggers that report, too: wandb,mlflow" in dry.stderr
    refused = nsml("run", "--metric", "loss", check=False)
    assert refused.code == 2
    assert "takes auto or NAME=PATTERN" in refused.stderr
