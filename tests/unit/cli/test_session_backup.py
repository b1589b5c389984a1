"""backup and restore of sessions, as far as one platform in memory goes; tests/e2e/test_session_backup.py has two."""

import json
import subprocess

import pytest
import zstandard

from nsml.v1 import sessions_pb2 as pb
from nsml.v1.datasets_pb2 import Dataset
from tests.unit.cli.conftest import write_backup
from tests.unit.nsml.client.contract_server import EPOCH


@pytest.fixture
def ended(state):
    made = state.add("kim/mnist/3", pb.SESSION_STATE_SUCCEEDED)
    made.ended_at.seconds = EPOCH + 60
    return made


def test_the_archive_is_named_after_its_session(nsml, ended, project):
    result = nsml("backup", "kim/mnist/3")
    assert result.stdout == "kim_mnist_3.tar.zst\n"
    assert "1 session in kim_mnist_3.tar.zst" in result.stderr
    listed = subprocess.run(
        ["tar", "--zstd", "-tf", "kim_mnist_3.tar.zst"], capture_output=True, check=True, text=True
    ).stdout.split()
    assert listed == [
        "nsml-backup.json",
        "sessions/kim_mnist_3/logs/1-0.log",
        "sessions/kim_mnist_3/logs/1-0.jsonl",
        "sessions/kim_mnist_3/session.json",
        "SHA256SUMS",
    ]
    again = nsml("backup", "kim/mnist/3", check=False)
    assert (again.code, "is there already" in again.stderr) == (6, True)


def test_what_still_runs_is_refused_and_nothing_is_written(nsml, state, ended, project):
    state.add("kim/mnist/4")
    result = nsml("backup", "kim/mnist/3", "kim/mnist/4", "-o", "both.tar.zst", check=False)
    assert (result.code, "kim/mnist/4 has not ended" in result.stderr) == (6, True)
    assert [path.name for path in project.iterdir()] == ["main.py"]


def test_what_is_not_kept_any_more_is_named(nsml, ended, project):
    ended.spec.bundle_digest = "0" * 64
    result = nsml("backup", "kim/mnist/3", "-j")
    assert "kim/mnist/3: without the code" in result.stderr
    [why] = json.loads(result.stdout)["left_out"]["kim/mnist/3"]
    assert why.startswith("the code: ")


def test_a_restore_is_sent_to_its_end_and_once(nsml, state, project):
    first = json.loads(nsml("restore", "../old.tar.zst", "-j").stdout)["items"]
    assert [(one["was"], one["was_there"]) for one in first] == [("kim/mnist/1", False)]
    log, end = state.restoring
    assert (log.part.data, log.part.received_at.seconds) == (b"hello\n", 5)
    assert end.is_whole
    again = json.loads(nsml("restore", "../old.tar.zst", "-j").stdout)["items"]
    assert [one["was_there"] for one in again] == [True]
    assert len(state.restoring) == 2


@pytest.mark.parametrize("has_other", [False, True])
def test_a_program_finds_its_datasets_and_its_start_where_it_did(
    nsml, state, project, tmp_path, has_other
):
    if has_other:
        state.datasets.append(Dataset(name="mnist", owner="kim", version=1, digest="e" * 64))
    members, datasets = {}, []
    for number, folder in ((1, "old"), (3, "")):
        found = {"name": "mnist", "owner": "kim", "version": number, "digest": str(number) * 64}
        members[f"datasets/m{number}/data"] = b"%d" % number
        members[f"datasets/m{number}.json"] = json.dumps({"dataset": found}).encode()
        datasets.append({**found, "folder": folder})
        del datasets[-1]["owner"]
    members["sessions/1/checkpoints/%start/weights"] = b"1 2 3"
    spec = {
        "datasets": datasets[::-1],
        "initial_checkpoint": {"session": "s0", "name": "best", "digest": "b" * 64},
    }
    start = {"initial_checkpoint": "sessions/1/checkpoints/%start"}
    write_backup(tmp_path / "whole.tar.zst", members=members, spec=spec, **start)
    shown = nsml("restore", "--check", "../whole.tar.zst").stdout
    assert "  dataset   kim/mnist@1\n  dataset   kim/mnist@3\n" in shown
    assert not state.restored
    told = nsml("restore", "../whole.tar.zst").stderr
    name = "mnist.restored" if has_other else "mnist"
    sent = state.restored["sold"].spec
    assert [(one.name, one.version, one.folder) for one in sent.datasets] == [
        (name, 2, "mnist" if has_other else ""),
        (name, 1, "old"),
    ]
    assert f"kim/mnist/1: dataset mnist@3 is {name}@2 here\n" in told
    assert ("dataset mnist@1 is" in told) is has_other
    assert sent.initial_checkpoint.digest in state.blobs
    # Where it is not in the archive, its name alone is restored.
    write_backup(tmp_path / "part.tar.zst", name="kim/mnist/2", spec=spec)
    state.restored.clear()
    nsml("restore", "../part.tar.zst")
    assert state.restored["sold"].spec.initial_checkpoint.digest == ""


def test_what_is_in_one_is_shown_without_a_platform(nsml, project):
    result = nsml("restore", "--check", "../old.tar.zst", NSML_SERVER="127.0.0.1:1")
    assert "whole, 1 session" in result.stdout
    assert "kim/mnist/1" in result.stdout


def test_hostile_text_of_an_archive_is_shown_and_not_obeyed(nsml, project, tmp_path):
    write_backup(tmp_path / "evil.tar.zst", name="\x1b[2Jevil\r\n", memo="\x1b]0;x\x07")
    for words in (("restore", "--check"), ("restore",)):
        result = nsml(*words, "../evil.tar.zst", terminal=True)
        assert "\x1b[2J" not in result.stdout + result.stderr


def test_a_file_that_is_none_is_refused_by_its_name(nsml, project, tmp_path):
    (tmp_path / "text.zst").write_bytes(zstandard.compress(b"text " * 200))
    for name, why in {
        "main.py": "it is not compressed by zstd",
        "../text.zst": "it is compressed by zstd, and no tar file",
    }.items():
        result = nsml("restore", name, check=False)
        assert result.code == 1
        assert f"error: {name} is no nsml backup\n  why: {why}\n" in result.stderr


def test_one_that_is_cut_off_is_refused_by_its_name(nsml, project, tmp_path):
    whole = (tmp_path / "old.tar.zst").read_bytes()
    (tmp_path / "part.tar.zst").write_bytes(whole[: len(whole) // 2])
    result = nsml("restore", "--check", "../part.tar.zst", check=False)
    assert result.code == 1
    assert "error: ../part.tar.zst is damaged" in result.stderr
    assert "why: it " in result.stderr
