"""`nsml up`, `down` and `join` as whole programs: what they start, refuse, and leave behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from cli.local import processes
from cli.local.ports import Held
from cli.local.processes import Program
from cli.local.running_folders import running_folders
from tests.integration.machine import Machine, machine, until
from tests.support.living_folders import files_below

__all__ = ["machine"]


@pytest.mark.every_time
def test_up_status_down_and_again(machine: Machine) -> None:
    first = machine.up()
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("nsml is up\n")
    assert "the embedded store" in first.stdout
    assert stat.S_IMODE(machine.data.stat().st_mode) == 0o700
    token = machine.data / "controlplane" / "admin.token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    status = machine.nsml("status")
    assert status.returncode == 0, status.stderr
    program = machine.program()
    second = machine.up()
    assert second.returncode == 0, second.stderr
    assert second.stdout.startswith("nsml already runs\n")
    assert machine.program() == program
    down = machine.nsml("down")
    assert down.returncode == 0, down.stderr
    assert not program.is_alive
    assert machine.leftovers() == []
    assert "nothing runs" in machine.nsml("down").stderr
    gone = machine.nsml("status")
    assert gone.returncode == 3
    assert "nsml up" in gone.stderr
    again = machine.nsml("up", "--no-agent")
    assert again.returncode == 0, again.stderr
    assert "the embedded store" in again.stdout
    http = machine.ready()["http"]
    assert http.startswith("http://127.0.0.1:"), "by default HTTP is served on the loopback"
    assert f"  http           {http}  " in again.stdout
    dashboard = machine.nsml("dashboard")
    assert dashboard.stdout.startswith(f"{http}/view/"), dashboard.stderr
    assert machine.nsml("status").returncode == 0


def test_down_finds_the_platform_that_up_started_in_another_folder(
    machine: Machine, tmp_path: Path
) -> None:
    own = {"NSML_DATA": "", "XDG_DATA_HOME": str(tmp_path / "home")}
    up = machine.nsml("up", "--no-agent", "--embedded", "--data", str(machine.data), **own)
    assert up.returncode == 0, up.stderr
    program = machine.program()
    elsewhere = machine.nsml("down", NSML_DATA=str(tmp_path / "other"))
    assert f"nothing runs in {tmp_path / 'other'}" in elsewhere.stderr
    assert program.is_alive, "another folder was named"
    down = machine.nsml("down", **own)
    assert down.returncode == 0, down.stderr
    assert str(machine.data) in down.stderr
    assert down.stdout == "nsml is down\n"
    assert not program.is_alive
    again = machine.nsml("down", **own)
    assert f"nothing runs in {tmp_path / 'home' / 'nsml' / 'default'}" in again.stderr


def test_down_names_the_folders_in_which_something_runs(machine: Machine, tmp_path: Path) -> None:
    assert machine.up().returncode == 0
    strangers = {"NSML_DATA": "", "XDG_DATA_HOME": str(tmp_path), "NSML_CONFIG_DIR": str(tmp_path)}
    down = machine.nsml("down", **strangers)
    assert down.returncode == 0
    assert machine.program().is_alive, "it is not that of this configuration"
    assert "nothing runs" in down.stderr
    assert machine.data in [folder.path for folder in running_folders()]
    chosen = machine.nsml("down", "--data", str(machine.data), **strangers)
    assert chosen.stdout == "nsml is down\n"
    assert machine.data not in [folder.path for folder in running_folders()]


def states(machine: Machine) -> dict[str, str]:
    found = machine.nsml("ps", "-a", "-j")
    assert found.returncode == 0, found.stderr
    return {item["name"]: item["state"] for item in json.loads(found.stdout)["items"]}


@pytest.fixture
def working(machine: Machine, tmp_path: Path) -> Machine:
    """A machine with an agent and two sessions that run."""
    up = machine.nsml("up", "--embedded", "--simulate-gpus", "2")
    assert up.returncode == 0, up.stderr
    assert "2 x Simulated GPU (simulated)" in up.stdout
    code = tmp_path / "code"
    code.mkdir()
    for _ in range(2):
        run = machine.nsml("run", "--argv", "--", "/bin/sleep", "600", cwd=code)
        assert run.returncode == 0, run.stderr
    until(lambda: list(states(machine).values()) == ["RUNNING", "RUNNING"])
    return machine


def test_down_lists_asks_and_stops_what_runs(working: Machine) -> None:
    refused = working.nsml("down")
    assert refused.returncode == 2
    assert "add -y, or --keep-sessions" in refused.stderr
    assert len([line for line in refused.stderr.splitlines() if "/None/" in line]) == 2
    dry = working.nsml("down", "--dry-run")
    assert (dry.returncode, len(dry.stdout.splitlines())) == (0, 2), dry.stderr
    assert "would stop the platform and end 2 sessions" in dry.stderr
    assert set(states(working).values()) == {"RUNNING"}
    down = working.nsml("down", "-y")
    assert down.returncode == 0, down.stderr
    assert working.leftovers() == []
    assert working.nsml("up").returncode == 0
    assert set(states(working).values()) == {"STOPPED"}


def test_sessions_go_on_without_their_platform_and_are_taken_over(working: Machine) -> None:
    shims = replica_claims(working)
    assert len(shims) == 2
    down = working.nsml("down", "--keep-sessions")
    assert down.returncode == 0, down.stderr
    assert "2 sessions go on" in down.stdout
    assert replica_claims(working) == shims
    again = working.nsml("up")
    assert again.returncode == 0, again.stderr
    until(lambda: set(states(working).values()) == {"RUNNING"})
    assert replica_claims(working) == shims


def test_down_stops_sessions_even_when_everything_else_was_killed(working: Machine) -> None:
    for name in ("agent", "controlplane"):
        program = processes.recorded(working.data / f"{name}.pid")
        assert program is not None
        processes.signal_program(program, signal.SIGKILL)
        processes.wait_gone(program, deadline_s=60)
    assert len(replica_claims(working)) == 2
    refused = working.nsml("down")
    assert refused.returncode == 2
    assert "2 sessions run on this machine" in refused.stderr
    down = working.nsml("down", "-y")
    assert down.returncode == 0, down.stderr
    assert replica_claims(working) == set()
    assert working.leftovers() == []


def replica_claims(machine: Machine) -> set[Program]:
    claims = (machine.data / "agent" / "replicas").glob("s*/shim.json")
    return {found for claim in claims if (found := processes.recorded(claim)) is not None}


def test_a_token_that_was_given_back_is_made_anew_at_the_next_start(machine: Machine) -> None:
    assert machine.up().returncode == 0
    assert machine.nsml("logout", "--revoke").returncode == 0
    told = machine.up()
    assert told.returncode == 4
    assert "not valid any more" in told.stderr
    assert "nsml down --keep-sessions" in told.stderr
    assert machine.nsml("down").returncode == 0
    assert machine.up().returncode == 0
    assert machine.nsml("status").returncode == 0


def test_a_killed_control_plane_is_started_anew_on_the_same_data(machine: Machine) -> None:
    assert machine.up().returncode == 0
    cluster = machine.ready()["cluster_id"]
    processes.signal_program(machine.program(), signal.SIGKILL)
    assert machine.nsml("status").returncode == 3
    again = machine.up()
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("nsml is up\n")
    assert machine.ready()["cluster_id"] == cluster
    assert machine.nsml("status").returncode == 0


def test_an_etcd_whose_control_plane_was_killed_goes_with_down(machine: Machine) -> None:
    up = machine.up(embedded=False)
    assert up.returncode == 0, up.stderr
    if "embedded" in up.stdout:
        if os.environ.get("NSML_REQUIRE_ETCD"):
            pytest.fail("no sound etcd on PATH")
        pytest.skip("no sound etcd on PATH")
    program = machine.program()
    processes.signal_program(program, signal.SIGKILL)
    processes.wait_gone(program, deadline_s=60)
    assert any("etcd" in line for line in machine.leftovers())
    assert machine.nsml("down").returncode == 0
    assert machine.leftovers() == []


def test_a_folder_made_with_another_backend_is_refused(machine: Machine) -> None:
    assert machine.up().returncode == 0
    refused = machine.nsml("up", "--etcd", "http://127.0.0.1:1")
    assert refused.returncode == 6
    assert "was made with the embedded store" in refused.stderr
    assert "try:" in refused.stderr
    assert machine.nsml("status").returncode == 0


def test_a_dead_etcd_cluster_is_told_and_who_gives_up_leaves_nothing(machine: Machine) -> None:
    with machine.starts("up", "--no-agent", "--etcd", "http://127.0.0.1:1") as up:
        said = next(line for line in up.stderr if "waits:" in line)
        assert "etcd does not answer (http://127.0.0.1:1: " in said
        assert machine.leftovers() != []
        up.send_signal(signal.SIGINT)
        assert up.wait(60) != 0
    assert machine.leftovers() == []
    assert not (machine.data / "local.json").exists()


def test_a_taken_port_is_refused_when_asked_for_and_avoided_otherwise(machine: Machine) -> None:
    held = Held()
    port = str(held.free())
    with socket.create_server(("127.0.0.1", int(port))):
        refused = machine.up("--port", port)
        assert refused.returncode == 6
        assert f"cannot listen on 127.0.0.1:{port}" in refused.stderr
        assert machine.leftovers() == []
    chosen = machine.up("--port", port)
    assert chosen.returncode == 0, chosen.stderr
    assert f"port {port}" not in chosen.stderr
    assert machine.ready()["address"] == f"127.0.0.1:{port}"
    assert machine.nsml("down").returncode == 0
    with socket.create_server(("127.0.0.1", int(port))):
        elsewhere = machine.up()
        assert elsewhere.returncode == 0, elsewhere.stderr
        assert f"port {port}: address already in use" in elsewhere.stderr
        assert machine.ready()["address"] != f"127.0.0.1:{port}"
        assert machine.nsml("status").returncode == 0
    held.close()


def takes(thief: socket.socket, port: int) -> bool:
    """Whether the port could be taken: the last thread of a killed process may still hold it."""
    try:
        thief.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


SEES_IT_FREE = """
import os
from cli.local import ports, up
from cli.main import main
up.DEFAULT_HTTP_PORT = int(os.environ["HTTP_PORT"])
ports.obstacle = lambda host, port: ''
main()
"""
"""The command line, for which a port is taken in the moment after it looked, and whenever it looks is free."""


def test_a_port_that_is_taken_while_it_starts_is_avoided(machine: Machine) -> None:
    held = Held()
    port, http = held.free(), held.free()
    program = [sys.executable, "-c", SEES_IT_FREE]

    def up(*options: str) -> subprocess.CompletedProcess[str]:
        return machine.nsml("up", "--embedded", *options, program=program, HTTP_PORT=str(http))

    with socket.create_server(("127.0.0.1", http)):
        moved = up("--no-agent", "--port", str(port))
        assert moved.returncode == 0, moved.stderr
        assert machine.ready()["address"] == f"127.0.0.1:{port}", "which was asked for"
        assert machine.ready()["http"] != f"http://127.0.0.1:{http}"
        assert machine.nsml("down", "-y").returncode == 0
        refused = up("--no-agent", "--http", f"127.0.0.1:{http}")
        assert f"cannot listen on 127.0.0.1:{http}: " in refused.stderr
    with socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.1", http)):
        # those that it used are remembered, and somebody else has them now
        choices = machine.data / "local.json"
        kept = json.loads(choices.read_text())
        choices.write_text(json.dumps({**kept, "http": f"127.0.0.1:{http}"}))
        moved = up("--no-agent")
        assert moved.returncode == 0, moved.stderr
        assert f"port {port}: taken while it started" in moved.stderr
        assert machine.ready()["address"] != f"127.0.0.1:{port}"
        assert machine.ready()["http"] != f"http://127.0.0.1:{http}"
        assert machine.nsml("down", "-y").returncode == 0
        # the port that it moved to is remembered: back to the one that is taken
        kept = json.loads(choices.read_text())
        choices.write_text(json.dumps({**kept, "port": port}))
        (machine.data / "agent").write_text("a file where the agent's folder should be")
        failed = up()
    assert failed.returncode == 1
    held.close()
    assert "the agent did not start" in failed.stderr
    assert failed.stderr.count("control plane  stopping again") == 1


ASKS_FOR_WHAT_WAS_CHOSEN = """
import socket
from cli.local.bringup import BringUp
from cli.main import main
real, kept = BringUp.ensure, []
def ensure(self, name, settings):
    for word in ("address", "listen", "listen_agents") if name == "controlplane" else ():
        one = socket.socket()
        try:
            one.bind(("127.0.0.1", int(settings[word].rpartition(":")[2])))
            one.listen()
            kept.append(one)
            print("got", word)
        except OSError:
            pass
    return real(self, name, settings)
