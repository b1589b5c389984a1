"""Sessions that ask for the host network, with a real agent as root on a host of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nodeagent.config import METADATA_ADDRESSES
from tests.e2e.hosts import Host, engine_on, two_hosts
from tests.e2e.programs import wait_for, write_program
from tests.engines import required_image
from tests.support.in_process import Platform

METADATA = METADATA_ADDRESSES[0]
LISTENER = """\
import os, socket, sys, time
ends = [socket.create_server((host, 0)) for host in sys.argv[1:]]
print(*(end.getsockname()[1] for end in ends), flush=True)
parent = os.getppid()
for end in ends:
    end.setblocking(False)
while os.getppid() == parent:
    for end in ends:
        try:
            end.accept()[0].sendall(b"here")
        except BlockingIOError:
            time.sleep(0.01)
"""
"""Answers at a port of each address, which it prints, for as long as its parent lives."""
ASKS = """\
import json, os, socket, sys

def answer(host, port):
    try:
        with socket.create_connection((host, port), 5) as end:
            return end.recv(10).decode()
    except OSError as error:
        return type(error).__name__

targets = json.loads(sys.argv[1])
found = [answer(*target) for target in targets]
interfaces = sorted(name for _, name in socket.if_nameindex())
print(json.dumps([found, interfaces, os.environ["NSML_PARALLEL_WORLD"], os.getuid()]))
"""
CUT_OFF = """\
import pathlib, time
import nsml
nsml.report(summary=True, step=1, loss=0.5)
nsml.save("first", save_fn=lambda path: pathlib.Path(path, "model").write_text("weights"))
pathlib.Path("made").write_text("made")
nsml.artifact("made", "made")
print("it runs", flush=True)
time.sleep(600)
"""
"""Uses all that the agent does for it, and stays."""
INTERFACES = "import json, socket; print(json.dumps([name for _, name in socket.if_nameindex()]))"


@pytest.fixture
def host() -> Iterator[Host]:
    if shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin") is None:
        pytest.skip("no program nft (package nftables)")
    with two_hosts() as (one, _):
        # a metadata service is near: this host answers at its address
        address = ["ip", "-n", one.namespace, "address", "add", METADATA, "dev", "lo"]
        subprocess.run(address, check=True)
        yield one


@pytest.fixture
def targets(host: Host) -> Iterator[list[tuple[str, int]]]:
    """What answers on the host: at its loopback, at a metadata service's address."""
    addresses = ["127.0.0.1", METADATA]
    command = [*host.enter, sys.executable, "-c", LISTENER, *addresses]
    with ExitStack() as stack:
        listener = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        stack.callback(listener.wait)
        stack.callback(listener.kill)
        assert listener.stdout is not None
        ports = [int(word) for word in listener.stdout.readline().split()]
        found = list(zip(addresses, ports, strict=True))
        asks = [*host.enter, sys.executable, "-c", ASKS, json.dumps(found)]
        by_host = subprocess.run(
            asks, env={"NSML_PARALLEL_WORLD": ""}, capture_output=True, text=True, check=True
        )
        assert json.loads(by_host.stdout)[0] == ["here", "here"], "the host's own programs"
        yield found


def found_by(platform: Platform, code: Path, targets: list[tuple[str, int]], *flags: str) -> list:
    """What a session finds: the answers, its interfaces, where it is told to be reached, its uid."""
    submit = ("run", "-g", "0", "-o", "name", *flags, "--", json.dumps(targets))
    name = platform.nsml(*submit, cwd=code, timeout_s=120).stdout.strip()

    def ended() -> dict | None:
        item = next(one for one in platform.json("ps", "-a")["items"] if one["name"] == name)
        return item if item["ended_at"] else None

    item = wait_for(ended, timeout_s=120, what=f"{name} ended")
    printed = platform.nsml("logs", name).stdout
    assert item["state"] == "SUCCEEDED", (item["end"], printed)
    assert item["network"] == (flags[1] if flags else None)
    return json.loads(printed.splitlines()[-1])


