"""ssh into running sessions: Debian's OpenSSH and rsync on a real platform, also where something dies in the middle."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pty
import re
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.platform import PROGRAMS
from cli.local.ports import Held
from tests.e2e.platforms import LEVELS, end_all, platform_of, user_of
from tests.e2e.programs import wait_for, write_program
from tests.e2e.test_sh import begun, in_the_foreground, pids, unique
from tests.support.living_folders import files_below

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.in_process import Platform

WAITS = """
import http.server, os, sys, time
print("ready", flush=True)
time.sleep(3600)
"""
SERVES = "python3 -m http.server --bind 127.0.0.1 {port}"
BROKEN = 255
MEGABYTE = 1 << 20
NAMES = ["plain", "two words", "line\nbreak", "-x", "*", "'quoted\"", "semi;colon", "umlaut\u00e4"]

pytestmark = pytest.mark.skipif(
    shutil.which("ssh") is None and not os.environ.get("NSML_REQUIRE_SSH"),
    reason="there is no OpenSSH client (openssh-client)",
)


@pytest.fixture(scope="module", params=LEVELS)
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    with platform_of(request.param) as running:
        yield running
        end_all(running, request.param)


of_processes = pytest.mark.parametrize("platform", ["processes"], indirect=True)
"""What is the same wherever the program runs."""


@pytest.fixture
def level(request: pytest.FixtureRequest) -> str:
    """What programs of the session run in."""
    return str(request.node.callspec.params["platform"])


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_program(tmp_path_factory.mktemp("waits") / "code", WAITS)


@pytest.fixture(scope="module")
def session(platform: Platform, code: Path) -> str:
    return begun(platform, code, "-g", "0")


@pytest.fixture(scope="module")
def config(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `nsml ssh-config` prints, in a file."""
    file = tmp_path_factory.mktemp("ssh") / "config"
    file.write_text(platform.nsml("ssh-config").stdout)
    return file


@pytest.fixture(scope="module")
def host(platform: Platform, session: str) -> str:
    return f"{platform.nsml('getid', session).stdout.strip()}.nsml"