BringUp.ensure = ensure
main()
"""
"""The command line, whose ports somebody is after once they are chosen."""


def test_the_ports_that_it_chose_are_nobody_elses_by_chance(machine: Machine) -> None:
    program = [sys.executable, "-c", ASKS_FOR_WHAT_WAS_CHOSEN]
    options = ["--no-agent", "--embedded", "--listen", "127.0.0.1:0"]
    up = machine.nsml("up", *options, program=program)
    assert up.returncode == 0, up.stderr
    assert "got" not in up.stdout
    assert machine.nsml("status").returncode == 0


def test_who_takes_the_port_of_a_dead_control_plane_is_sent_no_token(machine: Machine) -> None:
    # A session shares the loopback with it, and may outlive it.
    assert machine.up().returncode == 0
    assert machine.ready()["socket"]
    port = int(machine.ready()["address"].rpartition(":")[2])
    program = machine.program()
    processes.signal_program(program, signal.SIGKILL)
    processes.wait_gone(program, deadline_s=60)
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        until(lambda: takes(thief, port))
        thief.listen()
        thief.settimeout(0)
        assert machine.nsml("status").returncode == 3
        with pytest.raises(BlockingIOError):
            thief.accept()


def test_a_control_plane_that_cannot_start_says_why(machine: Machine) -> None:
    data = machine.data / "controlplane"
    data.mkdir(parents=True)
    (data / "store.db").write_bytes(b"not a store" * 1000)
    failed = machine.up()
    assert failed.returncode == 1
    assert "the control plane did not start" in failed.stderr
    assert "controlplane.log" in failed.stderr
    assert machine.leftovers() == []


def test_what_was_started_is_stopped_when_a_later_step_fails(machine: Machine) -> None:
    (machine.data / "agent").parent.mkdir(parents=True, exist_ok=True)
    (machine.data / "agent").write_text("a file where the agent's folder should be")
    failed = machine.nsml("up", "--embedded")
    assert failed.returncode == 1
    assert "the agent did not start" in failed.stderr
    assert "control plane  stopping again" in failed.stderr
    assert machine.leftovers() == []


def test_a_mistake_in_the_sites_settings_is_told_before_anything_starts(machine: Machine) -> None:
    machine.data.mkdir()
    site = machine.data / "agent.site.toml"
    site.write_text('gang_netwrok = "host"\n')
    told = machine.nsml("up", "--embedded")
    assert told.returncode == 1
    assert "gang_netwrok" in told.stderr
    assert f"mend {site}" in told.stderr
    assert "starting" not in told.stderr
    assert not (machine.data / "controlplane").exists()


def test_a_control_plane_that_ran_before_goes_on_when_the_agent_does_not_start(
    machine: Machine,
) -> None:
    assert machine.up().returncode == 0
    before = machine.program()
    by_settings = machine.nsml("up", NSML_AGENT_CPUS="many")
    assert by_settings.returncode == 1
    assert "NSML_AGENT_... in the environment" in by_settings.stderr
    by_itself = machine.nsml(
        "up", "--isolation", "container", NSML_AGENT_ENGINE_SOCKET=str(machine.data / "none")
    )
    assert by_itself.returncode == 1
    assert "the agent did not start" in by_itself.stderr
    assert machine.program() == before
    # What it did not start with is not kept; what was kept before and does not work any more is named.
    choices = machine.data / "local.json"
    kept = json.loads(choices.read_text())
    assert kept["isolation"] == "auto"
    choices.write_text(json.dumps(kept | {"isolation": "container"}))
    again = machine.nsml("up", NSML_AGENT_ENGINE_SOCKET=str(machine.data / "none"))
    assert again.returncode == 1
    assert "--isolation auto    # instead of container, kept from before" in again.stderr


def test_settings_of_what_runs_are_not_changed_silently(machine: Machine) -> None:
    assert machine.up().returncode == 0
    refused = machine.up("--port", "1")
    assert refused.returncode == 6
    assert "nsml down --keep-sessions" in refused.stderr


@pytest.mark.parametrize(
    "arguments", [("--embedded", "--etcd", "x"), ("--port", "0"), ("--nonsense",)]
)
def test_a_wrong_command_line_starts_nothing(machine: Machine, arguments: tuple[str, ...]) -> None:
    assert machine.nsml("up", *arguments).returncode == 2
    assert machine.leftovers() == []


def test_strangers_and_secrets(machine: Machine) -> None:
    assert machine.up().returncode == 0
    server = machine.ready()["address"]
    unsigned = machine.nsml("ps", NSML_SERVER=server, NSML_CONFIG_DIR=str(machine.config / "none"))
    assert unsigned.returncode == 4, unsigned.stderr
    secret = (machine.data / "controlplane" / "admin.token").read_text().strip()
    for log in machine.data.glob("*.log"):
        assert secret not in log.read_text()
    for file in files_below(machine.data / "controlplane"):
        if file.name != "admin.token":
            with suppress(FileNotFoundError):
                assert secret.encode() not in file.read_bytes(), file
