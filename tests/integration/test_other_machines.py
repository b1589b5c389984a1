"""A platform that other machines use: listeners, joining, signing in."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from cli.local import processes
from cli.local.ports import Held
from cli.local.units import AGENT_UNIT, REPLICAS, REPLICAS_UNIT
from controlplane.access.authority import open_authority
from nsml.client.trust import NodeFiles, needs_renewal, signing_request
from nsml.common.clock import SystemClock
from tests.integration.machine import Machine, machine, until

__all__ = ["machine"]


def listens(machine: Machine) -> tuple[str, int]:
    host, _, port = machine.ready()["listen"].rpartition(":")
    return host, int(port)


def test_a_listener_without_a_port_gets_one_and_keeps_it(machine: Machine) -> None:
    up = machine.up("--listen", "127.0.0.1:0")
    assert up.returncode == 0, up.stderr
    host, port = listens(machine)
    assert host == "127.0.0.1"
    assert port > 1
    assert machine.ready()["listen_agents"] == f"127.0.0.1:{port + 1}"
    assert machine.ready()["listen_relay"] == f"127.0.0.1:{port + 3}"
    assert machine.up("--listen", "127.0.0.1:0").stdout.startswith("nsml already runs\n")
    assert machine.nsml("down").returncode == 0
    for arguments in ((), ("--listen", "127.0.0.1:0")):
        assert machine.up(*arguments).returncode == 0
        assert listens(machine) == (host, port)
        assert machine.nsml("down").returncode == 0


def test_a_listener_that_takes_the_usual_port_moves_the_other_one(machine: Machine) -> None:
    held = Held()
    port = next(
        one for one in iter(held.free, 0) if held.hold("", one - 1) and held.hold("", one + 1)
    )
    assert machine.up("--port", str(port)).returncode == 0
    assert machine.nsml("down").returncode == 0
    for number in (port, port - 1):
        up = machine.up("--listen", f"0.0.0.0:{number}")
        assert up.returncode == 0, up.stderr
        assert machine.ready()["address"] not in {f"127.0.0.1:{port}", f"127.0.0.1:{number}"}
        assert machine.nsml("status").returncode == 0
        assert machine.nsml("down").returncode == 0
    refused = machine.up("--port", str(port), "--listen", f"0.0.0.0:{port}")
    assert refused.returncode == 6
    assert "--listen" in refused.stderr
    held.close()


def _taken_above_a_free_one(taken: socket.socket, held: Held) -> int:
    """The port of a socket that listens from now on; nobody gets the one before it by chance."""
    while True:
        port = held.free() + 1
        with contextlib.suppress(OSError, OverflowError):
            taken.bind(("127.0.0.1", port))
            taken.listen()
            return port


def test_a_listener_that_cannot_be_leaves_nothing(machine: Machine) -> None:
    with socket.socket() as taken, Held() as held:
        port = _taken_above_a_free_one(taken, held)
        for number in (port, port - 1):  # that of users, that of agents
            refused = machine.up("--listen", f"127.0.0.1:{number}")
            assert refused.returncode == 6, refused.stderr
            assert f"cannot listen on 127.0.0.1:{port}" in refused.stderr
            assert "address already in use" in refused.stderr
    foreign = machine.up("--listen", "203.0.113.1:0")
    assert foreign.returncode == 6
    assert "cannot assign requested address" in foreign.stderr
    for text in ("127.0.0.1:65535", "unix:/x", "a b", "127.0.0.1:x"):
        assert machine.up("--listen", text).returncode == 2
    assert machine.leftovers() == []
    assert not (machine.data / "local.json").exists()


def test_other_machines_join_over_tls_with_a_token(machine: Machine, tmp_path: Path) -> None:
    up = machine.up("--listen", "127.0.0.1:0")
    assert up.returncode == 0, up.stderr
    _, port = listens(machine)
    token = machine.nsml("admin", "join-token").stdout.split()[-1]
    assert token.startswith("nsml_")
    node = Machine(tmp_path / "node")
    try:
        wrong = node.nsml("join", f"127.0.0.1:{port}", "--token", token[:-4] + "0000")
        assert wrong.returncode == 1
        assert "not the platform that you were told about" in wrong.stderr
        join = ("join", f"127.0.0.1:{port}", "--name", "gpu-7", "--simulate-gpus", "2")
        both = node.nsml(*join, "--token", "-", "--token-stdin", stdin=token)
        assert both.returncode == 2
        none = node.nsml(*join)
        assert "--token-stdin < FILE" in none.stderr
        joined = node.nsml(*join, "--token-stdin", stdin=token)
        assert joined.returncode == 0, joined.stderr
        assert "(simulated)" in joined.stdout
        nodes = json.loads(machine.nsml("node", "ls", "-j").stdout)["items"]
        assert [item["name"] for item in nodes] == ["gpu-7"]
        again = node.nsml(*join)
        assert again.returncode == 0, again.stderr
        assert again.stdout.startswith("already joined")
        refused = node.nsml("up", "--embedded")
        assert refused.returncode == 6
        assert "is a node of the platform" in refused.stderr
        killed = processes.recorded(node.data / "agent.pid")
        assert killed is not None
        processes.signal_program(killed, signal.SIGKILL)
        until(lambda: not killed.is_alive)
        told = re.search(r"try: nsml (join .*?) {4}# starts the agent again", refused.stderr)
        assert told, refused.stderr
        assert node.nsml(*shlex.split(told[1])).stdout.startswith("joined")
        changed = node.nsml(*join[:2], "--simulate-gpus", "1")
        assert f"then nsml join 127.0.0.1:{port} --data" in changed.stderr
    finally:
        assert node.nsml("down", "-y").returncode == 0
    assert node.leftovers() == []


def test_users_of_other_machines_sign_in_to_the_platform_that_they_were_told_of(
    machine: Machine, tmp_path: Path
) -> None:
    up = machine.up("--listen", "127.0.0.1:0")
    assert up.returncode == 0, up.stderr
    assert machine.nsml("admin", "user", "add", "lee").returncode == 0
    made = machine.nsml("admin", "user", "token", "lee")
    told = re.search(r"nsml login (\S+)\n", made.stderr)
    assert told, made.stderr
    pinned, token = told[1], made.stdout
    assert f"nsml login {pinned}\n" in up.stderr
    address, _, digest = pinned.partition("#")
    laptop = Machine(tmp_path / "laptop")

    def login(*arguments: str, secret: str = token) -> subprocess.CompletedProcess[str]:
        return laptop.nsml("login", *arguments, "--token-stdin", stdin=secret)

    unasked = login(address)
    assert unasked.returncode == 2
    assert digest in unasked.stderr
    wrong = login(f"{address}#{'0' * 64}")
    assert wrong.returncode == 1
    assert "not the platform that you were told about" in wrong.stderr
    assert login(f"{address}#xyz").returncode != 0
    assert not laptop.config.exists()
    assert login(pinned, secret="nsml_" + "x" * 43).returncode == 4
    assert not laptop.config.exists()
    port = int(address.rpartition(":")[2])
    of_agents = pinned.replace(f":{port}", f":{port + 1}")
    other_port = login(of_agents)
    assert other_port.returncode == 1, other_port.stderr
    assert "takes no users and no machines that join" in other_port.stderr

    right = login(pinned)
    assert right.returncode == 0, right.stderr
    assert "You are lee" in right.stdout
    assert laptop.nsml("ps").returncode == 0
    again = login(address)
    assert again.returncode == 0, again.stderr
    shutil.rmtree(laptop.config)
    first_use = login(address, "-y", "--name", "lab")
    assert first_use.returncode == 0, first_use.stderr
    assert laptop.nsml("ps").returncode == 0


def renewal_is_due(machine: Machine, node: Machine) -> bytes:
    """Give a node a certificate of 70 days ago, which the platform's authority made."""

    class LongAgo(SystemClock):
        def time(self) -> float:
            return super().time() - 70 * 86_400

    authority = open_authority(machine.data / "controlplane", LongAgo())
    files = NodeFiles.within(node.data / "trust")
    signed = authority.sign_node("gpu-7", signing_request(files.key, "gpu-7"))
    files.certificate.write_bytes(signed.certificate)
    return signed.certificate


