"""`nsml sh`: shells and programs in running sessions, on a real platform, also where something dies in the middle."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.platform import PROGRAMS
from nsml.client import contexts
from nsml.client.connect import connect
from nsml.client.programs import Output
from tests.e2e.platforms import LEVELS, end_all, platform_of, user_of
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsml.client.calls import Client

WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(3600)\n"
BROKEN = 255
AT_ONCE = 100
MEGABYTE = 1 << 20
DIRECTLY: tuple[str, ...] = ()
BY_CONTROL_PLANE = ("unshare", *(["--map-root-user"] if os.geteuid() else []), "--net")
"""Runs a client in a network of its own, where no socket of an agent is: only the control plane's has a path."""


@pytest.fixture(scope="module", params=LEVELS)
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    with platform_of(request.param) as running:
        yield running
        end_all(running, request.param)


of_processes = pytest.mark.parametrize("platform", ["processes"], indirect=True)
"""What is the same wherever the program runs, or takes long."""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_program(tmp_path_factory.mktemp("waits") / "code", WAITS)


@pytest.fixture(scope="module")
def session(platform: Platform, code: Path) -> str:
    return begun(platform, code, "-g", "0")


def begun(platform: Platform, code: Path, *options: str) -> str:
    """The name of a session that runs."""
    # what a session may use is small: several share the machine
    small = ("-c", "0.1", "--memory", "1G", "--grace", "1s", *options)
    name = platform.nsml("run", *small, "-o", "name", cwd=code).stdout.strip()
    wait_for(lambda: "ready" in platform.nsml("logs", name).stdout, what=f"{name} runs")
    return name


def unique() -> str:
    """A number of seconds that nobody else sleeps."""
    return f"4321.{random.randrange(10**9):09}"


def pids(*argv: str) -> list[int]:
    """Processes of this machine with just this command line, which excludes its client's."""
    wanted = b"".join(word.encode() + b"\0" for word in argv)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes() == wanted:
                    found.append(int(entry.name))
            except OSError:  # it has just ended
                continue
    return found


def in_the_foreground(*argv: str) -> bool:
    """Whether control keys reach it: a shell says what it goes on with before it does so."""
    for pid in pids(*argv):
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        state, group, foreground = stat[0], stat[2], stat[5]
        if state != "T" and group == foreground:
            return True
    return False


