"""A control plane whose folder was put back from a copy kills nothing that its node runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.integration.machine import Machine, machine, until

__all__ = ["machine"]


def done(machine: Machine, *words: str, **settings: Any) -> str:
    """What a command says that must succeed."""
    answer = machine.nsml(*words, **settings)
    assert answer.returncode == 0, answer.stderr
    return str(answer.stdout)


def shown(machine: Machine) -> dict[str, Any]:
    [node] = json.loads(done(machine, "node", "ls", "-j"))["items"]
    return dict(node)


def sessions(machine: Machine) -> dict[str, str]:
    items = json.loads(done(machine, "ps", "-a", "-j"))["items"]
    return {item["name"].rpartition("/")[2]: item["state"] for item in items}


def test_what_the_copy_does_not_know_runs_until_somebody_says_so(
    machine: Machine, tmp_path: Path
) -> None:
    code, copy = tmp_path / "code", tmp_path / "copy"
    code.mkdir()
    folder = machine.data / "controlplane"
    sleep = ("run", "--argv", "--", "/bin/sleep", "600")
    done(machine, "up", "--embedded", "--simulate-gpus", "3")
    done(machine, *sleep, cwd=code)
    until(lambda: sessions(machine) == {"1": "RUNNING"})
    done(machine, "down", "--keep-sessions")
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("socket"))
    done(machine, "up")
    done(machine, *sleep, cwd=code)
    until(lambda: sessions(machine) == {"1": "RUNNING", "2": "RUNNING"})
    done(machine, "down", "--keep-sessions")
    shutil.rmtree(folder)
    shutil.move(copy, folder)

    done(machine, "up")
    until(lambda: shown(machine)["state"] == "HELD")
    hold = shown(machine)["hold"]
    assert len(hold["replicas"]) == 1
    [foreign] = hold["foreign"]
    assert foreign["replica"] == hold["replicas"][0]
    assert foreign["session"].endswith("/None/2")
    assert len(foreign["device_uuids"]) == 1
    assert foreign["started_at"]
    assert sessions(machine) == {"1": "RUNNING"}
    lost = machine.data / "agent" / "replicas" / hold["replicas"][0]
    assert not (lost / "exit.json").exists(), "the program that nobody knows was ended"
    done(machine, *sleep, cwd=code)
    assert sessions(machine) == {"1": "RUNNING", "2": "QUEUED"}

    name = shown(machine)["name"]
    refused = machine.nsml("node", "resume", name)
    assert refused.returncode != 0
    assert hold["replicas"][0] in refused.stderr
    done(machine, "node", "resume", name, "-y")
    until(lambda: shown(machine)["state"] == "READY")
    until(lambda: sessions(machine) == {"1": "RUNNING", "2": "RUNNING"})
    until(lambda: not lost.exists())
    done(machine, "down", "-y")
    assert machine.leftovers() == []
