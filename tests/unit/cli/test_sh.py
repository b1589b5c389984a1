"""`nsml sh` against a platform whose sessions have scripted programs."""

import asyncio
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from cli.sessions.byte_streams import ByteInput
from nsml.v1 import sessions_pb2 as pb
from tests.unit.cli.test_process import NSML, ROOT, in_shell, start

SESSION = "kim/mnist/1"
BROKEN = b"error: the connection to the program broke: whether it still runs is unknown\n"
RESET = b"\x1b[?47l\x1b[?1000;1002;1003;1006;2004l\x1b[?25h\x1b[0m\r\n\x1b[J"
LEFT = b"disconnected; the program gets SIGHUP\n"


@pytest.fixture
def programs(state):
    state.add(SESSION)
    return state.programs


def done(environ, *words, **options):
    return subprocess.run(
        [*NSML, *words],
        cwd=ROOT,
        env={**environ, "PATH": os.environ["PATH"]},
        capture_output=True,
        check=False,
        timeout=100,
        **{"stdin": subprocess.DEVNULL, **options},
    )


def until(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# How it ended


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        (["exit", "0"], 0, b""),
        (["exit", "7"], 7, b""),
        (["exit", "255"], 255, b""),
        (["killed", "9"], 137, b""),
        (["lost"], 255, b"error: the session's program has ended, and this one with it\n"),
    ],
)
def test_the_exit_code_is_the_programs(environ, programs, program, code, said):
    result = done(environ, "sh", SESSION, "--", *program)
    assert (result.returncode, result.stdout, result.stderr) == (code, b"", said)


@pytest.mark.parametrize("program", ["lost", "broken"])
def test_a_session_that_was_stopped_is_no_broken_connection(environ, state, programs, program):
    programs.starts = False
    with subprocess.Popen(
        [*NSML, "sh", SESSION, "--", program],
        cwd=ROOT,
        env={**environ, "PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as running:
        until(lambda: programs.started)
        [session] = state.sessions.values()
        end = pb.SessionEnd(message="kim stopped it")
        state.change(session, state=pb.SESSION_STATE_STOPPED, end=end)
        programs.starts = True
        _, said = running.communicate(timeout=100)
    assert (running.returncode, said.decode()) == (
        255,
        f"error: session {SESSION} ■ Stopped: kim stopped it\n",
    )


@pytest.mark.parametrize(
    ("program", "advice"),
    [
        ("no-such", b""),
        ("ls | wc", f"  try: nsml sh {SESSION} -- sh -c 'ls | wc'\n".encode()),
    ],
)
def test_what_only_a_shell_can_start_says_so(environ, programs, program, advice):
    result = done(environ, "sh", SESSION, "--", program)
    assert (result.returncode, result.stdout) == (127, b"")
    assert result.stderr == b"nsml: cannot start it\r\n" + advice


def test_without_input_it_takes_none(environ, programs, tmp_path):
    (tmp_path / "hosts").write_text("0\n1\n")
    with (tmp_path / "hosts").open() as source:
        result = done(environ, "sh", "-n", SESSION, "--", "cat", stdin=source)
        assert os.lseek(source.fileno(), 0, os.SEEK_CUR) == 0
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    assert done(environ, "sh", "-nt", SESSION).returncode == 2


def test_output_and_errors_come_as_bytes_and_apart(environ, programs):
    result = done(environ, "sh", SESSION, "--", "both")
    every = bytes(range(256))
    assert (result.returncode, result.stdout) == (3, every * 3)
    assert result.stderr == every[::-1] * 3


def test_a_broken_connection_is_255_with_one_line_and_never_0(environ, programs):
    for quiet in ([], ["-q"]):
        result = done(environ, *quiet, "sh", SESSION, "--", "broken")
        assert (result.returncode, result.stdout, result.stderr) == (255, b"a part\n", BROKEN)


def test_a_refusal_says_why(nsml, programs):
    programs.refusal = "its program is just beginning"
    result = nsml("sh", SESSION, check=False)
    assert (result.code, result.stdout) == (6, "")
    assert "why: its program is just beginning\n" in result.stderr


def test_where_the_node_does_not_say_whether_it_started_it_is_255(environ, programs):
    """3 would say that it is safe to run it again."""
    programs.answer = b"\xff" * 4
    result = done(environ, "sh", SESSION)
    assert (result.returncode, result.stdout) == (255, b"")
    assert result.stderr == b"error: the node's answer cannot be understood\n"


def test_a_session_that_has_ended_and_one_that_is_not_there(nsml, state):
    state.add(SESSION, pb.SESSION_STATE_SUCCEEDED)
    assert nsml("sh", SESSION, check=False).code == 6
    assert nsml("sh", "kim/mnist/7:1", check=False).code == 5
    told = nsml("sh", "12", "--", "sleep", "5", check=False)
    assert told.code == 5
    assert "sh 5" not in told.stderr, "a word of the program is no session"


def test_a_time_limit_is_kept(environ, programs):
    for limit in ("3s", "30s"):  # on a busy machine it may end before the program has begun
        result = done(environ, "--timeout", limit, "sh", SESSION, "--", "deaf")
        assert result.returncode == 8
        if result.stdout:
            break
    assert result.stdout == b"ready\n"


# What is started, and where


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        ([SESSION], []),
        ([SESSION, "--", "ls", "-la"], ["ls", "-la"]),
        ([SESSION, "ls", "-la", "--rank", "3"], ["ls", "-la", "--rank", "3"]),
        ([SESSION, "-T", "ls", "-h"], ["ls", "-h"]),
        ([SESSION, "--", "-x", "--", "y"], ["-x", "--", "y"]),
        ([SESSION, "env", "--", "x"], ["env", "--", "x"]),
        (["--", SESSION, "ls", "-l"], ["ls", "-l"]),
        ([SESSION, "--", "printf", "caf\u00e9\n", ""], ["printf", "caf\u00e9\n", ""]),
    ],
)
def test_options_end_where_the_program_begins(nsml, programs, words, argv):
    programs.refusal = "no"
    nsml("sh", *words, check=False)
    [start] = programs.started
    assert list(start.argv) == argv
    assert not start.HasField("terminal")
    assert not start.environment


