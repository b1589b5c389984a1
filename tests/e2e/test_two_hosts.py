"""`examples/distributed` on two hosts that share no network but a cable, joined over TLS."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.platform import ROOT
from tests.e2e.hosts import Host, engine_on, two_hosts
from tests.e2e.nemesis import ENDED
from tests.e2e.platforms import invitation, join_second
from tests.e2e.programs import wait_for
from tests.engines import required_image
from tests.support.in_process import Platform
from tests.support.said import last_line
from tests.support.wheels import repacked

DISTRIBUTED = ROOT / "examples/distributed"


@pytest.fixture
def code(reducer: str, tmp_path: Path) -> Path:
    """The example; for gloo it requires torch, of which there must be a small wheel at hand."""
    folder = shutil.copytree(DISTRIBUTED, tmp_path / "code")
    if reducer == "gloo":
        command = [sys.executable, "-m", "pip", "index", "versions", "--no-index", "torch"]
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        found = re.match(r"torch \((\S+\+cpu)\)", listed)
        if not found:
            pytest.skip("no wheel of torch for CPUs in the folders that pip is configured with")
        with (folder / "requirements.txt").open("a") as requirements:
            requirements.write(f"torch=={found[1]}\n")
    return folder


@pytest.fixture
def wheels(code: Path, tmp_path: Path) -> Iterator[Path]:
    """What the code requires, for agents that reach no package index; nor need the tests reach one."""
    folder = tmp_path / "wheels"
    repacked("numpy", folder)
    further = set((code / "requirements.txt").read_text().split()) - {"numpy"}
    if further:
        command = [sys.executable, "-m", "pip", "download", "-q", "-d", str(folder), *further]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"pip download: {last_line(done.stderr)}"
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    with two_hosts() as made:
        yield made


def trained(platform: Platform, code: Path, reducer: str) -> None:
    """Sees the example train on both nodes, the replicas with one another."""
    platform.nsml("dataset", "push", "digits", str(ROOT / "examples/digits/data"))
    command = ("run", "-o", "name", "-d", "digits", "-g", "1", "--nodes", "2")
    name = platform.nsml(*command, "-a", "--epochs 3", cwd=code).stdout.strip()

    def ended() -> dict | None:
        item = platform.json("ps", "-a")["items"][0]
        return item if item["state"] in ENDED else None

    item = wait_for(ended, timeout_s=300, what=f"{name} ended")
    logs = [platform.nsml("logs", name, "--rank", rank, check=False).stdout for rank in "01"]
    assert item["state"] == "SUCCEEDED", (item.get("end"), logs)
    assert len({replica["node"] for replica in item["replicas"]}) == 2
    for rank, text in enumerate(logs):
        assert f"rank {rank} of 2, {reducer}\n" in text
    digests = [re.findall(r"all 2 replicas hold the same weights, (\w+)", text) for text in logs]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 1


@pytest.mark.parametrize(
    "reducer",
    # Torch is downloaded once and installed on both: a minute of two processors.
    ["ring", pytest.param("gloo", marks=pytest.mark.variant)],
)
@pytest.mark.long("two agents, and packages of numpy, or of torch, on each")
def test_processes_of_two_hosts_meet(hosts, code, reducer, wheels):
    one, other = hosts
    # the first agent reaches its control plane on the loopback: where others reach it must be said
    offline = {
        "PIP_NO_INDEX": "1",
        "PIP_COMPILE": "0",  # torch has thousands of modules, of which few are used
        "PIP_FIND_LINKS": str(wheels),
        "NSML_AGENT_HOST": one.address,
        "NSML_AGENT_ISOLATION": "namespace",
    }
    listening = ["--listen", f"{one.address}:0"]
    with Platform(
        simulate_gpus=1, options=listening, environment=offline, by=one.enter
    ) as platform:
        try:
            alone = {"NSML_AGENT_HOST": ""}
            join_second(platform, invitation(platform), by=other.enter, environment=alone)
            told = {node["host"] for node in platform.json("node", "ls")["items"]}
            assert told == {one.address, other.address}
            trained(platform, code, reducer)
        finally:
            second = str(platform.folder / "second")
            platform.nsml("down", "-y", "--data", second, check=False, timeout_s=120)


@pytest.mark.long("two engines, each of which loads the image")
@pytest.mark.variant
def test_containers_of_two_hosts_meet_where_that_is_allowed(hosts):
    image = required_image()
    one, other = hosts
    with (
        engine_on(one, image) as here,
        engine_on(other, image) as there,
    ):
        settings = {
            "NSML_AGENT_HOST": one.address,
            "NSML_AGENT_ISOLATION": "container",
            "NSML_AGENT_DEFAULT_IMAGE": image,
            "NSML_AGENT_ENGINE_SOCKET": str(here),
        }
        listening = ["--listen", f"{one.address}:0"]
        with Platform(
            simulate_gpus=1, options=listening, environment=settings, by=one.enter
        ) as platform:
            gang = ("run", "--no-code", "--nodes", "2", "-g", "0", "-c", "0.5", "--memory", "100M")
            refused = platform.nsml(*gang, "--argv", "--", "true", check=False)
            assert refused.returncode == 7, refused.stderr
            assert "no node gives gangs a network" in refused.stderr
            platform.nsml("down", "-y")
            platform.environment["NSML_AGENT_GANG_NETWORK"] = "host"
            platform.up()
            try:
                alone = {"NSML_AGENT_HOST": "", "NSML_AGENT_ENGINE_SOCKET": str(there)}
                join_second(platform, invitation(platform), by=other.enter, environment=alone)
                trained(platform, DISTRIBUTED, "ring")
                check_only_gangs_are_on_the_network(platform)
            finally:
                second = str(platform.folder / "second")
                platform.nsml("down", "-y", "--data", second, check=False, timeout_s=120)


def check_only_gangs_are_on_the_network(platform: Platform) -> None:
    """A session of one replica has the loopback and nothing else."""
    lists = ("--argv", "--", "ls", "/sys/class/net")
    platform.nsml("run", "--no-code", "-g", "0", "--wait", *lists, timeout_s=120)
    name = platform.json("ps", "-a")["items"][0]["name"]
    assert platform.nsml("logs", name).stdout.split() == ["lo"]
