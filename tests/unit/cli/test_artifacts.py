"""artifact and download: which version is meant, and what is said where there is none."""

import json

import pytest

from nsml.v1 import artifacts_pb2
from nsml.v1 import sessions_pb2 as pb


@pytest.fixture
def session(state):
    ended = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    state.artifacts[ended.id] = [
        artifacts_pb2.Artifact(name=name, version=version, session=ended.name, size_bytes=7)
        for name, version in (("report", 1), ("report", 2), ("eval-a", 1), ("eval-b", 1))
    ]
    for one in state.artifacts[ended.id]:
        one.state = artifacts_pb2.ARTIFACT_STATE_DURABLE
    state.artifacts[ended.id] += [
        artifacts_pb2.Artifact(name="gone", state="ARTIFACT_STATE_LOST", why_lost="no such file"),
        artifacts_pb2.Artifact(name="coming", state="ARTIFACT_STATE_SAVED"),
    ]
    return ended


def left(state, session):
    return [f"{one.name}@{one.version}" for one in state.artifacts[session.id] if one.version]


def test_versions_are_removed_by_name_version_and_glob(nsml, state, session):
    nsml("artifact", "rm", "kim/mnist/1", "report@1", "-y")
    assert left(state, session) == ["report@2", "eval-a@1", "eval-b@1"]
    assert "report@2" in nsml("artifact", "rm", "1", "report", "--dry-run").stderr
    nsml("artifact", "rm", "kim/mnist/1", "eval-*", "--confirm", "2")
    assert left(state, session) == ["report@2"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["pull", "1", "gone"], 5, "why: no such file"),
        (["pull", "1", "coming"], 3, "it is on its node, and on its way"),
        (["pull", "1", "report@9"], 5, "try: nsml artifact pull 1 report@"),
        (["info", "1", "x"], 5, "there are report@1, report@2, eval-a@1, eval-b@1"),
        (["rm", "1", "report@9", "-y"], 5, "try: nsml artifact rm kim/mnist/1 report@"),
    ],
)
def test_what_is_not_there_says_what_is(nsml, session, words, code, told):
    result = nsml("artifact", *words, check=False)
    assert (result.code, told in result.stderr) == (code, True), result.stderr


def test_lost_ones_are_listed_with_the_reason(nsml, session):
    result = nsml("artifact", "ls", "1")
    assert "artifact gone is lost: no such file" in result.stderr
    items = json.loads(nsml("artifact", "ls", "1", "-j").stdout)["items"]
    assert [(one["name"], one["version"]) for one in items[-2:]] == [
        ("gone", None),
        ("coming", None),
    ]


@pytest.mark.parametrize(
    ("state_of", "keeps", "code", "told"),
    [
        ("QUEUED", True, 6, "it has not ended, and does not run now"),
        ("FINALIZING", True, 3, "they are on their node, and on their way"),
        ("SUCCEEDED", True, 5, "why: it made no files that are kept (links"),
        ("FAILED", False, 5, "why: it was started without --keep-files, and its platform or"),
    ],
)
def test_files_that_are_not_kept_say_why(nsml, state, state_of, keeps, code, told):
    spec = pb.SessionSpec(keep_files=keeps)
    state.add("kim/mnist/1", pb.SessionState.Value(f"SESSION_STATE_{state_of}"), spec=spec)
    result = nsml("download", "kim/mnist/1", check=False)
    assert (result.code, told in result.stderr) == (code, True), result.stderr


def test_files_that_would_have_been_kept_by_default_say_why_they_are_not(nsml, state):
    spec = pb.SessionSpec(keep_files_by_default=True)
    session = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED, spec=spec)
    result = nsml("download", "kim/mnist/1", check=False)
    assert "are not), or the agent of its node was too old to keep any" in result.stderr
    session.imported.name = "lee/mnist/7"
    result = nsml("download", "kim/mnist/1", check=False)
    assert (result.code, "why: the backup that it comes from had none" in result.stderr) == (
        5,
        True,
    )


def test_files_of_an_earlier_attempt_are_not_taken_for_those_of_the_last(
    nsml, state, everything, tmp_path
):
    session = next(one for one in state.sessions.values() if one.name == "kim/mnist/1")
    session.attempt, session.state = 2, pb.SESSION_STATE_SUCCEEDED
    state.artifacts[session.id].append(
        artifacts_pb2.Artifact(
            name="/app", attempt=2, state="ARTIFACT_STATE_LOST", why_lost="no space left"
        )
    )
    result = nsml("download", "kim/mnist/1", str(tmp_path / "a"))
    assert "files of kim/mnist/1, attempt 1: " in result.stderr
    assert "those of attempt 2 are lost: no space left" in result.stderr
    session.state = pb.SESSION_STATE_FINALIZING
    result = nsml("download", "kim/mnist/1", str(tmp_path / "b"), check=False)
    assert (result.code, "are not in the object store yet" in result.stderr) == (3, True)


