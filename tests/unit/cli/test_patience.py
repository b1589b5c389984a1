"""Commands go on trying while a control plane says that a part of the platform is away."""

import json

import pytest

from nsml.v1 import sessions_pb2 as pb
from tests.unit.cli.conftest import FixedClock


@pytest.fixture
def slept(monkeypatch):
    """Every sleep of the command, none of which takes time."""
    taken = []

    async def sleep(_self, seconds):
        taken.append(seconds)

    monkeypatch.setattr(FixedClock, "sleep", sleep)
    monkeypatch.setattr(FixedClock, "monotonic", lambda _: sum(taken))
    return taken


def test_a_run_waits_for_what_passes_with_one_request_id(nsml, state, project, slept):
    state.is_away = 3
    result = nsml("run", "-o", "name")
    assert result.stdout == "kim/None/1\n"
    assert slept == [0.1] * 3
    assert result.stderr.count("the platform's history does not answer: trying again for 2m") == 1
    assert len(state.requests) == 1


def test_patience_ends(nsml, state, project, slept):
    state.is_away = 1000
    result = nsml("run", "--patience", "1s", check=False)
    assert result.code == 3
    assert sum(slept) == pytest.approx(1.0, abs=0.11)
    assert "error: the platform's history does not answer" in result.stderr
    assert not state.sessions


def test_without_patience_it_is_told_at_once_and_when_to_come_again(nsml, state, project):
    state.is_away = 1
    result = nsml("run", "--patience", "0s", "-j", check=False)
    assert result.code == 3
    error = json.loads(result.stderr.splitlines()[-1])["error"]
    assert (error["reason"], error["retry_after_s"]) == ("HISTORY_UNAVAILABLE", 0.1)


def test_a_terminal_sees_one_line_that_is_taken_away(nsml, state, project, slept):
    state.is_away = 2
    result = nsml("run", terminal=True)
    assert result.stderr.count("ctrl-C gives up)") == 2
    assert "ctrl-C gives up)\r\x1b[K" in result.stderr


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        ("ListSessions", ["ps", "-a"]),
        ("GetSession", ["logs", "kim/mnist/1"]),
        ("GetSession", ["memo", "kim/mnist/1"]),
        ("StopSession", ["stop", "kim/mnist/1"]),
    ],
)
def test_what_reads_or_stops_waits_as_well(nsml, state, slept, refused, words):
    state.add("kim/mnist/1")
    state.refuses[refused] = 3
    result = nsml(*words)
    assert slept == [0.1] * 3
    said = "the platform's history does not answer: trying again for 30s\n"
    assert result.stderr.count(said) == 1


def test_its_patience_ends_sooner(nsml, state, slept):
    state.refuses["ListSessions"] = 10_000
    result = nsml("ps", "-a", check=False)
    assert result.code == 3
    assert sum(slept) == pytest.approx(30.0, abs=0.11)
    assert "try: again in 0.1 s or later" in result.stderr


def test_what_would_be_done_twice_is_not_repeated(nsml, state, slept):
    state.add("kim/mnist/2", pb.SESSION_STATE_SUCCEEDED)
    state.refuses["RemoveSession"] = 1
    assert nsml("rm", "kim/mnist/2", "-y", check=False).code == 3
    assert not slept


def test_a_large_manifest_is_waited_for_to_the_end(nsml, state, project, tmp_path, slept):
    """However long that takes: `--patience` is for what is away."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("a")
    state.works = 100
    result = nsml("dataset", "push", "mnist", str(tmp_path / "data"))
    assert slept == [5.0] * 100
    assert result.stderr.count("the manifest is being read: waiting until it is done\n") == 1
    state.works = 2
    result = nsml("dataset", "push", "other", str(tmp_path / "data"), terminal=True)
    assert "\r\x1b[Kthe manifest is being read (5s so far; ctrl-C is safe)" in result.stderr
    state.works = 100
    assert nsml("run", "--patience", "1s", "-o", "name").stdout == "kim/None/1\n"
    assert len(state.requests) == 1
