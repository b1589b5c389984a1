"""The units of deploy/ are what systemd takes, and what `nsml join --systemd` writes."""

import functools
import shutil
import subprocess
from pathlib import Path

import pytest

from cli.local.units import AGENT_UNIT, REPLICAS, REPLICAS_UNIT, agent_unit

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here"
)


def verified(unit: Path) -> str:
    answer = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line for line in answer.stderr.splitlines() if unit.name in line]
    return "\n".join(line for line in lines if not is_of_later_systemd(line))


def is_of_later_systemd(line: str) -> bool:
    """Before 254 it says that it passes over this one, which the agent expects of it."""
    return "'DelegateSubgroup'" in line and systemd_version() < 254


@functools.cache
def systemd_version() -> int:
    """Of its first line: systemd 252 (252.38-1)."""
    said = subprocess.check_output(["systemd-analyze", "--version"], text=True, timeout=60)
    return int(said.split()[1])


def test_the_units_in_deploy_are_those_that_join_writes() -> None:
    assert (UNITS / REPLICAS_UNIT).read_text(encoding="utf-8") == REPLICAS
    shown = (UNITS / AGENT_UNIT).read_text(encoding="utf-8")
    assert shown == agent_unit(["/opt/nsml/bin/nsml-agent"], Path("/var/lib/nsml-node/agent.toml"))


def test_sessions_outlive_what_systemd_does() -> None:
    lines = (UNITS / AGENT_UNIT).read_text(encoding="utf-8").splitlines()
    assert {"KillMode=process", "OOMPolicy=continue", "Restart=always"} <= {*lines}
    assert {"Delegate=yes", "DelegateSubgroup=agent"} <= {*lines}
    assert f"Environment=NSML_AGENT_REPLICAS_UNIT={REPLICAS_UNIT}" in lines
    walls = ("ProtectSystem=", "PrivateTmp=", "RestrictNamespaces=", "SystemCallFilter=")
    assert not [line for line in lines if line.startswith((*walls, "MemoryDenyWriteExecute="))]


def test_what_systemd_keeps_by_groups_does_not_hold_for_sessions() -> None:
    """They run in the group of that unit, so that the agent's can be started again."""
    lines = (UNITS / REPLICAS_UNIT).read_text(encoding="utf-8").splitlines()
    assert {"Delegate=yes", "KillMode=process", "OOMPolicy=continue"} <= {*lines}
    assert "TasksMax=infinity" in lines
    walls = ("PrivateDevices=", "DeviceAllow=", "DevicePolicy=", "ProtectClock=", "IPAddress")
    assert not [line for line in lines if line.startswith((*walls, "MemoryMax=", "User="))]


@needs_systemd
@pytest.mark.parametrize("name", sorted(file.name for file in UNITS.glob("*.service")))
def test_systemd_takes_each_unit(name: str, tmp_path: Path) -> None:
    """With programs that are there: systemd looks for them."""
    text = (UNITS / name).read_text(encoding="utf-8")
    start = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    unit = tmp_path / name
    unit.write_text(text.replace(start, "ExecStart=/bin/true"), encoding="utf-8")
    assert verified(unit) == ""
    broken = tmp_path / f"broken-{name}"
    broken.write_text(unit.read_text(encoding="utf-8") + "KillMode=sometimes\n", encoding="utf-8")
    assert verified(broken), "or nothing is verified at all"


@needs_systemd
def test_systemd_takes_folders_with_blanks_and_percents(tmp_path: Path) -> None:
    program = tmp_path / "a folder 100%$HOME" / "nsml-agent"
    program.parent.mkdir()
    program.symlink_to("/bin/true")
    unit = tmp_path / AGENT_UNIT
    unit.write_text(agent_unit([str(program)], program.parent / "agent.toml"), encoding="utf-8")
    assert verified(unit) == ""
