"""The version before beside this one: its real code, in the same environment.

`tools/keep_version.py` made `previous.tar.xz`. It is installed with the programs that it names, into
an environment that shares today's dependencies and nothing of today's code.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sysconfig
import tarfile
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.local import processes
from cli.local.ports import Held
from controlplane.stored import etcd_codec
from nsml._version import VERSION
from tests.e2e.programs import write_program
from tests.e2e.test_submissions import EVALUATION, LOADER
from tests.integration.machine import Machine, machine, until
from tests.integration.test_restored_copy import done, shown
from tests.upgrade.plain_values import plain

__all__ = ["machine"]

PREVIOUS = "0.1.0"
CODE = """
import nsml, time
n = 0
while True:
    nsml.report(step=n, loss=1 / (n + 1))
    print("line", n, flush=True)
    n += 1
    time.sleep(0.2)
"""

SUBMITTED = """
import argparse, pathlib
import nsml

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="train")
parser.add_argument("--pause", type=int, default=0)
config = parser.parse_args()


def save(folder):
    pathlib.Path(folder, "weight").write_text("3")


def load(folder):
    global weight
    weight = float(pathlib.Path(folder, "weight").read_text())


def infer(data):
    return [(1.0, weight * one) for one in data]


nsml.bind(save=save, load=load, infer=infer)
if config.pause:
    nsml.paused(scope=locals())
nsml.save("best")
"""


def same(before: Any, now: Any) -> bool:
    """Whether all that was written before is read now, beside what there is of later versions."""
    if isinstance(before, dict):
        return all(name in now and same(one, now[name]) for name, one in before.items())
    if isinstance(before, list):
        return len(before) == len(now) and all(map(same, before, now))
    return bool(before == now)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of the version before, as an installer makes them."""
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(Path(__file__).parent / "previous.tar.xz") as archive:
        archive.extractall(folder / "code", filter="data")
    venv.create(folder / "venv", symlinks=True)
    paths = {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
    # A line of a .pth file adds a folder, not what the .pth files in that folder name: today's code.
    found = f"{folder / 'code'}\n{sysconfig.get_path('purelib')}\n"
    Path(sysconfig.get_path("purelib", vars=paths), "previous.pth").write_text(found)
    scripts = Path(sysconfig.get_path("scripts", vars=paths))
    named = tomllib.loads((folder / "code/pyproject.toml").read_text())["project"]["scripts"]
    for name, entry in named.items():
        module, function = entry.split(":")
        text = f"#!{scripts}/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        (scripts / name).write_text(text)
        (scripts / name).chmod(0o755)
    return scripts


@pytest.fixture(scope="module")
def old(programs: Path) -> dict[str, Any]:
    """What makes a command one of the version before."""
    return {"program": (str(programs / "nsml"),)}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "main.py").write_text(CODE)
    return folder


@pytest.fixture
def port() -> Iterator[str]:
    """A port for the version before, which gives up where another program was first to listen."""
    with Held() as held:
        yield str(held.free())


def sessions(machine: Machine, **version: Any) -> dict[str, str]:
    items = json.loads(done(machine, "ps", "-a", "-j", **version))["items"]
    return {item["name"].partition("/")[2]: item["state"] for item in items}


def lines(machine: Machine, name: str) -> list[str]:
    return done(machine, "logs", name).split("\n")[:-1]


def end(machine: Machine, name: str) -> None:
    """Stop one program as its unit would."""
    program = processes.recorded(machine.data / f"{name}.pid")
    assert program is not None
    os.kill(program.pid, signal.SIGTERM)
    until(lambda: not program.is_alive)


def test_records_of_the_version_before_are_read(programs: Path) -> None:
    command = [programs / "python", Path(__file__).parent / "write_records.py"]
    written = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True
    ).stdout
    records = [json.loads(line) for line in written.splitlines()]
    assert [name for name, *_ in records] == ["session", "node", "allocation"]
    for name, before, data in records:
        now = plain(getattr(etcd_codec, f"decode_{name}")(bytes.fromhex(data)))
        assert same(before, json.loads(json.dumps(now))), f"{now} was {before}"


