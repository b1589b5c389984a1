"""set, pause, load: what is said where nobody waits for a change any more."""

import json

import pytest

from cli.exits import ExitCode
from nsml.client import program_changes
from nsml.v1 import sessions_pb2 as pb


@pytest.mark.parametrize("words", [["set", "lr=0.5"], ["pause"], ["load", "best"]])
def test_ctrl_c_leaves_the_change_and_says_so(nsml, everything, state, monkeypatch, words):
    state.change_phase = pb.PROGRAM_CHANGE_PHASE_PREPARE

    async def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(program_changes, "until_over", interrupted)
    command, *rest = words
    done = nsml(command, everything.name, *rest, check=False)
    assert done.code == 130
    assert "stays asked for" in done.stderr
    assert f"nsml set {everything.name}" in done.stderr
    assert state.sessions[everything.id].changes[-1].phase == pb.PROGRAM_CHANGE_PHASE_PREPARE


def test_a_knob_is_set_once_in_a_command(nsml, everything, state):
    refused = nsml("set", everything.name, "lr=1", "lr=2", check=False)
    assert refused.code == 2
    assert "lr is given twice" in refused.stderr
    assert not state.sessions[everything.id].changes


def test_of_many_changes_the_last_ones_are_shown(nsml, everything):
    for number in range(1, 31):
        everything.changes.add(number=number, kind=1, phase=5, asked_by="kim")
    shown = nsml("set", "mnist/1")
    numbers = [line.split()[0] for line in shown.stdout.splitlines() if line.startswith("#")]
    assert numbers == [f"#{number}" for number in range(11, 31)]
    assert "the last 20 of 30 changes; -j has all" in shown.stderr
    (found,) = json.loads(nsml("set", "mnist/1", "-j").stdout)["items"]
    assert len(found["changes"]) == 30


def test_a_checkpoint_that_there_is_not_is_asked_of_no_program(nsml, everything):
    missing = nsml("load", "mnist/1", "worst", check=False)
    assert missing.code == ExitCode.NOT_FOUND
    assert "has no checkpoint worst" in missing.stderr
    assert "try: nsml model ls mnist/1" in missing.stderr
    assert not everything.changes


def test_a_program_is_asked_for_a_tagged_checkpoint_by_its_name(nsml, state, everything):
    state.checkpoints[everything.id][0].tags.append("paper")
    nsml("load", "mnist/1", "paper", "--detach")
    assert state.sessions[everything.id].changes[-1].checkpoint == "best"