class Ssh:
    """Programs that use ssh, with the configuration that nsml prints."""

    def __init__(self, platform: Platform, config: Path) -> None:
        self.environment = platform.environment
        self.config = config

    def run(
        self, program: str, *words: str, given: bytes = b"", **options: Any
    ) -> tuple[int, bytes, bytes]:
        """Exit code, output and errors of a program of OpenSSH."""
        done = subprocess.run(
            [program, "-F", str(self.config), *words],
            input=given,
            capture_output=True,
            env=self.environment,
            check=False,
            timeout=180,
            **options,
        )
        return done.returncode, done.stdout, done.stderr

    @contextmanager
    def open(self, *words: str, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
        """ssh with pipes; gone at the end."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            ["ssh", "-F", str(self.config), *words],
            env=self.environment,
            bufsize=0,
            **{**pipes, **streams},
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def ssh(platform: Platform, config: Path) -> Ssh:
    return Ssh(platform, config)


# -- programs -------------------------------------------------------------------------------------


@pytest.mark.every_time
def test_streams_stay_apart_and_the_exit_code_is_the_programs(
    ssh: Ssh, host: str, level: str
) -> None:
    given = bytes(range(256)) * 100
    assert ssh.run("ssh", host, "cat; echo err >&2; exit 7", given=given) == (7, given, b"err\n")
    assert ssh.run("ssh", host, "true") == (0, b"", b"")
    assert ssh.run("ssh", host, "exit 143")[0] == 143
    # as sshd has it; a container's engine does not tell it from that code
    killed = ssh.run("ssh", host, "kill -TERM $$")[0]
    assert killed == (143 if level == "containers" else BROKEN)
    assert ssh.run("ssh", host, "no-such-program")[0] == 127
    assert ssh.run("ssh", "-T", host, given=b"echo from a shell; exit 3\n") == (
        3,
        b"from a shell\n",
        b"",
    )


@of_processes
def test_nsml_ssh_is_the_same(platform: Platform, session: str) -> None:
    nsml = str(PROGRAMS / "nsml")
    done = subprocess.run(
        [nsml, "ssh", f"{session}:0", "--", "echo $NSML_SESSION_NAME; exit 4"],
        capture_output=True,
        env=platform.environment,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (4, f"{session}\n".encode()), done.stderr
    missing = platform.nsml("ssh", "kim/none/9", check=False)
    assert (missing.returncode, missing.stdout) == (5, "")


def test_fifty_megabytes_both_ways_at_once(ssh: Ssh, host: str) -> None:
    given = os.urandom(50 * MEGABYTE)
    code, out, err = ssh.run("ssh", host, "cat", given=given)
    assert (code, err) == (0, b"")
    assert hashlib.sha256(out).digest() == hashlib.sha256(given).digest()


def test_output_right_before_the_end_is_whole(ssh: Ssh, host: str) -> None:
    last = 400_000
    expected = b"".join(b"%d\n" % number for number in range(1, last + 1))
    with ssh.open(host, f"seq 1 {last}; exit 9") as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        time.sleep(3)  # long after the program would have ended
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (9, b"")
    assert first + out == expected


@of_processes
def test_what_is_left_in_the_background_does_not_hold_the_client(ssh: Ssh, host: str) -> None:
    word = unique()
    started = time.monotonic()
    assert ssh.run("ssh", host, f"sleep {word} & echo done") == (0, b"done\n", b"")
    assert time.monotonic() - started < 60
    assert pids("sleep", word)
    ssh.run("ssh", host, f"kill $(pgrep -f 'sleep {word}')")


def test_a_terminal_has_its_size_and_follows_it(ssh: Ssh, host: str) -> None:
    ours, theirs = pty.openpty()
    resize(ours, 31, 101)
    with ssh.open("-tt", host, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.write(ours, b"stty size; echo $TERM; tty | cut -c1-8\n")
        seen = read_until(ours, rb"31 101")
        resize(ours, 17, 55)
        process.send_signal(signal.SIGWINCH)
        asks = b"until [ \"$(stty size)\" = '17 55' ]; do sleep 0.1; done; echo followed\n"
        os.write(ours, asks)
        seen = read_until(ours, rb"[\r\n]followed")
        word = unique()
        os.write(ours, f"sleep {word}\n".encode())
        wait_for(lambda: in_the_foreground("sleep", word), what="it sleeps")
        os.write(ours, b"\x03")
        os.write(ours, b"exit 6\n")
        assert process.wait(60) == 6, seen
    os.close(theirs)
    os.close(ours)


def resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read_until(terminal: int, pattern: bytes, within_s: float = 60) -> bytes:
    seen = b""
    give_up_at = time.monotonic() + within_s
    while not re.search(pattern, seen):
        ready, _, _ = select.select([terminal], [], [], max(give_up_at - time.monotonic(), 0))
        assert ready, seen
        seen += os.read(terminal, 65536)
    return seen


# -- files ----------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(os.urandom(1000 + number))
    (folder / "script").write_text("#!/bin/sh\n")
    (folder / "script").chmod(0o755)
    (folder / "link").symlink_to("plain")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


@pytest.mark.parametrize("protocol", [[], ["-O"]], ids=["sftp", "scp"])
def test_scp_takes_and_brings_any_name(
    ssh: Ssh, host: str, files: Path, tmp_path: Path, protocol: list[str]
) -> None:
    where = f"/tmp/scp{len(protocol)}"
    if protocol:
        (files / "line\nbreak").unlink()  # that protocol itself has lines
    assert ssh.run("scp", *protocol, "-qrp", str(files), f"{host}:{where}") == (0, b"", b"")
    assert ssh.run("scp", *protocol, "-qrp", f"{host}:{where}", str(tmp_path / "back"))[0] == 0
    assert contents(tmp_path / "back") == contents(files)
    assert (tmp_path / "back" / "script").stat().st_mode & 0o777 == 0o755


def test_sftp_and_rsync_bring_what_they_took(
    ssh: Ssh, host: str, files: Path, tmp_path: Path
) -> None:
    batch = "\n".join(["mkdir /tmp/s", f"put {files}/plain /tmp/s/one", "ls -l /tmp/s", "bye"])
    code, out, err = ssh.run("sftp", "-q", "-b", "-", host, given=batch.encode())
    assert code == 0, err
    assert b"one" in out
    assert ssh.run("ssh", host, "cat /tmp/s/one")[1] == (files / "plain").read_bytes()
    assert ssh.run("sftp", "-q", "-b", "-", host, given=b"get /no/such /dev/null\n")[0] == 1

    there = rsync_of(ssh, host)
    shell = f"ssh -F {shlex.quote(str(ssh.config))}"
    for source, target in ((f"{files}/", f"{host}:/tmp/r/"), (f"{host}:/tmp/r/", f"{tmp_path}/r/")):
        done = subprocess.run(
            ["rsync", "-a", "-e", shell, "--rsync-path", there, source, target],
            env=ssh.environment,
            capture_output=True,
            check=False,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, b"")
    assert contents(tmp_path / "r") == contents(files)


def rsync_of(ssh: Ssh, host: str) -> str:
    """The session's rsync; where its image has none, this machine's, with its libraries."""
    if ssh.run("ssh", host, "command -v rsync")[0] == 0:
        return "rsync"
    here = shutil.which("rsync")
    if here is None:
        assert not os.environ.get("NSML_REQUIRE_SSH"), "rsync is asked for"
        pytest.skip("there is no rsync")
    needed = subprocess.run(["ldd", here], capture_output=True, text=True, check=True).stdout
    libraries = [one for one in re.findall(r"=> (/\S+)", needed) if "/libc.so" not in one]
    assert ssh.run("ssh", host, "mkdir /tmp/lib")[0] == 0
    assert ssh.run("scp", "-q", here, *libraries, f"{host}:/tmp/lib/")[0] == 0
    return "LD_LIBRARY_PATH=/tmp/lib /tmp/lib/rsync"


# -- ports ----------------------------------------------------------------------------------------


def fetched(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        found = b""
        while data := connection.recv(65536):
            found += data
        return found


def test_a_port_of_the_session_is_forwarded(ssh: Ssh, host: str) -> None:
    with Held() as held:
        here, there = held.free(), held.free()
        serve = f"echo hello > /tmp/index.html; cd /tmp; {SERVES.format(port=there)}"
        forward = f"127.0.0.1:{here}:localhost:{there}"
        with ssh.open("-L", forward, host, serve):

            def answers() -> bytes:
                with suppress(OSError):
                    return fetched(here)
                return b""

            wait_for(lambda: b"hello" in answers(), what="the port answers")
        wait_for(lambda: not answers(), what="nobody answers")


def test_no_port_of_the_machine_is_forwarded(ssh: Ssh, host: str) -> None:
    with Held() as held, socket.create_server(("127.0.0.1", held.free())) as other:
        code, out, err = ssh.run("ssh", "-W", f"127.0.0.1:{other.getsockname()[1]}", host)
    assert (code, out) == (BROKEN, b"")
    assert b"connect failed" in err


def test_what_the_other_way_would_open_to_others_is_refused(ssh: Ssh, host: str) -> None:
    base = ["-o", "ExitOnForwardFailure=yes", host, "true"]
    assert ssh.run("ssh", "-R", "0.0.0.0:0:localhost:9", *base)[0] == BROKEN
    assert ssh.run("ssh", "-R", "/tmp/its.sock:localhost:9", *base)[0] == BROKEN
    assert ssh.run("ssh", "-R", "localhost:0:localhost:9", *base)[0] == 0
    asked = ssh.run("ssh", "-A", "-X", host, "echo $SSH_AUTH_SOCK$DISPLAY.")
    assert asked[:2] == (0, b".\n")


# -- whose it is ----------------------------------------------------------------------------------


def known_hosts(config: Path) -> Path:
    found = re.search(r'UserKnownHostsFile "(.*)"', config.read_text())
    assert found
    return Path(found[1])


@of_processes
def test_another_host_key_is_refused(ssh: Ssh, host: str, config: Path, tmp_path: Path) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True
    )
    other = " ".join((tmp_path / "key.pub").read_text().split()[:2])
    assert ssh.run("ssh", host, "true")[0] == 0
    wrong = tmp_path / "known_hosts"
    wrong.write_text(f"{host} {other}\n")
    code, out, err = ssh.run("ssh", "-o", f"UserKnownHostsFile={wrong}", host, "echo in")
    assert (code, out) == (BROKEN, b"")  # what is typed counts first
    text = config.read_text().replace(str(known_hosts(config)), str(wrong))
    (tmp_path / "config").write_text(text)
    there = Ssh.__new__(Ssh)
    there.environment, there.config = ssh.environment, tmp_path / "config"
    code, out, err = there.run("ssh", host, "echo in")
    assert (code, out) == (BROKEN, b"")
    assert b"REMOTE HOST IDENTIFICATION HAS CHANGED" in err
    wrong.write_text("")
    code, out, err = there.run("ssh", host, "echo in")
    assert (code, out) == (BROKEN, b"")
    assert b"Host key verification failed" in err


def test_the_private_half_is_nothing_for_the_session(
    ssh: Ssh, host: str, platform: Platform
) -> None:
    assert ssh.run("ssh", host, "true")[0] == 0  # the key is made for the first connection
    [file] = [
        one
        for one in files_below(platform.folder, "ssh_host_key")
        if host.removesuffix(".nsml") in str(one)
    ]
    assert file.stat().st_mode & 0o777 == 0o600
    assert ssh.run("ssh", host, f"cat {shlex.quote(str(file))}")[0] != 0
    found = ssh.run(
        "ssh", host, "for one in /proc/[0-9]*/mem; do cat $one 2>/dev/null; done | wc -c"
    )
    assert found[1].strip() == b"0"


@of_processes
def test_somebody_else_is_refused(
    ssh: Ssh, host: str, config: Path, platform: Platform, tmp_path: Path
) -> None:
    environment = user_of(platform, "lee", tmp_path)
    there = Ssh(platform, config)
    there.environment = {**ssh.environment, **environment}
    code, out, err = there.run("ssh", host, "echo in")
    assert (code, out) == (BROKEN, b"")
    assert host.encode().split(b".")[0] in err
    audit = platform.nsml("admin", "audit", "-j").stdout
    assert "agent.ssh" in audit


# -- what dies in the middle ----------------------------------------------------------------------


def ends(*argv: str) -> None:
    wait_for(lambda: not pids(*argv), what=f"{argv} is gone")


def test_programs_get_a_hangup_when_the_client_is_cut_off(ssh: Ssh, host: str) -> None:
    word, stays = unique(), unique()
    with ssh.open(host, f"(trap '' HUP; exec sleep {stays}) & sleep {word}; true") as process:
        wait_for(lambda: pids("sleep", word) and pids("sleep", stays), what="both run")
        process.kill()
        ends("sleep", word)
        assert pids("sleep", stays)
    ssh.run("ssh", host, f"kill -9 $(pgrep -f 'sleep {stays}')")
    ends("sleep", stays)


@of_processes
def test_what_has_none_of_the_streams_goes_on_without_the_client(ssh: Ssh, host: str) -> None:
    """So does the server of VS Code, which a shell that stays has started."""
    word, stays = unique(), unique()
    apart = f"sleep {stays} < /dev/null > /dev/null 2>&1"
    with ssh.open(host, f"{apart} & sleep {word}; true") as process:
        wait_for(lambda: pids("sleep", word) and pids("sleep", stays), what="both run")
        process.kill()
        ends("sleep", word)
    assert ssh.run("ssh", host, "true")[0] == 0
    assert pids("sleep", stays)
    ssh.run("ssh", host, f"kill -9 $(pgrep -f 'sleep {stays}')")
    ends("sleep", stays)


def test_a_session_that_ends_leaves_nothing(ssh: Ssh, platform: Platform, code: Path) -> None:
    name = begun(platform, code, "-g", "0")
    host = f"{platform.nsml('getid', name).stdout.strip()}.nsml"
    words = [unique(), unique()]
    script = f"trap '' HUP TERM; setsid nohup sleep {words[0]} & sleep {words[1]}; echo not reached"
    with ssh.open(host, script) as process:
        wait_for(lambda: all(pids("sleep", word) for word in words), what="both run")
        platform.nsml("stop", "-y", name)
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (BROKEN, b"")
    for word in words:
        ends("sleep", word)
    code_, _, err = ssh.run("ssh", host, "true")
    assert code_ == BROKEN
    assert b"has ended" in err


@pytest.mark.parametrize(
    "platform", [pytest.param("containers", marks=pytest.mark.variant)], indirect=True
)
@pytest.mark.parametrize("program", ["agent", "controlplane"])
def test_a_program_of_the_platform_that_dies_is_no_success(
    ssh: Ssh, host: str, platform: Platform, program: str
) -> None:
    """Of processes: test_inside_kills.py."""
    word = unique()
    with ssh.open(host, f"yes {word}") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == word.encode() + b"\n"
        reading = threading.Thread(target=process.stdout.read, daemon=True)
        reading.start()
        platform.kill(program)
        assert process.wait(120) == BROKEN
    ends("yes", word)
    platform.up()
    wait_for(lambda: ssh.run("ssh", host, "true")[0] == 0, what="it lets in again", timeout_s=120)


# -- clients that mean no good --------------------------------------------------------------------


@contextmanager
def proxied(ssh: Ssh, host: str) -> Iterator[subprocess.Popen[bytes]]:
    """A client that speaks to the server itself."""
    process = subprocess.Popen(
        [str(PROGRAMS / "nsml"), "ssh-proxy", host],
        env=ssh.environment,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@of_processes
@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 100,
        b"SSH-2.0-x\r\n" + b"\x00\x10\x00\x00" + os.urandom(MEGABYTE),
        b"SSH-1.5-x\r\n",
        b"\xff" * MEGABYTE,
    ],
    ids=["http", "a key exchange of 1 MiB", "version 1", "noise"],
)
def test_nonsense_ends_only_its_own_connection(ssh: Ssh, host: str, said: bytes) -> None:
    with proxied(ssh, host) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"SSH-2.0-nsml")
        with suppress(BrokenPipeError):
            process.stdin.write(said)
        assert process.wait(120) is not None
    assert ssh.run("ssh", host, "true")[0] == 0


@of_processes
@pytest.mark.parametrize(
    "name",
    [
        "'$(touch here)'.nsml",
        "a;touch here;.nsml",
        "`touch here`.nsml",
        "a'b.nsml",
        "-oProxyCommand=touch here.nsml",
    ],
)
def test_no_name_of_a_host_is_a_command(ssh: Ssh, tmp_path: Path, name: str) -> None:
    code, out, err = ssh.run("ssh", "--", name, "true", cwd=tmp_path)
    assert (code, out) == (BROKEN, b""), err
    assert list(tmp_path.iterdir()) == []


def test_as_many_programs_at_once_as_one_connection_may(
    ssh: Ssh, host: str, tmp_path: Path
) -> None:
    word = unique()
    control = ["-S", str(tmp_path / "c")]
    with ssh.open("-M", *control, "-N", host) as master:
        wait_for((tmp_path / "c").exists, what="it is connected")
        clients = [
            subprocess.Popen(
                ["ssh", "-F", str(ssh.config), *control, host, f"sleep {word}"],
                env=ssh.environment,
                stdin=subprocess.DEVNULL,
            )
            for _ in range(20)
        ]
        wait_for(lambda: len(pids("sleep", word)) == 20, what="all run")
        master.kill()
        for one in clients:
            assert one.wait(60) == BROKEN
    ends("sleep", word)