def test_an_agent_renews_its_certificate(machine: Machine, tmp_path: Path) -> None:
    assert machine.up("--listen", "127.0.0.1:0").returncode == 0
    token = machine.nsml("admin", "join-token").stdout
    node = Machine(tmp_path / "node")
    join = ("join", machine.ready()["listen"], "--name", "gpu-7", "--simulate-gpus", "1")
    try:
        assert node.nsml(*join, "--token", "-", stdin=token).returncode == 0
        assert node.nsml("down").returncode == 0
        old = renewal_is_due(machine, node)
        certificate = node.data / "trust" / "node.pem"
        with subprocess.Popen(
            [*processes.program("agent"), "--config", str(node.data / "agent.toml")],
            env={k: v for k, v in os.environ.items() if not k.startswith("NSML_")},
            stderr=subprocess.PIPE,
        ) as agent:
            try:
                until(lambda: certificate.read_bytes() != old)
                until((node.data / "agent" / "ready.json").exists)
            finally:
                agent.terminate()
            _, said = agent.communicate(timeout=60)
        assert b"certificate.renewed" in said
        assert agent.returncode == 0
        renewal_is_due(machine, node)
        assert node.nsml(*join).returncode == 0
        assert not needs_renewal(certificate, now=SystemClock().time())
        certificate.unlink()
        assert node.nsml("down").returncode == 0
        again = node.nsml(*join, "--token", "-", stdin=token)
        assert again.returncode == 0, again.stderr
    finally:
        assert node.nsml("down", "-y").returncode == 0
    assert node.leftovers() == []


