"""import, as far as a platform in memory goes; tests/e2e/test_imports.py has a real one."""

import json

import pytest

from tests.support.past_runs import BEGAN

NOWHERE = {"NSML_SERVER": "127.0.0.1:1"}


def items(result):
    return json.loads(result.stdout)["items"]


def test_runs_become_sessions_once(nsml, state, project):
    first = items(nsml("import", "tensorboard", "../past/runs", "-j"))
    assert [(one["run"], one["imported"], one["points"]) for one in first] == [
        ("a", True, 3),
        ("b", True, 3),
    ]
    assert [one["began_at"] for one in first] == [
        "2023-11-14T22:13:20.000Z",
        "2023-11-14T23:13:20.000Z",
    ]
    sent = [*state.restored.values()]
    assert [one.name for one in sent] == ["tensorboard/runs/a", "tensorboard/runs/b"]
    assert [one.created_at.seconds for one in sent] == [BEGAN, BEGAN + 3600]
    records, end, *_ = state.restoring
    assert [json.loads(one)["values"] for one in records.part.records][:2] == [
        {"loss": 1.0},
        {"loss": 0.5},
    ]
    assert end.is_whole
    again = items(nsml("import", "tensorboard", "../past/runs", "-j"))
    assert [(one["imported"], one["was_there"]) for one in again] == [(False, True)] * 2
    assert len(state.restoring) == 4
    assert "was there already" in nsml("import", "tensorboard", "../past/runs").stdout


@pytest.mark.parametrize(("tool", "folder"), [("mlflow", "mlruns"), ("wandb", "wandb")])
def test_other_tools_are_imported_alike(nsml, state, project, tool, folder):
    for place in (f"../{folder}", ".."):
        found = items(nsml("import", tool, place, "-j"))
        assert [(one["run"], one["session"], one["state"]) for one in found] == [
            ("a", f"{tool}/digits/a", "SUCCEEDED"),
            ("b", f"{tool}/digits/b", "SUCCEEDED"),
        ]
        assert [one["was_there"] for one in found] == [place == ".."] * 2
    assert [one.created_at.seconds for one in state.restored.values()] == [BEGAN, BEGAN + 3600]
    assert [one.ended_at.seconds for one in state.restored.values()] == [BEGAN + 2, BEGAN + 3602]


def test_artifacts_are_sent_once_and_counted(nsml, state, project):
    place = project.parent / "mlruns/1" / ("a" * 32) / "artifacts/weights"
    place.mkdir(parents=True)
    (place / "w.bin").write_bytes(b"12345")
    (place / "link").symlink_to("w.bin")
    words = ("import", "mlflow", "../mlruns", "--run", "a", "-j")
    [one] = items(nsml(*words, "--check", **NOWHERE))
    assert (one["artifacts"], one["artifact_bytes"]) == (1, 5)
    assert one["left_out"] == ["artifact weights/link: it is a link"]
    [without] = items(nsml(*words, "--check", "--no-artifacts", **NOWHERE))
    assert (without["artifacts"], without["left_out"]) == (0, [])
    table = nsml("import", "mlflow", "../mlruns", "--run", "a")
    assert "1 (5 Bytes)" in table.stdout
    assert "a: without artifact weights/link: it is a link" in table.stderr
    [sent] = [one.artifact for one in state.restoring if one.HasField("artifact")]
    assert (sent.name, sent.version, sent.file_count, sent.size_bytes) == ("weights", 1, 1, 5)
    assert len(sent.digest) == 64
    sends = len(state.restoring)
    assert [one["was_there"] for one in items(nsml(*words))] == [True]
    assert len(state.restoring) == sends


def test_a_check_asks_no_platform(nsml, project):
    result = nsml("import", "tensorboard", "--check", "../past/runs", **NOWHERE)
    assert result.stdout.count("can be imported") == 2
    assert nsml(
        "import", "tensorboard", "--check", "../past/runs", "-o", "name", **NOWHERE
    ).stdout == ("a\nb\n")


def test_runs_are_chosen_by_name_and_the_dataset_is_set(nsml, state, project):
    nsml("import", "tensorboard", "../past/runs", "--run", "b*", "-d", "digits")
    assert [one.name for one in state.restored.values()] == ["tensorboard/digits/b"]
    none = nsml("import", "tensorboard", "../past/runs", "--run", "c", check=False)
    assert (none.code, "no run has a name like --run" in none.stderr) == (5, True)
    bad = nsml("import", "tensorboard", "../past/runs", "-d", "a b", check=False)
    assert (bad.code, "a b is not a dataset name" in bad.stderr) == (2, True)


@pytest.mark.parametrize("words", [(), ("--check",)])
def test_a_damaged_run_is_named_and_the_others_are_imported(nsml, state, project, words):
    [file] = (project.parent / "past/runs/a").iterdir()
    file.write_bytes(b"\x1b[2J no event file")
    result = nsml("import", "tensorboard", "../past/runs", "-j", *words, check=False)
    assert result.code == 9
    first, second = sorted(items(result), key=lambda one: one["run"])
    assert first["error"] == "no event file of it can be read"
    assert (second["error"], second["imported"]) == (None, not words)
    [other] = (project.parent / "past/runs/b").iterdir()
    other.write_bytes(b"nor this one")
    assert nsml("import", "tensorboard", "../past/runs", *words, check=False).code == 1


def test_what_is_behind_damage_is_said_to_be_missing(nsml, state, project):
    [file] = (project.parent / "past/runs/a").iterdir()
    file.write_bytes(file.read_bytes() + b"\xff" * 100)
    result = nsml("import", "tensorboard", "../past/runs", "--run", "a", check=False)
    assert result.code == 9
    assert "a: without a/events.out" in result.stderr
    assert "imported, damaged" in result.stdout
    assert len(state.restored) == 1


def test_a_run_without_values_is_left_out(nsml, state, project):
    [file] = (project.parent / "past/runs/a").iterdir()
    file.write_bytes(b"")
    result = nsml("import", "tensorboard", "../past/runs")
    assert "left out: it has no values" in result.stdout
    assert [one.name for one in state.restored.values()] == ["tensorboard/runs/b"]


def test_without_a_platform_nothing_is_said_to_be_done(nsml, project):
    result = nsml("import", "tensorboard", "../past/runs", check=False, **NOWHERE)
    assert (result.code, "of 2 runs done" in result.stderr) == (3, False)


def test_an_empty_folder_has_no_runs(nsml, project):
    result = nsml("import", "tensorboard", ".", check=False)
    assert (result.code, "no such run in" in result.stderr) == (5, True)
    assert "nsml import" not in result.stderr


def test_a_folder_of_another_tool_is_said_to_be_one(nsml, project):
    result = nsml("import", "wandb", "../past/runs", check=False)
    assert result.code == 5
    assert "nsml import tensorboard ../past/runs" in result.stderr
