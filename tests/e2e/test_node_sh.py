"""`nsml node sh`: shells and programs on nodes themselves, on a real platform, also where something dies in the middle."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.platforms import user_of
from tests.e2e.programs import wait_for
from tests.e2e.test_sh import BROKEN, PROMPT, Terminal, client, in_the_foreground, pids, unique
from tests.support.in_process import Platform

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

COMMAND = ("node", "sh")
ALLOWED = {"NSML_AGENT_NODE_SHELL": "true", "NSML_TOKEN_OF_THE_AGENT": "very-secret"}
DEAF = "(setsid nohup sh -c 'trap \"\" HUP TERM; sleep {0}; :' >/dev/null 2>&1 &)"


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with Platform(simulate_gpus=1, environment=ALLOWED) as running:
        yield running


@pytest.fixture(scope="module")
def node(platform: Platform) -> str:
    return str(platform.json("node", "ls")["items"][0]["name"])


@contextmanager
def joined(platform: Platform, node: str, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    with client(platform, node, "--", *argv, command=COMMAND) as process:
        yield process


def said(platform: Platform, node: str, *argv: str, given: bytes = b"") -> tuple[int, bytes, bytes]:
    with joined(platform, node, *argv) as process:
        out, err = process.communicate(given, timeout=120)
        return process.returncode, out, err


@pytest.mark.every_time
def test_it_is_the_agents_account_with_nothing_else_of_the_agent(
    platform: Platform, node: str
) -> None:
    given = bytes(range(256)) * 100
    script = "cat; echo err >&2; exit 7"
    assert said(platform, node, "sh", "-c", script, given=given) == (7, given, b"err\n")
    assert said(platform, node, "sh", "-c", "kill -TERM $$") == (143, b"", b"")
    agent = Path(f"/proc/{platform.pid('agent')}")
    assert b"very-secret" in (agent / "environ").read_bytes()
    code, out, _ = said(platform, node, "sh", "-c", "id -u; readlink /proc/self/fd/*; env")
    assert code == 0
    who, *rest = out.decode().splitlines()
    assert int(who) == agent.stat().st_uid
    assert not [one for one in rest if "secret" in one or "NSML" in one or "socket:" in one]
    code, out, _ = said(platform, node, "readlink", "/proc/self/ns/mnt", "/proc/self/ns/pid")
    assert out.split() == [os.fsencode((agent / "ns" / one).readlink()) for one in ("mnt", "pid")]


def test_administrators_may_and_nobody_else(platform: Platform, node: str, tmp_path: Path) -> None:
    def refused(name: str, who: dict[str, str] | None = None) -> tuple[int, str]:
        done = platform.nsml("node", "sh", name, "--", "true", check=False, environment=who)
        assert done.stdout == ""
        return done.returncode, done.stderr

    code, why = refused(node, user_of(platform, "kim", tmp_path))
    assert code == 4
    assert "administrators" in why
    code, why = refused("no-such-node")
    assert code == 5
    assert "no node no-such-node" in why
    platform.nsml("node", "drain", node, "-y")
    assert said(platform, node, "echo", "in") == (0, b"in\n", b"")
    platform.nsml("node", "resume", node, "-y")

    def is_audited() -> bool:
        rows = platform.json("admin", "audit", "--target", node)["items"]
        mine = [one for one in rows if one["method"].endswith("OpenNodeTunnel")]
        outcomes = {one["outcome"] for one in mine}
        return {"OK", "PERMISSION_DENIED"} <= outcomes and any(
            one["target"] == f"{node} agent.node-program" for one in mine
        )

    wait_for(is_audited, what="the trail has both")


def test_a_killed_client_ends_it(platform: Platform, node: str) -> None:
    command = ("sleep", unique())
    with joined(platform, node, *command) as process:
        wait_for(lambda: pids(*command), what="it runs")
        process.kill()
        began = time.monotonic()
        wait_for(lambda: not pids(*command), what="it is gone")
        assert time.monotonic() - began < 60


def test_a_killed_client_ends_what_is_deaf_to_the_hangup(platform: Platform, node: str) -> None:
    seconds = unique()
    script = f"{DEAF.format(seconds)}; trap '' HUP TERM; sleep {seconds}; :"
    with joined(platform, node, "sh", "-c", script) as process:
        wait_for(lambda: len(pids("sleep", seconds)) == 2, what="both run")
        process.kill()
    wait_for(lambda: not pids("sleep", seconds), what="they are gone")


@pytest.mark.parametrize("program", ["agent", "controlplane"])
def test_nothing_outlives_what_is_killed_on_the_way(
    platform: Platform, node: str, program: str
) -> None:
    seconds = unique()
    script = f"{DEAF.format(seconds)}; echo on; sleep {seconds}; :"
    with joined(platform, node, "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        wait_for(lambda: len(pids("sleep", seconds)) == 2, what="both run")
        platform.kill(program)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (BROKEN, b"")
        assert err.startswith(b"error: ")
    wait_for(lambda: not pids("sleep", seconds), what="they are gone")
    platform.up()
    wait_for(lambda: said(platform, node, "echo", "on")[:2] == (0, b"on\n"), what="it works again")


def test_without_the_setting_it_is_refused_by_its_name(platform: Platform, node: str) -> None:
    platform.kill("agent")
    platform.environment["NSML_AGENT_NODE_SHELL"] = "false"
    try:
        platform.up()

        def refused() -> bool:
            code, out, err = said(platform, node, "true")
            assert (out, code) != (b"", 0)
            return code == 6 and b"node_shell = true" in err

        wait_for(refused, what="the agent refuses it")
    finally:
        platform.environment |= ALLOWED
        platform.kill("agent")
        platform.up()
    wait_for(lambda: said(platform, node, "true")[0] == 0, what="it is allowed again")


@pytest.fixture
def terminal(platform: Platform, node: str) -> Iterator[Terminal]:
    made = Terminal(platform, node, command=COMMAND)
    try:
        yield made
    finally:
        made.close()


def test_a_shell_in_a_terminal(terminal: Terminal) -> None:
    waits = unique()
    terminal.expect(PROMPT)
    terminal.type("stty size\r")
    terminal.expect(rb"\n31 117\r\n")
    terminal.expect(PROMPT)
    terminal.resize(40, 100)
    terminal.type("until [ \"$(stty size)\" = '40 100' ]; do sleep 0.05; done; echo re''sized\r")
    terminal.expect(rb"resized\r\n")
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
    terminal.type("\r~?")
    terminal.expect(rb"~\.  disconnect")
    terminal.type(f"nohup setsid sleep {waits} >/dev/null 2>&1 &\r")
    wait_for(lambda: pids("sleep", waits), what="it runs in the background")
    terminal.type("exit 5\r")
    assert terminal.process.wait(60) == 5
    assert terminal.settings_now() == terminal.settings
    wait_for(lambda: not pids("sleep", waits), what="what it left is gone")


def test_a_terminal_is_left_by_what_is_typed(terminal: Terminal) -> None:
    waits = unique()
    terminal.expect(PROMPT)
    terminal.type(f"sleep {waits}\r")
    wait_for(lambda: pids("sleep", waits), what="it runs")
    terminal.type("~.")
    assert terminal.process.wait(60) == BROKEN
    assert terminal.settings_now() == terminal.settings
    wait_for(lambda: not pids("sleep", waits), what="the program is gone")


def test_a_program_that_is_killed_says_so(platform: Platform, node: str) -> None:
    command = ("sleep", unique())
    with joined(platform, node, *command) as process:
        wait_for(lambda: pids(*command), what="it runs")
        os.kill(pids(*command)[0], signal.SIGKILL)
        assert process.wait(60) == 128 + signal.SIGKILL
