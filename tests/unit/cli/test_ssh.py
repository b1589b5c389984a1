"""`nsml ssh`, `ssh-config` and `ssh-proxy`: what ssh is told, and what it is to believe."""

import os
import shlex
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from cli.app import App
from cli.exits import CommandError
from cli.sessions import ssh_files
from nsml.spec.ssh_hosts import host_of
from nsml.v1 import sessions_pb2 as pb
from tests.unit.cli.test_process import NSML, ROOT
from tests.unit.cli.test_sh import done

SESSION = "kim/mnist/1"
KEY = "ssh-ed25519 AAAAC3Nz+/=="


@pytest.fixture
def session(state):
    return state.add(SESSION)


@pytest.fixture
def app(tmp_path):
    return App(environ={"NSML_CONFIG_DIR": str(tmp_path / "a folder"), "HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("host", "meant"),
    [
        ("12.nsml", ("12", 0)),
        ("1.12.nsml", ("12", 1)),
        ("kim/mnist/3.nsml", ("kim/mnist/3", 0)),
        ("10.kim/mnist.v2/3.NSML", ("kim/mnist.v2/3", 10)),
        ("last.nsml", ("@last", 0)),
        ("2.last.nsml", ("@last", 2)),
    ],
)
def test_a_host_is_a_replica(host, meant):
    assert ssh_files.replica_at(host) == meant


@pytest.mark.parametrize(
    "host",
    ["", ".nsml", "12", "12.nsml.org", "a b.nsml", "a\nb.nsml", "12.nsml\n", "x" * 300 + ".nsml"],
)
def test_another_host_is_none(host):
    with pytest.raises(CommandError):
        ssh_files.replica_at(host)


def test_the_host_of_a_session_leads_to_it():
    host = host_of("sabcdefgh234567ab", 3)
    assert ssh_files.replica_at(host) == ("sabcdefgh234567ab", 3)


def test_ssh_is_to_expect_the_key_of_the_platform_alone(app):
    file = Path(app.environ["NSML_CONFIG_DIR"]) / "ssh_known_hosts"
    ssh_files.note_host_key(app, "Kim/X/1.nsml", "ssh-ed25519 OLD")
    ssh_files.note_host_key(app, "2.nsml", KEY)
    ssh_files.note_host_key(app, "kim/x/1.nsml", KEY)
    assert file.read_text().splitlines() == [f"2.nsml {KEY}", f"kim/x/1.nsml {KEY}"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_keys_noted_at_once_are_all_there(app):
    file = Path(app.environ["NSML_CONFIG_DIR"]) / "ssh_known_hosts"
    lines = [f"{number}.nsml" for number in range(20)]
    threads = [
        threading.Thread(target=ssh_files.note_host_key, args=(app, one, KEY)) for one in lines
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(file.read_text().splitlines()) == sorted(f"{one} {KEY}" for one in lines)


def test_the_file_of_keys_does_not_grow_for_ever(app):
    file = Path(app.environ["NSML_CONFIG_DIR"]) / "ssh_known_hosts"
    file.parent.mkdir()
    file.write_text("".join(f"{number}.nsml {KEY}\n" for number in range(9000)))
    ssh_files.note_host_key(app, "9000.nsml", KEY)
    lines = file.read_text().splitlines()
    assert len(lines) < 1000
    assert lines[-1] == f"9000.nsml {KEY}"


def expanded(name: str, app: App) -> list[str]:
    """The words of the proxy for a host, as a shell takes what ssh gives it."""
    [line] = [one for one in ssh_files.block(app).splitlines() if "ProxyCommand" in one]
    command = line.split(None, 1)[1].replace("%n", name)
    told = f"set -- {command}; printf '%s\\0' \"$@\""
    shown = subprocess.run(["/bin/sh", "-c", told], capture_output=True, check=True)
    return shown.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize(
    "name",
    ["12.nsml", "$(touch x).nsml", "`id`.nsml", "a;b|c&d>e.nsml", '"\\.nsml', "-y.nsml", "a b"],
)
def test_a_name_is_one_word_for_the_shell_of_ssh(app, name):
    assert expanded(name, app)[1:] == ["ssh-proxy", "--", name]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no OpenSSH client")
def test_a_name_with_a_quote_matches_nothing(app, tmp_path):
    file = tmp_path / "config"
    file.write_text(ssh_files.block(app))

    def shown(name: str) -> str:
        command = ["ssh", "-G", "-F", str(file), "--", name]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.lower()

    assert "proxycommand" in shown("12.nsml")
    assert "stricthostkeychecking true" in shown("12.nsml")
    assert "a folder/ssh_known_hosts" in shown("12.nsml")
    assert "proxycommand" not in shown("a'b.nsml")
    assert "proxycommand" not in shown("12.example")


def test_a_folder_that_ssh_cannot_be_told_of_is_refused(tmp_path):
    with pytest.raises(CommandError):
        ssh_files.block(App(environ={"NSML_CONFIG_DIR": str(tmp_path / 'a"b')}))
    percent = App(environ={"NSML_CONFIG_DIR": str(tmp_path / "%h")})
    assert "%%h/ssh_known_hosts" in ssh_files.block(percent)


def test_it_is_installed_once_and_before_all_else(environ, tmp_path):
    theirs = tmp_path / ".ssh" / "config"
    theirs.parent.mkdir()
    theirs.write_text("Host *\n    Port 2222\n")
    there = {**environ, "HOME": str(tmp_path)}
    refused = done(there, "ssh-config", "--install")
    assert (refused.returncode, theirs.read_text()) == (2, "Host *\n    Port 2222\n")
    for _ in range(2):
        assert done(there, "ssh-config", "--install", "-y").returncode == 0
    first, *rest = theirs.read_text().splitlines()
    assert first.startswith('Include "')
    assert rest == ["", "Host *", "    Port 2222"]
    printed = done(there, "ssh-config").stdout
    assert Path(shlex.split(first)[1]).read_bytes() == printed


def test_what_follows_the_session_is_for_ssh(environ, session, tmp_path):
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 9\n")
    ssh.chmod(0o755)
    given = ["-q", "-N", "-L", "8080:localhost:80", "--", "ls", "-j"]
    words = ["nsml", "ssh", f"{SESSION}:2", *given]
    result = subprocess.run(
        ["env", f"PATH={ssh.parent}:{os.environ['PATH']}", *NSML, *words[1:]],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 9, result.stderr
    said = result.stdout.splitlines()
    assert said[-len(given) - 1 :] == [f"2.{session.id}.nsml", *given]
    options = said[: -len(given) - 1]
    assert "-oStrictHostKeyChecking=yes" in options
    assert all(one.startswith("-o") for one in options)


def test_there_is_no_ssh_for_a_session_that_ended_nor_where_no_ssh_is(nsml, environ, session):
    without = subprocess.run(
        ["/usr/bin/env", "PATH=/nowhere", *NSML, "ssh", SESSION],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert without.returncode == 1
    assert "openssh-client" in without.stderr
    session.state = pb.SESSION_STATE_SUCCEEDED
    assert done(environ, "ssh", SESSION).returncode == 6


def test_the_proxy_writes_the_key_before_the_first_byte(environ, session):
    result = done(environ, "ssh-proxy", f"{SESSION}.nsml")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"SSH-2.0-test\r\n", b"")
    file = Path(environ["NSML_CONFIG_DIR"]) / "ssh_known_hosts"
    assert file.read_text() == f"{SESSION}.nsml {KEY}\n"
    assert done(environ, "ssh-proxy", "kim/mnist/7.nsml").returncode == 5


def test_a_machine_without_nsml_is_told_of_the_jump_host(nsml, state, tmp_path):
    found = nsml("ssh-config", "--jump").stdout
    config, known_hosts = found.split("\n\n")
    assert f"[jump.lab]:18557 {state.jump_host.host_key}\n" in known_hosts
    assert f"@cert-authority *.nsml {state.jump_host.authority}\n" in known_hosts
    file = tmp_path / "config"
    file.write_text(config)
    if shutil.which("ssh"):
        said = subprocess.run(
            ["ssh", "-G", "-F", str(file), "12.nsml"], capture_output=True, text=True, check=True
        )
        assert "proxyjump jump.lab:18557\n" in said.stdout
    both = nsml("ssh-config", "--jump", "--install", check=False)
    assert (both.code, both.stdout) == (2, "")


def test_jump_hosts_of_other_control_planes_are_known_too(nsml, state):
    state.jump_host.other_addresses.extend(["other.lab:22", "[fd00::1]:18557"])
    config, known_hosts = nsml("ssh-config", "--jump").stdout.split("\n\n")
    assert "    ProxyJump jump.lab:18557\n    # or: ProxyJump other.lab:22\n" in config
    names = "[jump.lab]:18557,other.lab,[fd00::1]:18557"
    assert f"\n{names} {state.jump_host.host_key}\n" in known_hosts
    state.jump_host.other_addresses.append("x\n    ProxyCommand id:1")
    refused = nsml("ssh-config", "--jump", check=False)
    assert (refused.code, refused.stdout) == (1, "")


@pytest.mark.parametrize(
    ("field", "word"),
    [
        ("address", "x\n    ProxyCommand id:1"),
        ("address", "-oX:22"),
        ("host_key", "ssh-ed25519 A\nB"),
    ],
)
def test_what_a_platform_says_of_it_adds_no_line(nsml, state, field, word):
    setattr(state.jump_host, field, word)
    refused = nsml("ssh-config", "--jump", check=False)
    assert (refused.code, refused.stdout) == (1, "")
