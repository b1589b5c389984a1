"""The whole agent as a process over a driver that answers, fails and hangs as it is told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import grpc.aio
import pytest

from nodeagent.machine.devices import NO_ANSWER, VANISHED
from nsml.v1 import agents_pb2 as pb
from tests.integration.test_agent_process import PATIENCE_S, Node, python, until
from tests.nvml.library import FakeDriver, library_in
from tests.support.scripted_platform import ScriptedPlatform, assignment, session_id

S = session_id(1)
GPU0 = "gpu uuid=GPU-0 name=Fake-A memory=4000000000 used=10 minor=0 util=50"
GPU1 = "gpu uuid=GPU-1 name=Fake-A memory=4000000000 minor=1"
PATIENT_S = 2.0
"""For a driver that answers at once, on a busy machine."""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Programs that start from now on find it."""
    driver = FakeDriver(tmp_path)
    monkeypatch.setenv("FAKE_NVML", str(driver.script))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library_in(tmp_path).parent))
    driver.say(GPU0, GPU1)
    return driver


@pytest.fixture
async def node(driver: FakeDriver, tmp_path: Path) -> AsyncIterator[Node]:
    platform = ScriptedPlatform(heartbeat_s=0.5, patience_s=PATIENCE_S)
    server = grpc.aio.server()
    platform.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    config = tmp_path / "agent.toml"
    config.write_text(
        f'node = "n1"\nserver = "127.0.0.1:{port}"\ndata = "data"\n'
        "longest_backoff_s = 0.3\nsample_interval_s = 0.1\n"
    )
    node = Node(tmp_path / "data", config, platform)
    node.before = (
        "from nodeagent.machine.devices import DeviceWatch\n"
        f"DeviceWatch.__init__.__kwdefaults__['answers_within_s'] = {PATIENT_S}"
    )
    try:
        await node.start()
        yield node
    finally:
        driver.say(GPU0, GPU1)
        if node.process is not None and node.process.returncode is None:
            await platform.order()
            await until(lambda: not list((node.data / "replicas").iterdir()))
            await node.end()
        await server.stop(None)


def told(platform: ScriptedPlatform) -> dict[str, str]:
    """What was said last of each device."""
    return {one.uuid: one.withheld for one in platform.devices[-1].devices}


def half_of(uuid: str, *argv: str) -> pb.Assignment:
    order = assignment(S, *argv)
    order.device_uuids.append(uuid)
    order.resources.gpu_thousandths = 500
    return order


def processes_of(session: str) -> list[int]:
    """Pids of what carries the mark of the session's replica."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            environment = (place / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"NSML_REPLICA={session}.1.0".encode() in environment:
            found.append(int(place.name))
    return found


async def says(node: Node, condition: Callable[[dict[str, str]], object]) -> None:
    await node.platform.until(lambda: node.platform.devices and condition(told(node.platform)))


async def test_what_fails_vanishes_and_hangs_is_withheld_until_it_is_well(
    node: Node, driver: FakeDriver
) -> None:
    said = node.platform.registrations[0]
    assert [(one.uuid, one.model, one.simulated) for one in said.devices] == [
        ("GPU-0", "Fake-A", False),
        ("GPU-1", "Fake-A", False),
    ]
    driver.say(GPU0, GPU1, "driver version=550.54.14 cuda=12040")
    sent = node.platform.devices

    def versions() -> set[tuple[str, str]]:
        devices = sent[-1].devices if sent else ()
        return {(one.driver_version, one.cuda_version) for one in devices}

    await node.platform.until(lambda: versions() == {("550.54.14", "12.4")})
    driver.say(GPU0, GPU1 + " lost=1")
    await says(node, lambda devices: devices == {"GPU-0": "", "GPU-1": "GPU is lost"})
    driver.say(GPU0)
    await says(node, lambda devices: devices["GPU-1"] == VANISHED)
    driver.say(GPU0, GPU1, "hang")
    await says(node, lambda devices: set(devices.values()) == {NO_ANSWER})
    beats = node.platform.heartbeats
    await node.platform.until(lambda: node.platform.heartbeats > beats + 2)
    driver.say(GPU0, GPU1)
    await says(node, lambda devices: set(devices.values()) == {""})


async def test_an_agent_starts_while_its_driver_hangs(node: Node, driver: FakeDriver) -> None:
    await node.end()
    driver.say(GPU0, "hang")
    await node.start()
    said = node.platform.registrations[-1]
    assert not said.devices
    assert said.device_note == NO_ANSWER
    driver.say(GPU0)
    await says(node, lambda devices: devices == {"GPU-0": ""})


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process of nobody's session."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


async def test_whose_processes_are_on_a_device(
    node: Node, driver: FakeDriver, stranger: subprocess.Popen[bytes]
) -> None:
    """A session's own, also one that detached itself, are nobody else's; a stranger's are."""
    text = (
        "import os, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'],"
        " start_new_session=True)\n"
        "print(os.environ['NSML_GPU_SHARE'], os.environ['NSML_GPU_MEMORY_BYTES'],"
        " os.environ['CUDA_VISIBLE_DEVICES'])\n"
        "time.sleep(1000)\n"
    )
    await node.platform.order(half_of("GPU-0", *python(text)))
    await node.platform.until(lambda: node.platform.log(S).endswith(b"\n"))
    assert node.platform.log(S) == b"0.5 2000000000 GPU-0\n"
    own = processes_of(S)
    assert len(own) >= 2
    lines = [f"process gpu=0 pid={pid} memory=1" for pid in own]
    driver.say(GPU0, GPU1, *lines, f"process gpu=1 pid={stranger.pid} memory=1")
    await says(node, lambda devices: devices["GPU-1"].startswith("used by process "))
    assert str(stranger.pid) in told(node.platform)["GPU-1"]
    assert told(node.platform)["GPU-0"] == ""
    stranger.kill()
    await says(node, lambda devices: devices == {"GPU-0": "", "GPU-1": ""})
    await node.end()
    driver.say(GPU0, GPU1, *lines, f"process gpu=1 pid={os.getpid()} memory=1")
    await node.start()
    await says(node, lambda devices: devices["GPU-1"].startswith("used by process "))
    assert told(node.platform)["GPU-0"] == "", "what was adopted is its session's"


async def test_sessions_use_instances(node: Node, driver: FakeDriver) -> None:
    mig = "mig gpu=0 uuid=MIG-0 name=Fake-A-MIG-1g memory=1000000000 gi=1 ci=0"
    driver.say(GPU0 + " mig=1", mig, GPU1)
    await says(node, lambda devices: devices == {"MIG-0": "", "GPU-1": ""})
    last = node.platform.devices[-1].devices[0]
    assert (last.parent_uuid, last.memory_bytes) == ("GPU-0", 1_000_000_000)
    await node.platform.order(
        half_of("MIG-0", *python("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"))
    )
    await node.platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
    assert node.platform.log(S) == b"MIG-0\n"
