"""`nsml stacks`: which replicas are asked, and what one that cannot be seen means."""

import json

from nsml.v1 import sessions_pb2 as pb


def test_the_stacks_of_a_session(nsml, everything, state):
    assert nsml("stacks", "@last").stdout == (
        "pid 7  python main.py --lr 0.1\n"
        "  MainThread (active)\n"
        "    train  main.py:40\n"
        "        step = 12\n"
    )
    assert not any(one.with_locals for one in state.asked_stacks)
    nsml("stacks", "@last", "--locals")
    assert state.asked_stacks[-1].with_locals


def test_what_cannot_be_seen_is_an_error_that_says_why(nsml, everything, state):
    state.stacks[0] = pb.ReplicaStacks(unseen="py-spy is not installed on its node")
    refused = nsml("stacks", "@last", check=False)
    assert (refused.code, refused.stdout) == (6, "")
    assert "py-spy is not installed on its node" in refused.stderr


def test_where_no_thread_can_be_read_it_is_an_error_as_well(nsml, everything, state):
    process = state.stacks[0].processes[0]
    del process.threads[:]
    process.unseen = "it is just starting"
    refused = nsml("stacks", "@last", check=False)
    assert (refused.code, refused.stdout) == (6, "")
    assert "it is just starting" in refused.stderr
    state.stacks[0] = pb.ReplicaStacks()
    refused = nsml("stacks", "@last", check=False)
    assert (refused.code, refused.stdout) == (6, "")
    assert "no process is called python" in refused.stderr


def test_of_several_replicas_those_that_are_seen_are_shown(nsml, everything, state):
    [session] = [one for one in state.sessions.values() if one.name == "kim/mnist/1"]
    session.replicas.add(rank=1, node="gpu-1")
    shown = nsml("stacks", "kim/mnist/1").stdout
    assert shown.startswith("rank 1: cannot be seen: it is gone\n")
    assert "MainThread, rank 0 (active)" in shown
    records = json.loads(nsml("stacks", "kim/mnist/1", "-j").stdout)["items"]
    assert [(one["rank"], one["unseen"]) for one in records] == [(0, None), (1, "it is gone")]
    alone = nsml("stacks", "kim/mnist/1", "--rank", "1", check=False)
    assert (alone.code, alone.stdout) == (6, "")
    assert nsml("stacks", "kim/mnist/1", "--rank", "-1", check=False).code == 2


def test_a_session_that_has_ended_has_none(nsml, everything, state):
    session = state.add("kim/mnist/2")
    state.change(session, state=pb.SESSION_STATE_SUCCEEDED)
    refused = nsml("stacks", "kim/mnist/2", check=False)
    assert refused.code == 6
    assert "has ended" in refused.stderr