@pytest.fixture(
    params=[
        "namespace",
        pytest.param("container", marks=[pytest.mark.variant]),
    ]
)
def level(request: pytest.FixtureRequest, host: Host) -> Iterator[dict[str, str]]:
    """Settings of an agent whose sessions are processes, or containers of an engine on the host."""
    settings = {"NSML_AGENT_ISOLATION": request.param}
    if request.param == "namespace":
        yield settings
        return
    image = required_image()
    with engine_on(host, image) as socket:
        settings |= {"NSML_AGENT_ENGINE_SOCKET": str(socket), "NSML_AGENT_DEFAULT_IMAGE": image}
        yield settings


@pytest.mark.long("a platform that is started twice, with either policy")
def test_the_host_network_is_for_who_asks_where_the_node_allows_it(host, level, targets, tmp_path):
    code = write_program(tmp_path / "code", ASKS)
    settings = {**level, "NSML_AGENT_HOST": host.address}
    asked = ("--network", "host")
    with Platform(simulate_gpus=1, environment=settings, by=host.enter) as platform:
        refused = platform.nsml("run", "-g", "0", *asked, cwd=code, check=False)
        assert refused.returncode == 7, refused.stderr
        assert "no node allows the host network" in refused.stderr
        assert "host_network is never" in refused.stderr
        assert "try: nsml run ...    # without --network" in refused.stderr
        answers, interfaces, _, uid = found_by(platform, code, targets)
        assert "here" not in answers
        assert set(interfaces) <= {"eth0", "lo"}
        own_interfaces = interfaces

        platform.nsml("down", "-y")
        platform.environment["NSML_AGENT_HOST_NETWORK"] = "on-request"
        platform.up()
        [node] = platform.json("node", "ls")["items"]
        assert node["networks"] == ["own", "host", "none"]
        answers, interfaces, world, asking_uid = found_by(platform, code, targets, *asked)
        assert answers[0] == "here", "the host's loopback"
        assert answers[1] != "here", "no session reaches a metadata service"
        assert set(interfaces) - {"eth0", "lo"}, "those of the host"
        assert world == host.address
        assert asking_uid == uid != os.getuid()
        for flags in ((), ("--network", "own")):
            answers, interfaces, _, _ = found_by(platform, code, targets, *flags)
            assert "here" not in answers
            assert interfaces == own_interfaces
        command = platform.nsml("command", "@last").stdout
        assert "--network own" in command
        answers, interfaces, _, _ = found_by(platform, code, targets, "--network", "none")
        assert "here" not in answers
        assert interfaces == ["lo"]
        works_without_a_network(platform, tmp_path)


def works_without_a_network(platform: Platform, tmp_path: Path) -> None:
    """All that goes through its node's agent goes on: reports, saves, artifacts, output, programs beside it."""
    code = write_program(tmp_path / "cut off", CUT_OFF)
    flags = ("-g", "0", "--network", "none", "-o", "name")
    name = platform.nsml("run", *flags, cwd=code, timeout_s=120).stdout.strip()

    def is_kept() -> bool:
        [saved] = platform.json("model", "ls", name)["items"] or [{"state": ""}]
        [made] = platform.json("artifact", "ls", name)["items"] or [{"state": ""}]
        return (saved["state"], made["state"]) == ("DURABLE", "DURABLE")

    wait_for(is_kept, timeout_s=60, what="what it saved is durable")
    beside = platform.nsml("sh", name, "--", "python", "-c", INTERFACES).stdout
    assert json.loads(beside) == ["lo"]
    assert "it runs" in platform.nsml("logs", name).stdout
    item = next(one for one in platform.json("ps")["items"] if one["name"] == name)
    assert item["summary"]["loss"] == 0.5
    platform.nsml("stop", name)