@contextmanager
def client(
    platform: Platform, *arguments: str, command: tuple[str, ...] = ("sh",), **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """`nsml COMMAND ARGUMENTS` with pipes; gone at the end."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        [str(PROGRAMS / "nsml"), *command, *arguments],
        env=platform.environment,
        bufsize=0,
        **{**streams, **options},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(platform: Platform, *arguments: str, given: bytes = b"") -> tuple[int, bytes, bytes]:
    """Exit code, output and errors of `nsml sh ARGUMENTS`."""
    with client(platform, *arguments) as process:
        out, err = process.communicate(given, timeout=120)
        return process.returncode, out, err


# -- streams --------------------------------------------------------------------------------------


@pytest.mark.every_time
def test_the_streams_stay_apart_and_the_exit_code_is_the_programs(
    platform: Platform, session: str
) -> None:
    given = bytes(range(256)) * 100
    script = "cat; echo err >&2; exit 7"
    assert said(platform, session, "--", "sh", "-c", script, given=given) == (7, given, b"err\n")
    assert said(platform, session, "--", "sh", "-c", "kill -TERM $$") == (143, b"", b"")
    code, out, err = said(platform, session, "--", "no-such-program")
    assert code != 0
    assert b"no-such-program" in out + err


@of_processes
def test_each_replica_of_a_gang_has_its_own(platform: Platform, code: Path) -> None:
    name = begun(platform, code, "-g", "1", "--nodes", "2")
    wait_for(
        lambda: "ready" in platform.nsml("logs", name, "--rank", "1").stdout, what="rank 1 runs"
    )
    script = "echo $NSML_RANK"
    for rank in ("0", "1"):
        assert said(platform, f"{name}:{rank}", "--", "sh", "-c", script)[1] == f"{rank}\n".encode()
        assert said(platform, name, "--rank", rank, "--", "printenv", "NSML_RANK")[0] == 0
    code_, out, err = said(platform, f"{name}:9", "--", "true")
    assert (code_, out) == (2, b"")
    assert b"has no replica 9" in err
    assert b"0 to 1" in err
    platform.nsml("stop", "-y", name)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_reader_that_stops_holds_the_program_back_and_loses_nothing(
    platform: Platform, session: str
) -> None:
    last = 4_000_000 + random.randrange(1000)
    expected = b"".join(b"%d\n" % number for number in range(1, last + 1))
    programs = [platform.pid(program) for program in ("agent", "controlplane")]
    before = [resident_bytes(pid) for pid in programs]
    command = ["seq", "1", str(last)]
    with client(platform, session, "--", *command) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        [writer] = pids(*command)
        written = _when_it_stands_still(writer)
        assert written < len(expected) // 2
        grown = [resident_bytes(pid) - had for pid, had in zip(programs, before, strict=True)]
        assert max(grown) < len(expected) // 2, grown
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, b"")
        assert hashlib.sha256(first + out).digest() == hashlib.sha256(expected).digest()


def _when_it_stands_still(pid: int, for_s: float = 2.0) -> int:
    """How much a program has written once it writes no more."""
    seen, since = -1, time.monotonic()

    def stands() -> bool:
        nonlocal seen, since
        found = re.search(r"wchar: (\d+)", Path(f"/proc/{pid}/io").read_text())
        assert found
        if (now := int(found[1])) != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since > for_s

    wait_for(stands, what=f"process {pid} is held back")
    return seen


def test_twenty_megabytes_both_ways_at_once(platform: Platform, session: str) -> None:
    given = os.urandom(20 * MEGABYTE)
    code, out, err = said(platform, session, "--", "cat", given=given)
    assert (code, err) == (0, b"")
    assert hashlib.sha256(out).digest() == hashlib.sha256(given).digest()


def test_a_reader_that_leaves_ends_the_program(platform: Platform, session: str) -> None:
    word = unique()
    with client(platform, session, "--", "yes", word) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == word.encode() + b"\n"
        process.stdout.close()
        assert process.wait(60) == 141
    wait_for(lambda: not pids("yes", word), what="the program is gone")


# -- what dies in the middle ----------------------------------------------------------------------


class Endless:
    """A client of `yes WORD`, whose output is read and looked at as it comes."""

    def __init__(self, process: subprocess.Popen[bytes], word: str, taken: bytes = b"") -> None:
        self.process = process
        self.command = ("yes", word)
        self.came = len(taken)
        self.is_whole = True
        line = word.encode() + b"\n"
        self._pattern = line * (2 * MEGABYTE // len(line))
        self._line = len(line)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while data := os.read(self.process.stdout.fileno(), MEGABYTE):
            at = self.came % self._line
            self.is_whole &= data == self._pattern[at : at + len(data)]
            self.came += len(data)

    def end(self) -> int:
        """Its exit code, once it has ended and all was read."""
        code = self.process.wait(120)
        self._reader.join(60)
        assert not self._reader.is_alive()
        assert self.is_whole, "bytes are missing in the middle"
        return code


def is_direct(platform: Platform) -> bool:
    """Whether anybody is connected to the platform's agent directly."""
    of_agent = set()
    for one in Path(f"/proc/{platform.pid('agent')}/fd").iterdir():
        with suppress(OSError):  # it has just been closed
            of_agent.add(str(one.readlink()))
    connected = (line.split() for line in Path("/proc/net/unix").read_text().splitlines())
    return any(
        words[-1].startswith("@nsml-agent-")
        and words[5] == "03"
        and f"socket:[{words[6]}]" in of_agent
        for words in connected
    )


@contextmanager
def endless(platform: Platform, session: str, way: tuple[str, ...] = DIRECTLY) -> Iterator[Endless]:
    """In the middle: some bytes, of which a seed says how many, have come.

    On a busy machine a client may find the agent too slow, and take the way of the control plane.
    """
    seed = random.randrange(1 << 32)
    print("seed", seed)
    some = random.Random(seed).randrange(4 * MEGABYTE)

    def begun() -> Endless | None:
        word = unique()
        process = subprocess.Popen(
            [*way, str(PROGRAMS / "nsml"), "sh", session, "--", "yes", word],
            env=platform.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        with ExitStack() as held:
            held.callback(process.wait)
            held.callback(process.kill)
            made = Endless(process, word)
            wait_for(lambda: made.came > some, what="its output comes")
            if is_direct(platform) is (way is DIRECTLY):
                held.pop_all()
                return made
        return None

    made = wait_for(begun, what="one takes that way")
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
    wait_for(lambda: not pids(*made.command), what="the program is gone")


def still_works(platform: Platform, session: str) -> None:
    """A session in which something was broken off goes on."""

    def answers() -> bool:
        return said(platform, session, "--", "echo", "on") == (0, b"on\n", b"")

    wait_for(answers, what="programs can be started again")


def test_a_killed_client_leaves_nothing(platform: Platform, session: str) -> None:
    with endless(platform, session) as running:
        running.process.kill()
        assert running.end() == -signal.SIGKILL
    still_works(platform, session)


def test_a_killed_client_that_had_stopped_reading_leaves_nothing(
    platform: Platform, session: str
) -> None:
    command = ("yes", unique())
    with client(platform, session, "--", *command) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        [writer] = pids(*command)
        _when_it_stands_still(writer)
    wait_for(lambda: not pids(*command), what="the program is gone")
    still_works(platform, session)


def test_a_killed_client_whose_program_reads_nothing_leaves_nothing(
    platform: Platform, session: str
) -> None:
    command = ("sleep", unique())
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        with client(platform, session, "--", *command, stdin=endless.stdout) as killed:
            wait_for(lambda: pids(*command), what="the program runs")
            _when_it_stands_still(endless.pid)
            killed.kill()
        endless.kill()
    wait_for(lambda: not pids(*command), what="the program is gone")
    still_works(platform, session)


def test_a_reader_that_stops_keeps_nobody_from_anything_else(
    platform: Platform, code: Path
) -> None:
    name = begun(platform, code, "-g", "0")
    commands = [("yes", unique()) for _ in range(2)]
    with (
        client(platform, name, "--", *commands[0]) as ended,
        client(platform, name, "--", *commands[1]) as running,
    ):
        for one, command in zip((ended, running), commands, strict=True):
            assert one.stdout is not None
            assert one.stdout.read(1)
            [writer] = pids(*command)
            _when_it_stands_still(writer)
        os.kill(pids(*commands[0])[0], signal.SIGKILL)
        still_works(platform, name)
        platform.nsml("stop", "-y", name)
        wait_for(lambda: state_of(platform, name) == "STOPPED", what="it is over")
        out, _ = ended.communicate(timeout=60)
        line = commands[0][1].encode() + b"\n"
        assert (line * (len(out) // len(line) + 2))[1 : 1 + len(out)] == out
        running.communicate(timeout=60)
        assert ended.returncode in {128 + signal.SIGKILL, BROKEN}
        assert running.returncode not in {None, 0}


@pytest.mark.parametrize("program", ["agent", "controlplane"])
@of_processes
def test_a_connection_through_the_control_plane_that_breaks_is_no_good_end(
    platform: Platform, session: str, program: str
) -> None:
    """Directly, and by the relay: test_inside_kills.py."""
    with endless(platform, session, BY_CONTROL_PLANE) as running:
        platform.kill(program)
        assert running.end() == BROKEN
        platform.up()
    still_works(platform, session)


def test_a_program_that_is_killed_says_so(platform: Platform, session: str) -> None:
    with endless(platform, session) as running:
        [program] = pids(*running.command)
        os.kill(program, signal.SIGKILL)
        assert running.end() == 128 + signal.SIGKILL


def allocated(platform: Platform) -> float:
    return float(sum(node["allocated"]["gpus"] for node in platform.json("node", "ls")["items"]))


def test_with_its_session_everything_ends(platform: Platform, code: Path) -> None:
    name = begun(platform, code, "-g", "1")
    assert allocated(platform) == 1
    left = ("sleep", unique())
    script = f"nohup setsid {' '.join(left)} >/dev/null 2>&1 & echo begun"
    assert said(platform, name, "--", "sh", "-c", script) == (0, b"begun\n", b"")
    with endless(platform, name) as running:
        assert len(pids(*left)) == 1, "the shell that began it has ended"
        platform.nsml("stop", "-y", name)
        assert running.end() != 0
    wait_for(lambda: state_of(platform, name) == "STOPPED", what="it is over")
    assert not pids(*left)
    wait_for(lambda: allocated(platform) == 0, what="its devices are free")


def state_of(platform: Platform, name: str) -> str:
    states = {one["name"]: one["state"] for one in platform.json("ps", "-a")["items"]}
    return str(states[name])


# -- many, and who may ----------------------------------------------------------------------------


def test_who_is_inside_is_shown_and_who_looks_is_not(platform: Platform, session: str) -> None:
    with endless(platform, session) as running:
        me = session.partition("/")[0]
        found = {(one["user"], one["service"]) for one in platform.json("top", session)["visitors"]}
        assert found == {(me, "agent.program")}
        line = f"connected: {me}, a shell or program, for"
        assert line in platform.nsml("top", session).stderr
        running.process.kill()
        running.end()
    wait_for(lambda: not platform.json("top", session)["visitors"], what="nobody is inside")


@of_processes
async def test_a_hundred_at_once(platform: Platform, session: str) -> None:
    environment = platform.environment
    all_run = asyncio.Barrier(AT_ONCE)

    async def one(client: Client, number: int) -> tuple[int | None, bytes]:
        script = f"read word; echo $word {number}"
        async with client.sessions.open_program(session, ["sh", "-c", script]) as program:
            await all_run.wait()
            await program.write(b"from\n")
            out = [data async for kind, data in program.output() if kind is Output.STANDARD]
            return program.exit_code, b"".join(out)

    context = contexts.choose(contexts.load(environment), environment)
    async with connect(context) as client, asyncio.timeout(240):
        done = await asyncio.gather(*(one(client, number) for number in range(AT_ONCE)))
    assert done == [(0, b"from %d\n" % number) for number in range(AT_ONCE)]


@of_processes
def test_who_may_and_when(platform: Platform, session: str, code: Path, tmp_path: Path) -> None:
    def refused(reference: str, who: dict[str, str] | None = None) -> tuple[int, str]:
        done = platform.nsml("sh", reference, "--", "true", check=False, environment=who)
        assert done.stdout == ""
        return done.returncode, done.stderr

    owner = user_of(platform, "kim", tmp_path, "--team", "vision")
    mate = user_of(platform, "lee", tmp_path, "--team", "vision")
    stranger = user_of(platform, "pat", tmp_path)
    options = ("-g", "0", "-c", "0.1", "--memory", "1G", "--grace", "1s", "--team", "-o", "name")
    shared = platform.nsml("run", *options, cwd=code, environment=owner).stdout.strip()
    wait_for(lambda: "ready" in platform.nsml("logs", shared).stdout, what="it runs")
    words = ("--", "echo", "in")
    for who in (owner, None):
        assert platform.nsml("sh", shared, *words, environment=who).stdout == "in\n"

    hidden = platform.nsml("logs", shared, check=False, environment=stranger)
    assert refused(shared, stranger) == (hidden.returncode, hidden.stderr)
    assert hidden.returncode == 5
    assert "ready" in platform.nsml("logs", shared, environment=mate).stdout
    code_, why = refused(shared, mate)
    assert code_ == 4
    assert f"session {shared} is kim's" in why

    platform.nsml("stop", "-y", shared)
    wait_for(lambda: state_of(platform, shared) == "STOPPED", what="it is over")
    assert refused(shared) == (6, f"error: session {shared} has ended\n  try: nsml logs {shared}\n")
    many = ("-g", "1", "-c", "0.1", "--memory", "1G", "--nodes", "2")
    first = begun(platform, code, *many)
    queued = platform.nsml("run", *many, "-o", "name", cwd=code).stdout.strip()
    code_, why = refused(queued)
    assert code_ == 6
    assert "does not run" in why
    assert "queued" in why
    platform.nsml("stop", "-y", queued)
    platform.nsml("stop", "-y", first)


# -- a terminal -----------------------------------------------------------------------------------


class Terminal:
    """This side of a terminal in which `nsml COMMAND ARGUMENTS` runs."""

    def __init__(
        self, platform: Platform, *arguments: str, command: tuple[str, ...] = ("sh",)
    ) -> None:
        self._ours, self._theirs = pty.openpty()
        self.resize(31, 117)
        self.settings = termios.tcgetattr(self._theirs)
        self.process = subprocess.Popen(
            # a session of its own takes the first terminal that it opens as its own
            ["setsid", "-c", "-w", str(PROGRAMS / "nsml"), *command, *arguments],
            env={**platform.environment, "TERM": "dumb"},
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
        )
        self._shown = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def expect(self, pattern: bytes) -> None:
        """Wait until it is shown, after what was expected before."""
        deadline = time.monotonic() + 60
        while not (found := re.search(pattern, self._shown)):
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self._ours], [], [], left)[0]
            assert ready, f"{pattern!r} is not shown: {self._shown!r}"
            self._shown += os.read(self._ours, MEGABYTE)
        self._shown = self._shown[found.end() :]

    def settings_now(self) -> object:
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminal(platform: Platform, session: str) -> Iterator[Terminal]:
    made = Terminal(platform, session)
    try:
        yield made
    finally:
        made.close()


PROMPT = rb"[$#] $"


def test_a_shell_in_a_terminal(terminal: Terminal) -> None:
    waits, background = unique(), unique()
    terminal.expect(PROMPT)
    terminal.type("stty size\r")
    terminal.expect(rb"\n31 117\r\n")
    terminal.expect(PROMPT)
    terminal.resize(40, 100)
    terminal.type("until [ \"$(stty size)\" = '40 100' ]; do sleep 0.05; done; echo re''sized\r")
    terminal.expect(rb"resized\r\n")

    terminal.expect(PROMPT)
    terminal.type(f"sleep {background} &\r")
    terminal.expect(rb"\[1\] \d+")
    terminal.expect(PROMPT)
    terminal.type(f"sleep {waits}\r")
    wait_for(lambda: in_the_foreground("sleep", waits), what="it runs")
    terminal.type("\x1a")
    terminal.expect(rb"Stopped")
    terminal.expect(PROMPT)
    terminal.type("fg\r")
    wait_for(lambda: in_the_foreground("sleep", waits), what="it goes on")
    terminal.type("\x03")
    terminal.expect(PROMPT)
    terminal.type("echo co''de $?\r")
    terminal.expect(rb"\ncode 130\r\n")
    assert not pids("sleep", waits)
    terminal.expect(PROMPT)
    terminal.type("kill %1\r")
    wait_for(lambda: not pids("sleep", background), what="the job in the background ends")
    terminal.type("(exit 5)\r")
    terminal.expect(rb"exit 5\)\r\n")
    terminal.expect(PROMPT)
    terminal.type("\x04")
    assert terminal.process.wait(60) == 5
    assert terminal.settings_now() == terminal.settings


def test_a_terminal_is_left_by_what_is_typed(terminal: Terminal) -> None:
    waits = unique()
    terminal.expect(PROMPT)
    terminal.type(f"sleep {waits}\r")
    wait_for(lambda: pids("sleep", waits), what="it runs")
    terminal.type("~.")
    assert terminal.process.wait(60) == BROKEN
    assert terminal.settings_now() == terminal.settings
    wait_for(lambda: not pids("sleep", waits), what="the program is gone")
