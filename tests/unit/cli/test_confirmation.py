"""What asks before it acts: every command of the table, what is confirmed, and whose a glob means."""

import io
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import click
import pytest

from cli.app import App
from nsml.v1 import (
    accounts_pb2,
    artifacts_pb2,
    boards_pb2,
    checkpoints_pb2,
    competitions_pb2,
    datasets_pb2,
    nodes_pb2,
    projects_pb2,
    resources_pb2,
)
from nsml.v1 import sessions_pb2 as pb
from nsml.view.confirmation import COMMANDS
from tests.unit.cli.test_every_command import ALL
from tests.unit.nsml.client.contract_server import LAPTOP

ROOT = Path(__file__).parents[3]
HELD = "saaaaaaaaaaaaaaaa.1.0"
LINES = {
    "stop": ["lee/cifar/1"],
    "requeue": ["kim/mnist/1", "kim/mnist/2"],
    "memo": ["kim/mnist/*", "mine"],
    "rm": ["kim/ended/1"],
    "model rm": ["kim/ended/1", "a"],
    "artifact rm": ["kim/ended/1", "report@1"],
    "dataset rm": ["cifar"],
    "board rm": ["best"],
    "board reevaluate": ["cifar"],
    "competition close": ["cup"],
    "competition rm": ["draft"],
    "competition leave": ["cup"],
    "competition merge": ["cup", "tigers"],
    "competition teams": ["cup", "--disqualify", "tigers", "--reason", "two accounts"],
    "secret rm": ["TOKEN"],
    "key rm": ["laptop"],
    "webhook rm": [],
    "project rm": ["vision"],
    "project remove": ["vision", "lee"],
    "node drain": ["gpu-1", "--move-after", "2h"],
    "node resume": ["held"],
    "node fence": ["gpu-1"],
    "node rm": ["gpu-1"],
    "image rm": ["lab/torch:2"],
    "env rm": ["3f9a0c51d2e4"],
    "admin user rm": ["lee"],
    "admin user token": ["lee", "--revoke"],
}
"""A command line of each command of the table for which it asks; `down` is tried in tests/integration/test_up_down.py."""

WORDS = {"rm", "remove", "delete", "prune", "purge", "revoke", "stop", "requeue", "kill", "drain", "fence", "down"}  # fmt: skip
"""Names of commands that end or destroy something."""


@pytest.fixture
def platform(state):
    """One of everything that can be ended or destroyed; its user is an administrator."""
    for node in ("gpu-1", "held"):
        state.environments[node] = [resources_pb2.NodeEnvironment(key="3f9a0c51d2e4" + "0" * 20)]
    state.add("kim/mnist/1")
    state.add("kim/mnist/2")
    state.add("lee/cifar/1")
    ended = state.add("kim/ended/1", pb.SESSION_STATE_SUCCEEDED, checkpoint_count=2)
    state.artifacts[ended.id] = [artifacts_pb2.Artifact(name="report", version=1, size_bytes=7)]
    state.checkpoints[ended.id] = [
        checkpoints_pb2.Checkpoint(name=name, size_bytes=1_500_000_000) for name in ("a", "b")
    ]
    state.datasets.append(datasets_pb2.Dataset(name="cifar", owner="kim", version=2))
    state.add_board("kim/best")
    state.add_board("kim/cifar", kind=boards_pb2.BOARD_KIND_DATASET)
    state.add_entry("kim/cifar", "lee", 0.5)
    cup = state.add_competition("kim/cup")
    cup.team.CopyFrom(competitions_pb2.Team(name="lions", members=["kim"]))
    cup.teams.add(name="tigers", members=["lee"])
    state.add_competition("kim/draft", state=competitions_pb2.COMPETITION_STATE_DRAFT)
    state.secrets["TOKEN"] = b"secret"
    state.add_key(LAPTOP)
    state.webhook = "https://hooks.example.org/x"
    settings = projects_pb2.ProjectSettings(owner="kim")
    state.projects["vision"] = projects_pb2.Project(
        name="vision", settings=settings, members=["kim", "lee"]
    )
    state.tokens["secret-of-lee"] = "lee"
    state.users["lee"] = accounts_pb2.User(name="lee", role=accounts_pb2.ROLE_MEMBER)
    state.nodes.append(nodes_pb2.Node(name="gpu-1", state=nodes_pb2.NODE_STATE_SILENT))
    state.images["gpu-1"] = [nodes_pb2.NodeImage(name="lab/torch:2")]
    held = nodes_pb2.Node(name="held", state=nodes_pb2.NODE_STATE_HELD)
    held.hold.replicas.append(HELD)
    state.nodes.append(held)
    state.on_nodes = ["kim/mnist/1"]
    return state