def test_a_platform_is_upgraded_under_its_sessions(
    machine: Machine, old: dict[str, Any], programs: Path, code: Path, port: str
) -> None:
    assert done(machine, "--version", **old).split() == ["nsml", PREVIOUS]
    done(machine, "up", "--embedded", "--simulate-gpus", "2", "--port", port, **old)
    done(machine, "run", "--argv", "-g", "1", "--", "/bin/echo", "before", cwd=code, **old)
    until(lambda: sessions(machine, **old) == {"None/1": "SUCCEEDED"})
    done(machine, "run", "-g", "1", cwd=code, **old)
    until(lambda: sessions(machine, **old).get("None/2") == "RUNNING")

    # An old agent and old clients with the new control plane, on the old data.
    end(machine, "controlplane")
    done(machine, "up")
    until(lambda: shown(machine)["state"] == "READY")
    assert done(machine, "logs", "None/1") == "before\n"
    assert sessions(machine, **old) == {"None/1": "SUCCEEDED", "None/2": "RUNNING"}
    done(machine, "run", "--argv", "-g", "1", "--", "/bin/echo", "mixed", cwd=code, **old)
    until(lambda: sessions(machine).get("None/3") == "SUCCEEDED")
    assert done(machine, "logs", "None/3", **old) == "mixed\n"

    # The agent becomes the new one, and takes over shim and SDK of before.
    end(machine, "agent")
    done(machine, "up")
    until(lambda: shown(machine)["agent_version"] == VERSION)
    count = len(lines(machine, "None/2"))
    until(lambda: len(lines(machine, "None/2")) > count + 3)
    told = lines(machine, "None/2")
    assert told == [f"line {number}" for number in range(len(told))]
    steps = [item["step"] for item in json.loads(done(machine, "events", "None/2", "-j"))["items"]]
    assert steps == list(range(len(steps)))
    assert len(steps) >= count
    done(machine, "stop", "None/2")
    until(lambda: sessions(machine)["None/2"] == "STOPPED")

    # The old one refuses what the new one has written, and harms nothing.
    done(machine, "down", "--keep-sessions")
    refused = machine.nsml("up", **old)
    assert refused.returncode != 0
    assert "another version" in refused.stderr
    settings = machine.data / "old.toml"
    settings.write_text(f'data = "{machine.data}/controlplane"\naddress = "127.0.0.1:0"\n')
    ended = subprocess.run(
        [programs / "nsml-controlplane", "--config", settings],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert "written by a newer version" in ended.stderr
    done(machine, "up")
    assert sessions(machine)["None/1"] == "SUCCEEDED"
    done(machine, "down", "-y")


@pytest.mark.long("a platform, its upgrade, and three sessions")
def test_a_step_of_a_submission_starts_on_no_agent_of_the_version_before(
    machine: Machine, old: dict[str, Any], tmp_path: Path, port: str
) -> None:
    """It would give the step a network, let users in, and send what it writes."""
    done(machine, "up", "--embedded", "--simulate-gpus", "2", "--port", port, **old)
    end(machine, "controlplane")
    done(machine, "up")
    until(lambda: shown(machine)["state"] == "READY")
    data = tmp_path / "digits"
    (data / "test").mkdir(parents=True)
    (data / "test/test_data").write_text("1\n2\n")
    (data / "test/test_label").write_text("3\n6\n")
    (data / "data_loader.py").write_text(LOADER)
    (tmp_path / "evaluation.py").write_text(EVALUATION)
    done(
        machine, "dataset", "push", "-l", "-e", str(tmp_path / "evaluation.py"), "digits", str(data)
    )
    code = write_program(tmp_path / "program", SUBMITTED)
    run = ("run", "-g", "0", "-d", "digits", "--wait", "-o", "name")
    trained = done(machine, *run, cwd=code).split()[0]
    made = done(machine, "submit", "--no-wait", trained).split()[0]

    def submission() -> dict[str, Any]:
        return dict(json.loads(done(machine, "submission", "info", made, "-j")))

    def waiting() -> str:
        return str(submission()["steps"][0]["waiting"])

    until(lambda: "without a network" in waiting())
    every = json.loads(done(machine, "ps", "-a", "-j"))["items"]
    assert [one["name"] for one in every] == [trained], "no session of the step is made"

    end(machine, "agent")
    done(machine, "up")
    until(lambda: shown(machine)["agent_version"] == VERSION)
    until(lambda: submission()["state"] in {"SCORED", "FAILED"})
    assert (submission()["state"], submission()["score"]) == ("SCORED", 1.0)
    done(machine, "down", "-y")


@pytest.mark.every_time
def test_a_new_agent_and_new_clients_with_the_version_before(
    machine: Machine, old: dict[str, Any], code: Path, port: str
) -> None:
    done(machine, "up", "--embedded", "--simulate-gpus", "2", "--no-agent", "--port", port, **old)
    done(machine, "up", "--simulate-gpus", "2")  # what runs is left alone: the agent is ours
    until(lambda: shown(machine)["state"] == "READY")
    assert shown(machine)["agent_version"] == VERSION
    done(machine, "run", "-g", "1", cwd=code)
    until(lambda: sessions(machine) == {"None/1": "RUNNING"})
    until(lambda: len(lines(machine, "None/1")) > 3)
    assert json.loads(done(machine, "events", "None/1", "-j"))["items"]
    mine = json.loads(done(machine, "ps", "-j"))["items"][0]
    assert done(machine, "ps", "--project", mine["project"], "-o", "name") == f"{mine['name']}\n"
    assert done(machine, "ps", "--project", "another", "-o", "name") == ""
    refused = machine.nsml("admin", "backup", str(code.parent / "backups"))
    assert refused.returncode == 1
    assert "does not know" in refused.stderr, "what the other side does not have is refused by name"
    done(machine, "stop", "None/1")
    until(lambda: sessions(machine) == {"None/1": "STOPPED"})
    done(machine, "down", "-y")