@pytest.mark.parametrize(
    ("words", "rank"),
    [
        ([SESSION], 0),
        ([f"{SESSION}:2"], 2),
        ([SESSION, "--rank", "2"], 2),
        (["--rank", "2", f"{SESSION}:2", "--", "x:7"], 2),
    ],
)
def test_which_replica(nsml, programs, words, rank):
    programs.refusal = "no"
    nsml("sh", *words, check=False)
    [target] = programs.targets
    assert (target.session, target.rank) == (SESSION, rank)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([f"{SESSION}:1", "--rank", "2"], "name two replicas"),
        ([f"{SESSION}:1", "--rank", "0"], "name two replicas"),
        ([f"{SESSION}:99999999999"], "more than there can be"),
        ([SESSION, "--rank", "-1"], "too small"),
        ([SESSION, "-t"], "-t needs a terminal as stdin"),
        ([SESSION, "--nonsense"], "no such option: --nonsense"),
        ([SESSION, "--", "\udcff"], "UTF-8"),
        ([], "SESSION"),
    ],
)
def test_lines_that_are_refused(nsml, programs, words, said):
    result = nsml("sh", *words, check=False)
    assert (result.code, result.stdout) == (2, "")
    assert said in result.stderr
    assert programs.started == []


def test_arguments_that_no_message_has_room_for(nsml, programs):
    result = nsml("sh", SESSION, "--", "x" * (300 << 10), check=False)
    assert (result.code, programs.started) == (1, [])
    assert "the program's arguments are too long" in result.stderr


# Pipes


def test_input_passes_whole_with_its_end(environ, programs):
    sent = bytes(range(256)) * 4096
    result = done(environ, "sh", SESSION, "--", "cat", stdin=None, input=sent)
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout == sent