def kept(state):
    """All that a command could have changed."""
    parts = (state.sessions, state.secrets, state.keys, state.webhook, state.projects, state.users)
    saved = (state.checkpoints, state.artifacts, state.images, state.environments, state.boards)
    competitions = (state.competitions, state.merges)
    return str((parts, state.nodes, state.tokens, state.datasets, saved, competitions))


def test_the_table_has_every_command_that_ends_or_destroys_something():
    ending = {name for name in ALL if name.split()[-1] in WORDS}
    assert ending <= set(COMMANDS)
    assert set(COMMANDS) <= set(ALL)
    assert set(LINES) == set(COMMANDS) - {"down"}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_takes_yes_and_dry_run_and_shows_them(name, nsml):
    options = {
        option
        for parameter in ALL[name].params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for option in parameter.opts
    }
    assert {"-y", "--yes", "--dry-run"} <= options
    assert {"-y,", "--dry-run"} <= set(nsml(*name.split(), "-h").stdout.split())


@pytest.mark.parametrize("name", LINES)
def test_each_does_nothing_where_nobody_can_be_asked(name, nsml, platform, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    before = kept(platform)
    for flags in ({}, {"terminal": True}):
        words = [*name.split(), *LINES[name], *(["--no-input"] if flags else [])]
        refused = nsml(*words, check=False, **flags)
        assert refused.code == 2, refused.stderr
        told = refused.stderr
        assert f"there is no terminal to ask on: nothing was {COMMANDS[name].done}" in told
        assert "\n  why: it would " in told
        assert "\n  try: add -y\n       add --dry-run " in told
    assert kept(platform) == before


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "no\n", "yess\n", "1\n", "y", "\x00\x1b\n"])
@pytest.mark.parametrize("name", LINES)
def test_each_does_nothing_for_any_answer_but_yes(name, answer, nsml, platform):
    before = kept(platform)
    refused = nsml(*name.split(), *LINES[name], terminal=True, stdin=answer, check=False)
    assert refused.code == 2
    assert "? [y/N] " in refused.stderr
    assert "not confirmed: nothing was " in refused.stderr
    assert kept(platform) == before


@pytest.mark.parametrize("name", LINES)
def test_each_is_done_for_a_yes_and_for_the_flag(name, nsml, platform):
    before = kept(platform)
    nsml(*name.split(), *LINES[name], terminal=True, stdin="Y\n")
    assert kept(platform) != before


@pytest.mark.parametrize("name", LINES)
def test_each_is_done_unasked_with_the_flag(name, nsml, platform):
    before = kept(platform)
    done = nsml(*name.split(), *LINES[name], "-y")
    assert "[y/N]" not in done.stderr
    assert kept(platform) != before


@pytest.mark.parametrize("flags", [[], ["-y"]])
@pytest.mark.parametrize("name", LINES)
def test_each_lists_and_does_nothing_in_a_dry_run(name, flags, nsml, platform):
    before = kept(platform)
    done = nsml(*name.split(), *LINES[name], "--dry-run", *flags)
    assert done.stderr.startswith("would ")
    assert done.stderr.endswith("nothing was done (--dry-run)\n")
    assert done.stdout
    assert kept(platform) == before


def test_bytes_that_are_no_text_are_no_answer():
    stream = io.TextIOWrapper(io.BytesIO(b"\xffy\n"), encoding="utf-8")
    stream.isatty = lambda: True
    app = App(environ={}, stdin=stream, stderr=io.StringIO())
    app.stderr.isatty = lambda: True
    assert app.agrees("remove it?", flag="-y") is False


