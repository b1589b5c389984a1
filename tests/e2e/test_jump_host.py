"""The jump host: OpenSSH into sessions from machines without nsml, with nothing but a key and a few lines."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from cli.local.ports import Held
from tests.e2e.platforms import LEVELS, end_all, platform_of, user_of
from tests.e2e.programs import wait_for, write_program
from tests.e2e.test_sh import begun, pids, unique
from tests.e2e.test_ssh import BROKEN, SERVES, WAITS, ends, fetched
from tests.support.laptop import Done, Laptop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.in_process import Platform

pytestmark = pytest.mark.skipif(
    shutil.which("ssh") is None and not os.environ.get("NSML_REQUIRE_SSH"),
    reason="there is no OpenSSH client (openssh-client)",
)


@pytest.fixture(scope="module", params=LEVELS)
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    with (
        Held() as held,
        platform_of(request.param, "--ssh", f"127.0.0.1:{held.free()}") as running,
    ):
        yield running
        end_all(running, request.param)


of_processes = pytest.mark.parametrize("platform", ["processes"], indirect=True)
"""What is the same wherever the program runs."""


@pytest.fixture(scope="module")
def session(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> str:
    code = write_program(tmp_path_factory.mktemp("waits") / "code", WAITS)
    name = begun(platform, code, "-g", "0")
    return platform.nsml("getid", name).stdout.strip()


@pytest.fixture(scope="module")
def lines(platform: Platform) -> str:
    """What is to be pasted on a machine without nsml."""
    return platform.nsml("ssh-config", "--jump").stdout


@pytest.fixture(scope="module")
def laptop(platform: Platform, lines: str, tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    made = Laptop(tmp_path_factory.mktemp("machines") / "laptop", lines)
    platform.nsml("key", "add", made.public_key)
    return made


def another(platform: Platform, folder: Path, name: str) -> tuple[Laptop, Mapping[str, str]]:
    """A new user's machine, with a key that nobody knows, and their environment."""
    environment = user_of(platform, name, folder)
    lines = platform.nsml("ssh-config", "--jump", environment=environment).stdout
    return Laptop(folder / name, lines), environment


def jump_host(platform: Platform) -> psutil.Process | None:
    """Its process."""
    control_plane = psutil.Process(int(platform.ready("controlplane")["pid"]))
    for one in control_plane.children():
        if "controlplane.jump_host.main" in one.cmdline():
            return one
    return None


@pytest.mark.every_time
def test_programs_files_and_ports_of_a_session(
    platform: Platform, laptop: Laptop, session: str, tmp_path: Path
) -> None:
    host = f"{session}.nsml"
    assert laptop.run("ssh", host, "echo $NSML_SESSION_ID; exit 7") == Done(7, f"{session}\n", "")
    assert laptop.run("ssh", "last.nsml", "echo out; echo err >&2") == Done(0, "out\n", "err\n")
    assert laptop.run("ssh", f"0.{session}.nsml", "true") == Done(0, "", "")
    terminal = laptop.run("ssh", "-tt", host, given="tty; exit 3\n")
    assert terminal.code == 3, terminal
    assert "/dev/pts/" in terminal.out
    given = tmp_path / "given"
    given.write_bytes(os.urandom(1 << 20))
    assert laptop.run("scp", "-q", str(given), f"{host}:/tmp/taken").code == 0
    assert laptop.run("scp", "-q", f"{host}:/tmp/taken", str(tmp_path / "back")).code == 0
    assert (tmp_path / "back").read_bytes() == given.read_bytes()
    check_ports(laptop, host)
    wait_for(
        lambda: "in rank 0 by ssh key laptop" in platform.nsml("admin", "audit", "-j").stdout,
        what="it is in the audit trail",
    )
    assert "never" not in platform.nsml("key", "ls").stdout


def check_ports(laptop: Laptop, host: str) -> None:
    with Held() as held:
        here, there = held.free(), held.free()

        def answers() -> bytes:
            with suppress(OSError):
                return fetched(here)
            return b""

        forward = f"127.0.0.1:{here}:localhost:{there}"
        serve = f"mkdir -p /tmp/w; cd /tmp/w; echo hello > index.html; {SERVES.format(port=there)}"
        with laptop.connected("-L", forward, host, command=serve):
            wait_for(lambda: b"hello" in answers(), what="the port answers")
        wait_for(lambda: not answers(), what="nobody answers")


@of_processes
def test_whose_key_is_unknown_is_not_let_in(
    platform: Platform, lines: str, session: str, tmp_path: Path
) -> None:
    stranger = Laptop(tmp_path / "stranger", lines)
    refused = stranger.run("ssh", f"{session}.nsml", "true")
    assert (refused.code, refused.out) == (BROKEN, "")
    assert "Permission denied (publickey)" in refused.err