def test_input_from_a_file_from_nowhere_and_from_a_closed_stream(environ, programs, tmp_path):
    file = tmp_path / "input"
    file.write_bytes(b"~.\n\xff")
    with file.open("rb") as opened:
        result = done(environ, "sh", SESSION, "cat", stdin=opened)
    assert (result.returncode, result.stdout) == (0, b"~.\n\xff")
    for closed in ("</dev/null", "0<&-"):
        nothing = in_shell(environ, f'exec "$@" {closed}', "sh", SESSION, "cat")
        assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "")


@pytest.mark.parametrize("closed", ["1>&-", "2>&-"])
def test_a_closed_stream_leads_nowhere(environ, programs, closed):
    result = in_shell(environ, f'exec "$@" {closed} 2>/dev/null >/dev/null', "sh", SESSION, "both")
    assert result.returncode == 3


def test_a_reader_who_leaves_ends_it_quietly(environ, programs):
    process = start(environ, "sh", SESSION, "--", "endless", stdin=subprocess.DEVNULL)
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 141
    until(lambda: programs.left == 1)


def test_a_full_disk_is_said(environ, programs):
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        process = subprocess.Popen(
            [*NSML, "sh", SESSION, "--", "endless"],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
        )
    _, said = process.communicate(timeout=60)
    assert process.returncode == 255
    assert said == b"error: cannot write the output: No space left on device\n"


def test_a_slow_reader_is_waited_for_and_signals_are_taken_meanwhile(environ, programs):
    process = start(environ, "sh", SESSION, "--", "endless", stdin=subprocess.DEVNULL)
    assert process.stdout.read(1) == b"l"
    written, since = -1, time.monotonic()
    while time.monotonic() < since + 1:  # until nothing more is taken
        if programs.written != written:
            written, since = programs.written, time.monotonic()
        assert written < 64 << 20
        time.sleep(0.01)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        process.send_signal(number)
    assert process.wait(60) == 255
    assert process.stderr.read() == LEFT
    process.stdout.close()


def test_signals_are_passed_on_and_the_program_decides(environ, programs):
    process = start(environ, "sh", SESSION, "--", "signals", "15", stdin=subprocess.DEVNULL)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"signal 2\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60) == (b"signal 15\n", b"")
    assert process.returncode == 128 + 15


def test_where_they_are_not_taken_the_third_leaves(environ, programs):
    """Also where a signal waits behind input that the program does not take."""
    process = start(environ, "sh", SESSION, "--", "deaf", stdin=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    os.set_blocking(process.stdin.fileno(), False)
    with suppress(BlockingIOError):
        while True:
            os.write(process.stdin.fileno(), bytes(1 << 16))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        assert process.poll() is None
        process.send_signal(number)
    assert process.wait(60) == 255
    assert process.stderr.read() == LEFT
    until(lambda: programs.left == 1)


def test_what_nohup_ignores_stays_ignored(environ, programs):
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *NSML, "sh", SESSION, "signals", "15"],
        cwd=ROOT,
        env={**environ, "PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == b"signal 15\n"
    assert process.returncode == 128 + 15


async def test_nothing_is_taken_from_the_input_after_its_close():
    """What is typed once the program has ended is for the user's shell."""
    theirs, ours = os.pipe()
    stream = ByteInput(theirs)
    os.write(ours, b"for it")
    assert await stream.read() == b"for it"
    reading = asyncio.create_task(stream.read())
    await asyncio.sleep(0)
    stream.close()
    os.write(ours, b"for the shell")
    assert await reading == await stream.read() == b""
    assert os.read(theirs, 100) == b"for the shell"
    os.close(theirs)
    os.close(ours)


# A terminal


class Terminal:
    """One of 24 lines and 80 columns, with nsml in it."""

    def __init__(self, environ, *words):
        self.master, self.theirs = pty.openpty()
        self.resize(24, 80)
        self.before = termios.tcgetattr(self.theirs)
        self.shown = b""
        self.process = subprocess.Popen(
            # Not by preexec_fn: that forks a process with threads of gRPC.
            ["setsid", "--ctty", *NSML, *words],
            cwd=ROOT,
            env={**environ, "PATH": os.environ["PATH"]},
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
        )

    def resize(self, rows, columns):
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, data):
        os.write(self.master, data)

    def until(self, wanted):
        while wanted not in self.shown:
            self.shown += os.read(self.master, 1 << 16)
        shown, _, self.shown = self.shown.partition(wanted)
        return shown

    def end(self):
        """The exit code, and the rest that it shows."""
        code = self.process.wait(60)
        assert termios.tcgetattr(self.theirs) == self.before
        os.set_blocking(self.master, False)
        with suppress(BlockingIOError):
            while data := os.read(self.master, 1 << 16):
                self.shown += data
        return code, self.shown

    def close(self):
        for one in (self.master, self.theirs):
            with suppress(OSError):
                os.close(one)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def terminal(environ, programs):
    @contextmanager
    def opened(*words):
        made = Terminal({**environ, "LANG": "C.UTF-8"}, "sh", *words)
        try:
            yield made
        finally:
            made.close()

    return opened


