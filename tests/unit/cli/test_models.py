"""nsml model: what people are told of checkpoints, and what is refused before anything is sent."""

from __future__ import annotations

import json

import pytest

from nsml.v1 import checkpoints_pb2


@pytest.fixture
def tagged(state, everything):
    """A session with a second checkpoint, which has a tag, and eight that were removed."""
    known = state.checkpoints[everything.id][0]
    second = checkpoints_pb2.Checkpoint()
    second.CopyFrom(known)
    second.name, second.attempt = "last", 1
    second.tags.append("paper")
    second.users.add(session="kim/mnist/7")
    second.hidden_users = 2
    state.checkpoints[everything.id].append(second)
    everything.spec.keep_checkpoints = "best:1:val/acc:max last:2"
    state.removed_checkpoints = 8
    return everything


def test_a_list_says_what_was_removed_and_why_nothing_is(nsml, tagged):
    told = nsml("model", "ls", tagged.name, terminal=True)
    assert "paper" in told.stdout
    assert "8 checkpoints (8.4 MB) removed; retention: best:1:val/acc:max last:2" in told.stderr
    assert "none removed: no checkpoint has val/acc in its summary" in told.stderr


def test_one_is_shown_with_its_files_and_users_by_its_tag(nsml, tagged):
    told = nsml("model", "info", tagged.name, "paper").stdout
    assert told.startswith("checkpoint last of kim/mnist/1\n")
    assert "used by   kim/mnist/7, 2 of others\n" in told
    assert "weights.npy" in told
    found = json.loads(nsml("model", "info", tagged.name, "last", "-j").stdout)
    assert (found["files"][0]["path"], found["tags"]) == ("weights.npy", ["paper"])
    missing = nsml("model", "info", tagged.name, "lsat", check=False)
    assert (missing.code, "lsat" in missing.stderr) == (5, True)


def test_a_tag_is_given_moved_and_taken_away(nsml, state, tagged):
    moved = nsml("model", "tag", tagged.name, "best", "paper")
    assert "tagged checkpoint best: paper, moved from last" in moved.stderr
    removed = nsml("model", "untag", tagged.name, "paper")
    assert "removed tag paper from checkpoint best" in removed.stderr
    assert not any(one.tags for one in state.checkpoints[tagged.id])
    assert nsml("model", "untag", tagged.name, "paper", check=False).code == 5


@pytest.mark.parametrize("typed", ["last", "paper", "*"])
def test_a_tagged_one_is_removed_only_with_force(nsml, state, tagged, typed):
    refused = nsml("model", "rm", tagged.name, typed, "-y", check=False)
    assert (refused.code, "checkpoint last has the tag paper" in refused.stderr) == (6, True)
    assert len(state.checkpoints[tagged.id]) == 2
    nsml("model", "rm", tagged.name, typed, "-y", "-f")
    assert "last" not in [one.name for one in state.checkpoints[tagged.id]]


def test_rules_of_a_project_are_read_like_those_of_a_session(nsml, state, tagged):
    bad = nsml("project", "set", "vision", "--keep", "best:3", check=False)
    assert bad.code == 2
    assert "best needs a metric and its direction" in bad.stderr
    assert "try: --keep 'best:3:val/acc:max last:2'" in bad.stderr