@of_processes
def test_another_users_key_opens_their_own_sessions_alone(
    platform: Platform, session: str, tmp_path: Path
) -> None:
    desk, kim = another(platform, tmp_path, "kim")
    platform.nsml("key", "add", desk.public_key, environment=kim)
    refused = desk.run("ssh", f"{session}.nsml", "true")
    assert (refused.code, refused.out) == (BROKEN, "")
    # as for a session that is not there
    assert f"there is no session '{session}'" in refused.err
    taken = platform.nsml("key", "add", desk.public_key, check=False)
    assert "this key is another user's" in taken.stderr


@of_processes
def test_nothing_but_sessions(laptop: Laptop, lines: str, session: str) -> None:
    jump = lines.split("ProxyJump ")[1].split(maxsplit=1)[0]
    host, _, port = jump.rpartition(":")
    there = ["-J", "none", "-p", port, host]
    shell = laptop.run("ssh", *there)
    assert (shell.code, shell.out) == (BROKEN, "")
    assert "this is a jump host" in shell.err
    command = laptop.run("ssh", *there, "id")
    assert (command.code, command.out) == (BROKEN, "")
    for place, said in (
        ("127.0.0.1:22", "is not a session as a host"),
        ("169.254.169.254:80", "is not a session as a host"),
        (f"{session}.nsml:18553", "it leads to sessions alone"),
        ("nowhere.nsml:22", "'nowhere' does not name a session"),
    ):
        refused = laptop.run("ssh", "-W", place, *there)
        assert (refused.code, refused.out) == (BROKEN, ""), place
        assert said in refused.err, place
    back = laptop.run(
        "ssh", "-N", "-o", "ExitOnForwardFailure=yes", "-R", "127.0.0.1:0:localhost:22", *there
    )
    assert back.code == BROKEN
    assert "remote port forwarding failed" in back.err
    assert laptop.run("sftp", "-q", "-b", "/dev/null", "-P", port, host).code == BROKEN


@of_processes
def test_both_servers_are_checked(laptop: Laptop, session: str, tmp_path: Path) -> None:
    jump, authority = (
        line for line in laptop.known_hosts.read_text().splitlines() if not line.startswith("#")
    )
    file = tmp_path / "known_hosts"
    for known in (jump, authority, f"{jump}\n{authority.replace('*.nsml', '*.other')}"):
        file.write_text(f"{known}\n")
        options = ("-o", f"UserKnownHostsFile={file}", "-F", str(laptop.config))
        inner = laptop.config.read_text().replace(str(laptop.known_hosts), str(file))
        (tmp_path / "config").write_text(inner)
        refused = laptop.run("ssh", *options, "-F", str(tmp_path / "config"), f"{session}.nsml")
        assert (refused.code, refused.out) == (BROKEN, "")
        assert "Host key verification failed" in refused.err


@of_processes
def test_a_removed_key_and_a_removed_user_are_disconnected(
    platform: Platform, tmp_path: Path
) -> None:
    desk, kim = another(platform, tmp_path, "lee")
    code = write_program(tmp_path / "code", WAITS)
    platform.nsml("key", "add", desk.public_key, environment=kim)
    name = platform.nsml(
        *("run", "-g", "0", "-c", "0.1", "--memory", "1G", "-o", "name"),
        cwd=code,
        environment=kim,
    ).stdout.strip()
    wait_for(lambda: "ready" in platform.nsml("logs", name, environment=kim).stdout, what="it runs")

    with desk.connected("last.nsml", command="sleep 600") as process:
        platform.nsml("key", "rm", "lee", "-y", environment=kim)
        assert process.wait(60) == BROKEN
    assert "Permission denied" in desk.run("ssh", "last.nsml", "true").err
    platform.nsml("key", "add", desk.public_key, environment=kim)
    with desk.connected("last.nsml", command="sleep 600") as process:
        platform.nsml("admin", "user", "rm", "lee", "-y")
        assert process.wait(60) == BROKEN
    assert "Permission denied" in desk.run("ssh", "last.nsml", "true").err


def test_one_that_is_killed_comes_back(platform: Platform, laptop: Laptop, session: str) -> None:
    word = unique()
    with laptop.connected(f"{session}.nsml", command=f"sleep {word}; true") as process:
        wait_for(lambda: pids("sleep", word), what="its program runs")
        killed = jump_host(platform)
        assert killed is not None
        environment = killed.environ()
        assert not [name for name in environment if name.startswith(("NSML", "AWS"))]
        status = Path(f"/proc/{killed.pid}/status").read_text()
        log = (platform.folder / "data" / "controlplane.log").read_text()
        # it has given up the files of its account, where the kernel can
        assert ("NoNewPrivs:\t1" in status) != ("jump_host.not_confined" in log)
        os.kill(killed.pid, signal.SIGKILL)
        assert process.wait(60) == BROKEN
    ends("sleep", word)
    assert (
        wait_for(lambda: laptop.run("ssh", f"{session}.nsml", "echo again").out, what="it is back")
        == "again\n"
    )
