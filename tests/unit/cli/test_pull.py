"""Code and datasets come back as they were sent: whole, or not at all."""

import json

import pytest

from cli.exits import ExitCode
from nsml.v1 import sessions_pb2 as pb


@pytest.mark.parametrize(
    ("words", "target", "told"),
    [
        (
            ["pull", "mnist/1", "x"],
            "x/kim_mnist_1/code",
            "code of kim/mnist/1: 1 file (7 Bytes)\n",
        ),
        (
            ["dataset", "pull", "mnist@1", "x"],
            "x/mnist",
            "version 1 of kim/mnist: 4 files (3.5 MB)\n",
        ),
    ],
)
def test_it_is_fetched_and_said_where(nsml, everything, project, words, target, told):
    done = nsml(*words)
    assert (done.stdout, done.stderr) == (f"{target}\n", told)
    assert [file.name for file in (project / target).iterdir()] == ["weights.npy"]
    assert (project / target / "weights.npy").read_bytes() == b"weights"

    (project / target / "weights.npy").write_bytes(b"changed")
    again = nsml(*words, check=False)
    assert again.code == ExitCode.CONFLICT
    assert "give another PATH" in again.stderr
    assert (project / target / "weights.npy").read_bytes() == b"changed"


@pytest.mark.parametrize(
    "words",
    [
        ["pull", "mnist/1"],
        ["download", "mnist/1"],
        ["model", "pull", "mnist/1", "best"],
        ["artifact", "pull", "mnist/1", "report"],
        ["dataset", "pull", "mnist"],
    ],
)
def test_an_existing_folder_is_replaced_with_f_once_all_is_fetched(
    nsml, state, everything, project, words
):
    everything.state = pb.SESSION_STATE_SUCCEEDED
    target = project / nsml(*words, "x").stdout.strip()
    (target / "weights.npy").write_bytes(b"changed")
    (target / "mine").mkdir()
    there = sorted(project.rglob("*"))
    kept = {name: data for name, data in state.blobs.items() if data == b"weights"}
    state.blobs |= dict.fromkeys(kept, b"another")
    assert nsml(*words, "x", "-f", check=False).code not in (0, 2)
    assert sorted(project.rglob("*")) == there, "what is not whole replaces nothing"
    state.blobs |= kept
    done = nsml(*words, "x", "-f", "-v")
    assert (target / "weights.npy").read_bytes() == b"weights"
    assert [file.name for file in target.iterdir()] == ["weights.npy"]
    assert "   7 Bytes  weights.npy\n" in done.stderr
    assert sorted(project.rglob("*")) == [one for one in there if one.name != "mine"]


@pytest.mark.parametrize(
    "words",
    [
        ["dataset", "pull", "mnist", "--only", "weights.npy"],
        ["download", "mnist/1", "-s", "/app/weights.npy"],
    ],
)
def test_a_part_replaces_that_part_alone(nsml, everything, project, words):
    everything.state = pb.SESSION_STATE_SUCCEEDED
    target = project / nsml(*words, "x").stdout.strip()
    (target / "weights.npy").write_bytes(b"changed")
    (target / "other").write_bytes(b"fetched before")
    nsml(*words, "x", "-f")
    assert {one.name: one.read_bytes() for one in target.iterdir()} == {
        "weights.npy": b"weights",
        "other": b"fetched before",
    }


@pytest.mark.parametrize("words", [["pull", "mnist/1"], ["dataset", "pull", "mnist"]])
def test_what_is_not_whole_leaves_nothing(nsml, state, everything, project, words):
    there = sorted(project.iterdir())
    digest = everything.spec.bundle_digest
    (part,) = (data for data in state.blobs.values() if data == b"weights")
    for name, data in [*state.blobs.items()]:
        if data == part:
            state.blobs[name] = b"another"
    broken = nsml(*words, "x", check=False)
    assert broken.code not in (0, 2)
    assert sorted(project.iterdir()) == there
    del state.blobs[digest]
    gone = nsml(*words, "x", check=False)
    assert gone.code == ExitCode.NOT_FOUND
    assert sorted(project.iterdir()) == there


def test_a_session_without_code_says_so(nsml, everything):
    everything.spec.bundle_digest = ""
    without = nsml("pull", "mnist/1", check=False)
    assert without.code == ExitCode.NOT_FOUND
    assert "kim/mnist/1 has no code" in without.stderr


def test_names_lead_nowhere_else(nsml, state, everything, project):
    everything.name = "kim/../../x/1"
    state.datasets[0].name = "../up"
    record = json.loads(nsml("pull", everything.id, "in", "-j").stdout)
    assert record["path"] == "in/kim_.._.._x_1/code"
    assert json.loads(nsml("dataset", "pull", "../up", "in", "-j").stdout)["path"].startswith("in/")
    assert not (project / "up").exists()
    assert [one.name for one in project.iterdir() if one.name == "in"] == ["in"]
