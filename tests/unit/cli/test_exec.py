"""`nsml exec`: what is asked of which replica, and what its answers mean."""

import asyncio
import json
import signal

import pytest

from nsml.client import expressions
from nsml.v1 import sessions_pb2 as pb


def test_the_value_is_printed_behind_what_was_printed(nsml, everything, state):
    state.evaluated = pb.Evaluated(value="(0.5,\n 12)", output="seen\n")
    shown = nsml("exec", "kim/mnist/1:0", "loss, step", "--limit", "30s", "--local-rank", "2")
    assert shown.stdout == "seen\n(0.5,\n 12)\n"
    [asked] = state.asked_code
    assert (asked.expression, asked.local_rank) == ("loss, step", 2)
    assert (asked.limit.seconds, asked.wait.seconds) == (30, 60)


def test_a_variable_that_hides_the_programs_is_said(nsml, everything, state):
    state.evaluated = pb.Evaluated(hides=["lr", "\x1bl"])
    done = nsml("exec", "@last", "lr = 0.5")
    assert done.stdout == ""
    assert "in the program it is as it was (del lr" in done.stderr
    assert "\x1b" not in done.stderr


def test_code_comes_from_standard_input(nsml, everything, state):
    nsml("exec", "@last", "-", stdin="x = 1\nx\n")
    assert state.asked_code[-1].expression == "x = 1\nx\n"
    assert nsml("exec", "@last", "-", stdin=" \n", check=False).code == 2


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            pb.Evaluated(error="Traceback\nZeroDivisionError: division by zero"),
            "division by zero\n",
        ),
        (pb.Evaluated(is_late=True), "error: it was interrupted after 5 s"),
        (pb.Evaluated(is_late=True, error="it does not stop"), "it does not stop\n"),
    ],
)
def test_what_failed_is_an_error_with_its_output(nsml, everything, state, found, words):
    state.evaluated = found
    state.evaluated.output = "so far"
    refused = nsml("exec", "@last", "1/0", check=False)
    assert (refused.code, refused.stdout) == (1, "so far\n")
    assert words in refused.stderr


def test_what_no_program_evaluated_is_an_error_that_says_why(nsml, everything, state):
    state.not_evaluated[0] = "its program reached no safe point within 60 s"
    refused = nsml("exec", "@last", "1", check=False)
    assert (refused.code, refused.stdout) == (6, "")
    assert "no safe point within 60 s" in refused.stderr


def test_of_what_began_it_is_not_said_that_it_was_not_evaluated(nsml, everything, state):
    state.not_evaluated[0] = "its program ended, or broke off, meanwhile"
    state.began_to_evaluate.add(0)
    refused = nsml("exec", "@last", "1", check=False)
    assert refused.code == 6
    assert "the program did not say what came of it" in refused.stderr


@pytest.mark.parametrize(
    ("option", "most"), [(("--limit", "61s"), "1m"), (("--wait", "61m"), "1h")]
)
def test_no_time_is_promised_that_is_not_given(nsml, everything, state, option, most):
    refused = nsml("exec", "@last", "1", *option, check=False)
    assert refused.code == 2
    assert f"{option[0]} is {most} at most" in refused.stderr
    assert state.asked_code == []


def test_all_replicas_are_asked_and_those_that_answer_are_shown(nsml, everything, state):
    [session] = [one for one in state.sessions.values() if one.name == "kim/mnist/1"]
    session.replicas.add(rank=1, node="gpu-1")
    assert nsml("exec", "kim/mnist/1", "1", "--all").stdout == "rank 0: 0.1\nrank 1: 0.1\n"
    state.not_evaluated[1] = "its program ended"
    partly = nsml("exec", "kim/mnist/1", "1", "--all", check=False)
    assert (partly.code, partly.stdout) == (9, "rank 0: 0.1\n")
    assert "rank 1: the program did not evaluate it: its program ended" in partly.stderr
    partly = nsml("exec", "kim/mnist/1", "1", "--all", "-j", check=False)
    items = json.loads(partly.stdout)["items"]
    assert [(one["rank"], one["value"]) for one in items] == [(0, "0.1"), (1, None)]
    assert "its program ended" in items[1]["error"]
    state.not_evaluated[0] = "its program ended"
    assert nsml("exec", "kim/mnist/1", "1", "--all", check=False).code == 1
    assert nsml("exec", "kim/mnist/1:1", "1", "--all", check=False).code == 2
    assert nsml("exec", "kim/mnist/1:1", "1", "--rank", "0", check=False).code == 2


def test_nothing_of_it_is_asked_twice(nsml, everything, state):
    state.no_processes = "it is away"
    assert nsml("exec", "@last", "1", check=False).code == 6
    assert state.asked_code == []


@pytest.mark.parametrize("has_begun", [False, True])
def test_ctrl_c_says_whether_the_program_goes_on_with_it(
    nsml, everything, state, monkeypatch, has_begun
):
    [session] = [one for one in state.sessions.values() if one.name == "kim/mnist/1"]
    session.replicas.add(rank=1, node="gpu-1")

    async def interrupted(*_, rank, told, **__):
        told(pb.EvaluateResponse(waits=True))
        if rank == 0:
            return pb.Evaluated(value="1")
        if has_begun:
            told(pb.EvaluateResponse(runs=True))
        signal.raise_signal(signal.SIGINT)
        return await asyncio.Event().wait()

    monkeypatch.setattr(expressions, "evaluate", interrupted)
    left = nsml("exec", "kim/mnist/1", "1", "--all", "--limit", "12s", check=False)
    assert (left.code, left.stdout) == (130, "")
    goes_on = "rank 1: the code goes on for up to 12s (--limit), and the program waits for it\n"
    withdrawn = "rank 1: withdrawn: the program had not begun to evaluate it\n"
    assert left.stderr == (goes_on if has_begun else withdrawn) + "\n"