def test_quiet_hides_nothing_of_a_question(nsml, platform):
    asked = nsml("stop", "-q", "kim/mnist/*", terminal=True, stdin="n\n", check=False).stderr
    assert asked.startswith("  kim/mnist/2  ● Running\n  kim/mnist/1  ● Running\nstop 2 sessions?")


def test_a_removal_says_what_is_lost(nsml, platform):
    asked = nsml("rm", "kim/ended/1", terminal=True, stdin="n\n", check=False).stderr
    assert asked.startswith("remove kim/ended/1, 2 checkpoints (3.0 GB), logs and metrics? [y/N] ")


def test_a_dry_run_tells_what_would_be_refused(nsml, platform):
    told = nsml("rm", "kim/ended/1", "kim/mnist/1", "9", "--dry-run", check=False)
    assert told.code == 9
    assert told.stdout == "kim/ended/1\n"
    assert "kim/mnist/1 has not ended" in told.stderr
    assert "no session '9'" in told.stderr


@pytest.fixture
def between(monkeypatch):
    """Something that happens while a question stands, which is then answered with yes."""

    def happens(act):
        def ask(_app, _question, *, flag):
            act()
            return "y"

        monkeypatch.setattr(App, "ask", ask)

    return happens


def test_what_was_confirmed_is_what_is_removed(nsml, platform, between):
    live = platform.sessions[f"s{1:016d}"]

    def act():
        platform.add("kim/ended/2", pb.SESSION_STATE_SUCCEEDED)
        platform.change(live, state=pb.SESSION_STATE_SUCCEEDED)

    between(act)
    done = nsml("rm", "kim/ended/*", "kim/mnist/1", terminal=True, check=False)
    assert (done.code, done.stdout) == (9, "kim/ended/1\n")
    names = {one.name for one in platform.sessions.values()}
    assert {"kim/ended/2", "kim/mnist/1"} <= names


def test_checkpoints_that_are_saved_meanwhile_stay(nsml, platform, between):
    saved = next(iter(platform.checkpoints.values()))
    between(lambda: saved.append(checkpoints_pb2.Checkpoint(name="ab")))
    nsml("model", "rm", "kim/ended/1", "a*", terminal=True)
    left = next(iter(platform.checkpoints.values()))
    assert [one.name for one in left] == ["b", "ab"]


def test_what_was_confirmed_is_what_is_stopped(nsml, platform, between):
    between(lambda: platform.add("kim/mnist/3"))
    done = nsml("stop", "mnist/*", terminal=True)
    assert done.stdout.split() == ["kim/mnist/2", "kim/mnist/1"]


def test_somebody_elses_session_is_asked_for_and_named(nsml, platform):
    asked = nsml("stop", "lee/cifar/1", terminal=True, stdin="n\n", check=False).stderr
    assert asked.startswith("stop lee/cifar/1 of lee? [y/N] ")
    assert nsml("stop", "mnist/1").stdout == "kim/mnist/1\n"


GLOBS = [
    (["*"], {"kim/mnist/1", "kim/mnist/2"}),
    (["kim/*"], {"kim/mnist/1", "kim/mnist/2"}),
    (["mnist/*"], {"kim/mnist/1", "kim/mnist/2"}),
    (["[1]"], {"kim/mnist/1"}),
    (["mnist/[2-9]"], {"kim/mnist/2"}),
    (["lee/*"], {"lee/cifar/1"}),
    (["lee/cifar/*"], {"lee/cifar/1"}),
    (["*", "--user", "lee"], {"lee/cifar/1"}),
    (["[1]", "-u", "lee", "-u", "kim"], {"lee/cifar/1", "kim/mnist/1"}),
    (["mnist/*", "lee/cifar/1"], {"kim/mnist/1", "kim/mnist/2", "lee/cifar/1"}),
]


