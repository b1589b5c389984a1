"""The probe, the watch and the occupants on a real GPU, with a real program on it.

`python -m pytest -rs tests/gpu`, as the user who runs the agent. The program uses the driver's own
library (libcuda.so.1), so that nothing else needs to be installed.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from nodeagent.machine.devices import DeviceWatch
from nodeagent.machine.foreign_processes import Occupants, Replicas, read_process
from nodeagent.probes.interface import Device, DeviceSample
from nodeagent.probes.nvml import NvmlProbe
from nodeagent.runtimes.interface import ReplicaFacts
from nsml.common.clock import SystemClock, in_own_thread

HELD_BYTES = 256 << 20
MARK = "0123456789abcdef0-1-0"

PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        sys.exit(f"{name} failed: {code}")
device, context, memory, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
call("cuInit", 0)
call("cuDeviceGetCount", ctypes.byref(count))
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(int(sys.argv[1])))
print(count.value, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def computing(device: Device) -> Iterator[subprocess.Popen[str]]:
    """A program with memory on the device, and the mark of a session."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        pytest.skip(f"needs the driver's libcuda: {error}")
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(HELD_BYTES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": device.uuid, "NSML_REPLICA": MARK},
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        if not said:
            pytest.skip("CUDA does not work here")
        assert said == "1", "it sees its own device only"
        yield process
        process.kill()


def sample_of(probe: NvmlProbe, device: Device) -> DeviceSample:
    return next(one for one in probe.sample() if one.uuid == device.uuid)


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.1)


def test_what_is_told_of_each_device(probe: NvmlProbe) -> None:
    found = probe.devices()
    print(found)
    for device in found.devices:
        assert device.uuid.startswith("MIG-" if device.parent_uuid else "GPU-")
        assert device.memory_bytes > 1 << 30
        assert not device.simulated
        if device.minor is not None and Path("/dev/nvidiactl").exists():
            assert Path(f"/dev/nvidia{device.minor}").exists()
        assert all(Path(node).exists() for node in device.nodes)


def test_the_same_again(probe: NvmlProbe) -> None:
    first = probe.devices()
    assert [one.uuid for one in first.devices] == [one.uuid for one in probe.devices().devices]
    assert [one.uuid for one in probe.sample()] == [one.uuid for one in first.devices]


def test_readings_are_sound(probe: NvmlProbe, device: Device) -> None:
    sample = sample_of(probe, device)
    print(sample)
    assert sample.memory_used_bytes is None or sample.memory_used_bytes <= device.memory_bytes
    assert sample.temperature_celsius is None or 0 < sample.temperature_celsius < 120
    assert sample.power_watts is None or 0 < sample.power_watts < 2000
    assert sample.clock_mhz is None or 0 < sample.clock_mhz < 10_000


def test_used_memory_is_what_nvidia_smi_shows(probe: NvmlProbe, device: Device) -> None:
    smi = shutil.which("nvidia-smi")
    if smi is None or device.parent_uuid:
        pytest.skip("needs nvidia-smi and a whole GPU")
    query = [smi, "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", device.uuid]
    shown = subprocess.run(query, check=True, capture_output=True, text=True).stdout
    used = sample_of(probe, device).memory_used_bytes
    assert used is not None
    assert abs(used / 2**20 - int(shown)) <= 1


def test_a_programs_memory_is_seen(
    probe: NvmlProbe, device: Device, computing: subprocess.Popen[str]
) -> None:
    used = sample_of(probe, device).memory_used_bytes
    assert used is not None
    assert used >= HELD_BYTES


def test_whose_a_program_is(
    probe: NvmlProbe, device: Device, computing: subprocess.Popen[str]
) -> None:
    sample = sample_of(probe, device)
    print(sample.processes)
    if computing.pid not in {one.pid for one in sample.processes}:
        pytest.skip("the driver tells no processes of this pid namespace")
    ours = Replicas(marks=frozenset({MARK}))
    assert Occupants().strangers([sample], ours, 0) == {}
    assert str(computing.pid) in Occupants().strangers([sample], Replicas(), 0)[device.uuid]
    computing.kill()
    until(lambda: read_process(Path("/proc"), computing.pid) is None)
    until(lambda: computing.pid not in {one.pid for one in sample_of(probe, device).processes})


async def test_the_watch_offers_what_is_well(probe: NvmlProbe) -> None:
    async def none() -> Sequence[ReplicaFacts]:
        return []

    watch = DeviceWatch(
        probe,
        replicas=none,
        shares=dict,
        before_reading=lambda _: None,
        changed=lambda: None,
        clock=SystemClock(),
        run_long=in_own_thread,
        interval_s=0.1,
    )
    task = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(60):
            await watch.known()
    finally:
        task.cancel()
        await asyncio.wait({task})
    print(watch.message())
    assert watch.message().devices
    assert len(watch.samples()) == len(watch.message().devices)