def test_a_joined_node_stops_with_its_sessions_or_without(machine: Machine, tmp_path: Path) -> None:
    assert machine.up("--listen", "127.0.0.1:0").returncode == 0
    token = machine.nsml("admin", "join-token").stdout
    node = Machine(tmp_path / "node")
    server = machine.ready()["listen"]
    join = ("join", server, "--name", "gpu-7", "--simulate-gpus", "1", "--token", "-")
    try:
        assert node.nsml(*join, stdin=token).returncode == 0
        code = tmp_path / "code"
        code.mkdir()
        run = machine.nsml("run", "-g", "1", "--argv", "--", "/bin/sleep", "600", cwd=code)
        assert run.returncode == 0, run.stderr
        until(lambda: state(machine) == "RUNNING")
        refused = node.nsml("down")
        assert refused.returncode == 2
        assert "1 session runs on this machine" in refused.stderr
        kept = node.nsml("down", "--keep-sessions")
        assert kept.returncode == 0
        assert "1 session goes on" in kept.stdout
        assert node.nsml("join", server).returncode == 0
        assert state(machine) == "RUNNING"
        down = node.nsml("down", "-y")
        assert down.returncode == 0, down.stderr
        assert node.leftovers() == []
        until(lambda: state(machine) == "STOPPED")
    finally:
        node.nsml("down", "-y")
    assert node.leftovers() == []


def state(machine: Machine) -> str:
    [item] = json.loads(machine.nsml("ps", "-a", "-j").stdout)["items"]
    return item["state"]


def test_a_node_of_units_is_joined_and_nothing_is_started(machine: Machine, tmp_path: Path) -> None:
    assert machine.up("--listen", "127.0.0.1:0").returncode == 0
    token = machine.nsml("admin", "join-token").stdout
    node = Machine(tmp_path / "a node")
    join = ("join", machine.ready()["listen"], "--name", "gpu-8", "--systemd", "--token-stdin")
    joined = node.nsml(*join, stdin=token)
    assert joined.returncode == 0, joined.stderr
    units = [node.data / AGENT_UNIT, node.data / REPLICAS_UNIT]
    files = " ".join(shlex.quote(str(unit)) for unit in units)
    assert f"install -m 644 {files} /etc/systemd/system/\n" in joined.stdout
    assert str(node.data / "agent.toml") in units[0].read_text(encoding="utf-8")
    assert REPLICAS_UNIT in units[0].read_text(encoding="utf-8")
    assert units[1].read_text(encoding="utf-8") == REPLICAS
    # Another address of the platform is as good, as where the first control plane is gone; that of another is not.
    other = join[1].replace("127.0.0.1", "localhost")
    refused = node.nsml("join", other, "--systemd")
    assert refused.returncode == 6, refused.stderr
    assert f"nsml join {other} --token-stdin" in refused.stderr
    again = node.nsml("join", other, "--systemd", "--token-stdin", stdin=token)
    assert again.returncode == 0, again.stderr
    assert "localhost:" in (node.data / "agent.toml").read_text(encoding="utf-8")
    host, _, port = join[1].rpartition(":")
    place = str(tmp_path / "other")
    wrong = node.nsml("join", f"{host}:{int(port) + 1}", "--data", place, *join[-2:], stdin=token)
    assert wrong.returncode == 1, wrong.stderr
    assert "it may be the port of agents" in wrong.stderr
    foreign = f"{token.strip()[:-8]}00000000"
    refused = node.nsml(*join, stdin=foreign)
    assert refused.returncode == 6, refused.stderr
    assert "holds the node of localhost" in refused.stderr
    assert node.leftovers() == []