def test_files_that_were_removed_are_not_taken_for_none(nsml, state, everything):
    session = next(one for one in state.sessions.values() if one.name == "kim/mnist/1")
    session.spec.keep_files, session.state = True, pb.SESSION_STATE_SUCCEEDED
    nsml("artifact", "rm", "kim/mnist/1", "/app", "-y")
    result = nsml("download", "kim/mnist/1", check=False)
    assert (result.code, "why: they were removed" in result.stderr) == (5, True), result.stderr


@pytest.mark.parametrize("path", ["/etc/passwd", "/appendix", "../x", "a/../../b"])
def test_only_the_working_folder_is_downloaded(nsml, session, path):
    result = nsml("download", "-s", path, "kim/mnist/1", check=False)
    assert (result.code, "is not in the working folder" in result.stderr) == (2, True)


def test_the_files_of_a_running_session_are_those_of_now(nsml, state, everything, tmp_path):
    (state.files.folder / "out").mkdir()
    (state.files.folder / "out/a.csv").write_text("a")
    result = nsml("download", "kim/mnist/1", str(tmp_path / "a"))
    files = tmp_path / "a/kim_mnist_1/live"
    assert result.stdout == f"{files}\n"
    assert "files of kim/mnist/1, which is running, as they are now" in result.stderr
    assert sorted(path.name for path in files.iterdir()) == ["now.txt", "out"]
    (state.files.folder / "now.txt").write_text("later")
    again = json.loads(nsml("download", "kim/mnist/1", str(tmp_path / "a"), "-j").stdout)
    assert (again["files"], (files / "now.txt").read_text()) == (2, "later")
    nsml("download", "-s", "/app/out/a.csv", "kim/mnist/1", str(tmp_path / "b"))
    found = [path.name for path in (tmp_path / "b").rglob("*") if path.is_file()]
    assert found == ["a.csv"]
    assert (tmp_path / "b/kim_mnist_1/live/out/a.csv").exists()
    session = next(one for one in state.sessions.values() if one.name == "kim/mnist/1")
    session.state = pb.SESSION_STATE_SUCCEEDED
    ended = nsml("download", "kim/mnist/1", str(tmp_path / "a"))
    assert ended.stdout == f"{tmp_path / 'a/kim_mnist_1/files'}\n"
    session.state = pb.SESSION_STATE_RUNNING
    missing = nsml("download", "-s", "nope", "kim/mnist/1", str(tmp_path / "c"), check=False)
    assert (missing.code, (tmp_path / "c").exists()) == (5, False)


def test_until_when_files_are_kept_is_said(nsml, state, everything, tmp_path):
    session = next(one for one in state.sessions.values() if one.name == "kim/mnist/1")
    session.state = pb.SESSION_STATE_SUCCEEDED
    [kept] = [one for one in state.artifacts[session.id] if one.name == "/app"]
    kept.expires_at.FromJsonString("2030-01-02T03:04:00Z")
    said = nsml("download", "kim/mnist/1", str(tmp_path / "a"), "--utc").stderr
    assert "kept until 2030-01-02 03:04: then the platform removes them" in said
    assert "until 2030-01-02 03:04" in nsml("artifact", "info", "1", "/app", "--utc").stdout
    session.spec.keep_files = True
    nsml("artifact", "rm", "kim/mnist/1", "/app", "-y")
    state.expired_artifacts = 1
    result = nsml("download", "kim/mnist/1", check=False)
    assert (result.code, "kept as long as this platform keeps them" in result.stderr) == (5, True)


def test_a_part_of_the_files_is_downloaded(nsml, state, everything, tmp_path):
    next(iter(state.sessions.values())).state = pb.SESSION_STATE_SUCCEEDED
    whole = json.loads(nsml("download", "kim/mnist/1", str(tmp_path / "a"), "-j").stdout)
    assert (whole["left_out"], whole["files"] > 0) == ("left out: big.bin", True)
    part = nsml("download", "-s", "/app/weights.npy", "kim/mnist/1", str(tmp_path / "b"))
    assert [path.name for path in (tmp_path / "b/kim_mnist_1/files").iterdir()] == ["weights.npy"]
    assert "left out: big.bin" in part.stderr
    again = nsml("download", "kim/mnist/1", str(tmp_path / "a"), check=False)
    assert (again.code, "already" in again.stderr or "exists" in again.stderr) == (6, True)
    missing = nsml("download", "-s", "nope", "kim/mnist/1", str(tmp_path / "c"), check=False)
    assert (missing.code, (tmp_path / "c").exists()) == (5, False)