def test_a_shell_in_a_terminal(terminal, programs):
    with terminal(SESSION) as it:
        it.until(b"24 x 80\r\n")
        [started] = programs.started
        assert not started.argv
        assert started.environment == {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
        it.type(b"ls\r\x03\x1a")
        it.until(b"ls\r\x03\x1a")  # control-C and control-Z are the program's
        it.resize(30, 100)
        it.until(b"30 x 100\r\n")
        it.resize(0, 0)  # as of one that does not know it
        it.until(b"24 x 80\r\n")
        it.type(b"\r")
        assert it.until(b"\r") == b""  # the program's echo comes any time, also before the list
        it.type(b"~")
        it.type(b"?")
        it.until(b"~~  type ~\r\n")
        it.type(b"\x04")
        code, shown = it.end()
        assert code == 0
        assert shown == b"~?  show this list\r\n"


def test_a_paste_of_64_kib_and_bytes_that_are_no_text_pass(terminal):
    with terminal(SESSION) as it:
        it.until(b"24 x 80\r\n")
        pasted = bytes(one for one in range(256) if one not in b"\x04~") * 259
        assert len(pasted) > 64 << 10
        typing = threading.Thread(target=it.type, args=(pasted + b"END",))
        typing.start()
        assert it.until(b"END") == pasted
        typing.join()
        it.type(b"\x04")
        assert it.end()[0] == 0


@pytest.mark.parametrize("how", [b"~.", signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("program", [[], ["--", "deaf"]])
def test_leaving_restores_the_terminal(terminal, programs, how, program):
    with terminal(SESSION, *program) as it:
        it.until(b"ready\n" if program else b"24 x 80\r\n")
        if isinstance(how, bytes):
            it.type(how)
        else:
            it.process.send_signal(how)
        code, shown = it.end()
        assert code == 255
        assert shown.endswith(RESET + LEFT.replace(b"\n", b"\r\n")), shown
        until(lambda: programs.left == 1)


def test_a_broken_connection_restores_the_terminal(terminal):
    with terminal(SESSION, "--", "broken") as it:
        code, shown = it.end()
        assert code == 255
        assert BROKEN.strip() in shown
        assert b"Traceback" not in shown


def test_a_terminal_that_has_stopped_to_show_is_left_with_a_signal(terminal, programs):
    with terminal(SESSION, "--", "endless") as it:
        it.until(b"line\n")
        written, since = -1, time.monotonic()
        while time.monotonic() < since + 1:  # until nothing more is taken
            if programs.written != written:
                written, since = programs.written, time.monotonic()
            time.sleep(0.01)
        it.type(b"~.")
        until(lambda: programs.left == 1)
        it.until(LEFT.strip())
        assert it.end()[0] == 255


def test_a_terminal_that_goes_away_ends_it(terminal, programs):
    with terminal(SESSION) as it:
        it.until(b"24 x 80\r\n")
        os.close(it.theirs)
        os.close(it.master)
        assert it.process.wait(60) == 255
        until(lambda: programs.left == 1)


def test_pipes_at_a_terminal_where_they_are_asked_for(terminal, programs):
    with terminal("-T", SESSION, "--", "exit", "4") as it:
        assert it.end() == (4, b"")
    [started] = programs.started
    assert not started.HasField("terminal")
    assert not started.environment
