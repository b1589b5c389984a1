"""A plain `nsml ps`: the short way shows what the common way shows, and knows when to leave it."""

import pytest

from nsml.client import local_rpc as single
from nsml.v1 import sessions_pb2 as pb


@pytest.fixture
def asked(monkeypatch):
    """What the short way was asked, and whether it had an answer."""
    asked = []

    def ask(path, method, *rest, **options):
        answer = single.ask(path, method, *rest, **options)
        asked.append((method, answer is not None))
        return answer

    monkeypatch.setattr("cli.sessions.listing.ask", ask)
    return asked


SHORT = [("SessionService/ListSessions", True)]


@pytest.fixture
def near(server):
    return {"NSML_SERVER": f"unix:{server.socket}"}


@pytest.mark.parametrize("form", ["table", "wide", "json", "jsonl", "yaml", "csv", "name"])
@pytest.mark.parametrize("terminal", [False, True])
def test_both_ways_show_the_same(nsml, state, near, asked, form, terminal):
    state.add("kim/mnist/1", pb.SESSION_STATE_QUEUED, memo="오늘 \x1b[31m")
    state.add("kim/None/2", checkpoint_count=3)
    state.add("kim/None/3", pb.SESSION_STATE_FAILED)
    common = nsml("ps", terminal=terminal, NSML_OUTPUT=form)
    assert asked == []
    short = nsml("ps", terminal=terminal, NSML_OUTPUT=form, **near)
    assert asked == SHORT
    assert (short.bytes, short.stderr) == (common.bytes, common.stderr)
    assert "kim/None/2" in short.stdout


def test_no_live_sessions_are_said(nsml, near, asked):
    assert "ended ones: nsml ps -a" in nsml("ps", **near).stderr
    assert asked == SHORT


def test_more_than_one_page_takes_the_common_way(nsml, state, near, asked):
    for number in range(1, 6):
        state.add(f"kim/mnist/{number}")
    assert nsml("ps", NSML_OUTPUT="name", **near).stdout.count("kim/mnist/") == 5
    assert asked == SHORT


@pytest.mark.parametrize("words", [["ps", "-a"], ["ps", "-q"], ["-q", "ps"], ["ps", "-o", "wide"]])
def test_flags_take_the_common_way(nsml, near, asked, words):
    nsml(*words, **near)
    assert asked == []


def test_errors_are_those_of_the_common_way(nsml, server, near, home, asked, tmp_path):
    (home / "wrong").write_text("wrong\n")
    (home / "wrong").chmod(0o600)
    for environ in (
        {"NSML_TOKEN_FILE": str(home / "wrong")},
        {"NSML_SERVER": f"unix:{tmp_path}/nobody"},
        {"NSML_TOKEN_FILE": str(home)},
        {"NSML_CONTEXT": "none-of-this-name"},
        {"NSML_OUTPUT": "nonsense"},
    ):
        short = nsml("ps", check=False, **{**near, **environ})
        common = nsml("ps", "-n", "1000", check=False, **{**near, **environ})
        assert short.code == common.code != 0
        assert short.stderr == common.stderr
        assert short.stdout == ""


@pytest.mark.parametrize("way", ["short", "common"])
def test_only_a_table_on_a_terminal_is_made_of_cut_commands(nsml, state, near, asked, way):
    """Data, what is read by a program, and what is filtered or sorted by has all of each command."""
    words = [f"--option-{number}" for number in range(1_000)]
    state.add("kim/None/1", spec=pb.SessionSpec(entry="main.py", args=words))
    environ = near if way == "short" else {}
    for form in ("json", "jsonl", "yaml", "csv"):
        assert words[-1] in nsml("ps", terminal=True, NSML_OUTPUT=form, **environ).stdout
    assert words[-1] in nsml("ps", "--fields", "args", "-o", "csv", terminal=True).stdout
    assert "kim/None/1" in nsml("ps", "--filter", words[-1], terminal=True).stdout
    assert "kim/None/1" in nsml("ps", terminal=True, **environ).stdout
    assert words[-1] in nsml("command", "kim/None/1").stdout
