"""set, pause, load: what is said where nobody waits for a change any more."""

import pytest

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