@pytest.mark.parametrize(("words", "meant"), GLOBS)
@pytest.mark.parametrize("name", ["stop", "requeue"])
def test_a_glob_of_an_administrator_means_their_own_unless_a_user_is_named(
    name, words, meant, nsml, platform
):
    assert set(nsml(name, *words, "-y").stdout.split()) == meant
    touched = {one.name for one in platform.sessions.values() if one.state != pb.SESSION_STATE_RUNNING}  # fmt: skip
    assert touched - {"kim/ended/1"} == meant


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["*/cifar/*"], 5, "no live session of yours fits '*/cifar/*'"),
        (["ann/*"], 5, "no live session of yours or of ann fits 'ann/*'"),
        (["None/[7-9]"], 5, "no live session of yours fits 'None/[7-9]'"),
        (["*", "--user", "ann"], 5, "no live session of ann fits '*'"),
        (["*", "--user", "*"], 2, "--user takes names, not globs"),
        (["kim/mnist/1", "--user", "lee"], 2, "--user goes with a glob"),
    ],
)
def test_a_glob_that_means_nothing_does_nothing(words, code, said, nsml, platform):
    before = kept(platform)
    refused = nsml("stop", *words, "-y", check=False)
    assert (refused.code, said in refused.stderr) == (code, True), refused.stderr
    assert kept(platform) == before


def test_a_glob_that_fits_only_what_needs_nothing_says_so(nsml, platform):
    stopped = nsml("stop", "kim/ended/*", "-y", check=False)
    assert (stopped.code, stopped.stdout) == (5, "")
    assert (
        "no live session of yours fits 'kim/ended/*'\n  why: 1 ended session does\n"
        in stopped.stderr
    )
    assert nsml("requeue", "kim/ended/*", "-y", check=False).stderr == stopped.stderr
    removed = nsml("rm", "kim/mnist/*", "-y", check=False)
    assert (
        "no ended session of yours fits 'kim/mnist/*'\n  why: 2 live sessions do\n"
        in removed.stderr
    )
    assert "  try: nsml stop 'kim/mnist/*'    # first\n" in removed.stderr


def test_a_glob_with_two_meanings_is_refused_with_both(nsml, platform):
    platform.add("kim/lee/1")
    refused = nsml("stop", "lee/*", "-y", check=False)
    assert refused.code == 2
    assert "'kim/lee/*'" in refused.stderr
    assert "--user lee '*'" in refused.stderr
    assert nsml("stop", "kim/lee/*", "-y").stdout == "kim/lee/1\n"
    assert nsml("stop", "*", "--user", "lee", "-y").stdout == "lee/cifar/1\n"


def test_a_glob_of_memo_changes_ones_own_and_shows_all_it_fits(nsml, platform):
    nsml("memo", "mnist/*", "sweep", "-y")
    shown = nsml("memo", "*").stdout.splitlines()
    assert shown == ["kim/ended/1", "kim/mnist/2  sweep", "kim/mnist/1  sweep"]
    assert nsml("memo", "lee/cifar/1").stdout == "\n"


def test_members_are_not_asked_about_what_they_may_not_change(nsml, platform):
    platform.users["kim"].role = accounts_pb2.ROLE_MEMBER
    before = kept(platform)
    for flags in ([], ["--dry-run"], ["-y"]):
        done = nsml("stop", "lee/cifar/1", *flags, check=False)
        assert done.code == 4
        assert "session lee/cifar/1 is lee's" in done.stderr
        assert "would stop" not in done.stderr
    assert kept(platform) == before


def pressed(process: subprocess.Popen[bytes], number: int) -> None:
    """Python sees no signal that comes between its last look and a read, until that ends: people press again."""
    while process.poll() is None:
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)


def test_a_real_terminal_is_asked_and_obeyed(environ, platform):
    for typed, answer, code in (
        (b"", b"n\n", 2),
        (b"y\n", b"\x04", 2),  # typed before the question: no answer to it
        (b"y\n", signal.SIGINT, 130),
        (b"", b"yes\n", 0),
    ):
        terminal, theirs = os.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "cli.main", "rm", "kim/ended/1"],
            cwd=ROOT,
            env={**environ, "PATH": os.environ["PATH"]},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        os.write(terminal, typed)
        shown = b""
        while b"[y/N] " not in shown:
            shown += os.read(terminal, 1024)
        if isinstance(answer, bytes):
            os.write(terminal, answer)
        else:
            pressed(process, answer)
        with suppress(OSError):  # the other end is closed
            while piece := os.read(terminal, 1024):
                shown += piece
        os.close(terminal)
        assert process.wait(60) == code, shown
        is_left = any(one.name == "kim/ended/1" for one in platform.sessions.values())
        assert is_left is (code != 0)
    assert b"removed 1" in shown
