"""Whole processes: what is loaded, what signals do, what reaches a shell."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from nsml.v1 import sessions_pb2 as pb
from tests.unit.nsml.client.contract_server import TOKEN

ROOT = Path(__file__).parents[3]
NSML = [sys.executable, "-m", "cli.main"]


def start(environ, *words, cwd=ROOT, **options):
    return subprocess.Popen(
        [*NSML, *words],
        cwd=cwd,
        env={**environ, "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def loaded(environ, *words):
    script = (
        "import sys, os; os._exit = sys.exit\n"
        "import atexit; atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))\n"
        "from cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=ROOT,
        env={**environ, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stderr.split())


HEAVY = {"rich", "numpy", "platformdirs", "zstandard", "blake3", "pyfastcdc", "pathspec", "msgspec"}


def test_version_and_help_load_no_grpc(environ):
    groups = ["--help"], ["admin", "--help"], ["admin", "user", "--help"], ["doctor", "--help"]
    for words in (["--version"], *groups, ["run", "--help"]):
        modules = loaded(environ, *words)
        assert not modules & {*HEAVY, "grpc", "google.protobuf", "asyncio"}, words


def test_a_plain_ps_on_this_machine_loads_no_command_tree_and_no_grpc(environ, server, everything):
    modules = loaded({**environ, "NSML_SERVER": f"unix:{server.socket}"}, "ps")
    assert "nsml.v1.sessions_pb2" in modules
    spared = {"grpc", "asyncio", "click", "cli.root", "ssl", "json", "inspect", "pathlib"}
    assert not modules & {*HEAVY, *spared}


def test_ps_loads_what_it_needs_alone(environ, everything):
    modules = loaded(environ, "ps")
    assert "grpc" in modules
    assert not modules & HEAVY
    services = {name for name in modules if name.startswith("nsml.v1.") and "pb2" in name}
    assert services == {"nsml.v1.resources_pb2", "nsml.v1.sessions_pb2"}
    mine = {name for name in modules if name.startswith("cli.")}
    assert not mine & {
        "cli.sessions.run",
        "cli.sessions.logs",
        "cli.results.models",
        "cli.data.datasets",
        "cli.accounts.users",
    }


def test_a_reader_who_leaves_is_no_error(environ, state):
    state.piece = 1 << 15
    session = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    state.log(session, b"line\n" * 400_000)
    process = start(environ, "logs", "@last")
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 141


def in_shell(environ, script, *words):
    """What became of `script`, which runs the program as "$@"."""
    return subprocess.run(
        ["sh", "-c", script, "sh", *NSML, *words],
        cwd=ROOT,
        env={**environ, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-"])
def test_a_closed_stream_leads_nowhere(environ, everything, closed):
    done = in_shell(environ, f'exec "$@" {closed}', "ps", "-a")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pull_that_finds_no_room_leaves_nothing(environ, everything, tmp_path):
    target = tmp_path / "out"
    done = in_shell(environ, 'ulimit -f 0; exec "$@"', "model", "pull", "@last", "best", target)
    assert done.returncode == 1
    assert f"error: cannot write {target}" in done.stderr, done.stderr
    assert "why: File too large" in done.stderr
    assert not target.exists()


def test_a_setting_that_finds_no_room_is_told_with_its_file(environ, home):
    before = sorted(home.iterdir())
    done = in_shell(environ, 'ulimit -f 0; exec "$@"', "config", "set", "output", "wide")
    assert (done.returncode, done.stderr) == (1, f"error: {home}/config.toml: File too large\n")
    assert sorted(home.iterdir()) == before


def test_ctrl_c_leaves_and_the_session_goes_on(environ, state):
    session = state.add("kim/mnist/1")
    state.log(session, b"on\n")
    process = start(environ, "logs", "-f", "@last")
    assert process.stdout.readline() == b"on\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in said
    assert state.sessions[session.id].state == pb.SESSION_STATE_RUNNING


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["-e", "main.py"], b""),
        (
            ["--argv", "--no-code", "--", "true"],
            b"  try: nsml ps -a    # shows whether it was submitted all the same\n",
        ),
    ],
    ids=["checking", "creating"],
)
def test_ctrl_c_before_the_answer_aborts(environ, project, tmp_path, words, hint):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        environ = {**environ, "NSML_SERVER": f"unix:{tmp_path / 's'}"}
        process = start(environ, "run", "-g", "0", *words, cwd=project)
        silent.settimeout(60)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            out, said = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert said == b"\nrun aborted: Interrupted by user\n" + hint


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("flags", [[], ["--stop", "--", "true"]], ids=["shell", "program"])
def test_a_dev_session_that_waits_says_why_and_ends_with_its_command(environ, state, number, flags):
    state.waiting = "needs 1 GPU"
    holder = pb.Holder(session="lee/mnist/4", held=1000)
    state.why["kim/None/1"] = pb.Waiting(reason="needs 1 GPU", short="GPUs", holders=[holder])
    process = start(environ, "dev", "-g", "1", "--no-code", *flags, stdin=subprocess.DEVNULL)
    said = process.stderr.readline() + process.stderr.readline()
    assert b"  held: 1 GPU by lee/mnist/4" in said
    hint = b"  Ctrl-C stops it   why it waits: nsml status --explain kim/None/1\n"
    assert hint in said
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    # Behind what Python may say of a signal that it raised in the end of an object.
    assert said.endswith(b"\nsession kim/None/1 is stopped\n")
    [session] = state.sessions.values()
    assert session.state == pb.SESSION_STATE_STOPPED


@pytest.mark.parametrize("flags", [["--wait"], ["--wait", "--rm", "-y"]])
def test_ctrl_c_without_anybody_to_ask_leaves_the_session(environ, state, flags):
    words = ["run", "-g", "0", *flags, "--argv", "--no-code", "--", "true"]
    process = start(environ, *words, stdin=subprocess.DEVNULL)
    assert process.stdout.readline() == b"Session kim/None/1 started\n"
    while "WatchSessions" not in state.calls:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"session kim/None/1 continues: nsml logs -f kim/None/1\n" in said
    assert not {"StopSession", "RemoveSession"} & {*state.calls}
    assert [one.name for one in state.sessions.values()] == ["kim/None/1"]


@pytest.mark.parametrize("flags", [[], ["--token-stdin"]])
def test_a_token_is_asked_for_at_a_terminal_and_not_shown(environ, server, flags):
    terminal, theirs = os.openpty()
    process = subprocess.Popen(
        [*NSML, "login", server.address, *flags],
        cwd=ROOT,
        env=environ,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    while b"Token: " not in shown:
        shown += os.read(terminal, 1024)
    os.write(terminal, TOKEN.encode() + b"\n")
    with suppress(OSError):  # the other end is closed
        while piece := os.read(terminal, 1024):
            shown += piece
    os.close(terminal)
    assert process.wait(60) == 0
    assert b"Welcome to NSML! You are kim" in shown
    assert TOKEN.encode() not in shown


def test_a_watch_writes_a_line_for_each_change(environ, state):
    session = state.add("kim/mnist/1")
    process = start(environ, "ps", "-w", "-o", "jsonl", "--fields", "name,state")
    assert process.stdout.readline() == (
        b'{"schema_version":1,"name":"kim/mnist/1","state":"RUNNING"}\n'
    )
    state.change(session, state=pb.SESSION_STATE_SUCCEEDED)
    assert b"SUCCEEDED" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_a_watch_writes_a_line_for_each_new_summary(environ, state):
    session = state.add("kim/mnist/1", replicas=[pb.Replica(node="gpu-1")])
    process = start(environ, "ps", "-w", "-o", "jsonl", "--fields", "summary,replicas")
    assert b'"summary":{}' in process.stdout.readline()
    state.summarize(session, step=1, loss=0.5)
    assert b'"summary":{"step":1.0,"loss":0.5}' in process.stdout.readline()
    # What it takes changes all the time, and is told with what else there is to tell.
    state.sessions[session.id].replicas[0].use.cpu_cores = 1.5
    state.summarize(session, step=1, loss=0.5)
    state.summarize(session, step=2, loss=0.5)
    line = process.stdout.readline()
    assert b'"summary":{"step":2.0,"loss":0.5}' in line
    assert b'"cpu_cores":1.5' in line
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


@pytest.mark.parametrize("words", [["ps"], ["nonsense"], []])
def test_nothing_is_printed_by_grpc_itself(environ, words):
    process = start({**environ, "NSML_SERVER": "127.0.0.1:1"}, *words)
    _, said = process.communicate(timeout=60)
    assert b"E0" not in said
    assert b"grpc" not in said.split(b"why:")[0]
