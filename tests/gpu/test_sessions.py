"""Sessions of a real platform on a real GPU: who has it, until when, and in which parts.

The programs use the driver's own library, as those of `test_real_devices`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodeagent.probes.interface import Device
    from nodeagent.probes.nvml import NvmlProbe

HELD_BYTES = 256 << 20
GIB = 1 << 30
BEGINS = """
import ctypes, os, signal, subprocess, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        sys.exit(f"{name} failed: {code}")
device, context, memory, cores = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
def begin():
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
"""
HOLDS = f"""{BEGINS}
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[-1] != "detached":
    subprocess.Popen(["setsid", "--fork", sys.executable, __file__, "detached"])
begin()
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t({HELD_BYTES}))
print("holds", flush=True)
time.sleep(3600)
"""
FAULTS = (
    BEGINS
    + r"""
begin()
code = b".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry k() { .reg .b64 %a; .reg .b32 %b;"
code += b"mov.u64 %a, 64; mov.u32 %b, 1; st.global.u32 [%a], %b; ret; }\0"
module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
call("cuModuleLoadData", ctypes.byref(module), code)
call("cuModuleGetFunction", ctypes.byref(kernel), module, b"k")
call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
call("cuCtxSynchronize")
"""
)
TAKES_ALL = f"""{BEGINS}
begin()
call("cuDeviceGetAttribute", ctypes.byref(cores), 16, device)
count = 0
while not cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t({GIB})):
    count += 1
print("takes", cores.value, count, flush=True)
time.sleep(3600)
"""
SMALL = ("-c", "1", "--memory", "4G", "--grace", "1s")


@pytest.fixture
def pipes() -> Iterator[Path]:
    """A folder for the sockets of MPS, whose paths may not be long."""
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def platform(device: Device, pipes: Path) -> Iterator[Platform]:
    """With the machine's own devices; `device` skips where there are none."""
    mps = {"NSML_AGENT_MPS_FOLDER": str(pipes)}
    with Platform(simulate_gpus=0, options=["--embedded"], environment=mps) as running:
        wait_for(lambda: gpus(running), what="its devices are told")
        yield running


def gpus(platform: Platform) -> list[dict[str, Any]]:
    return platform.json("gpustat")["items"]


def state(platform: Platform, name: str) -> str:
    return next(one["state"] for one in platform.json("ps", "-a")["items"] if one["name"] == name)


def begun(platform: Platform, program: str, folder: Path, *options: str) -> str:
    code = write_program(folder, program)
    return platform.nsml("run", *SMALL, *options, "-o", "name", cwd=code).stdout.strip()


def printed(platform: Platform, name: str) -> list[str]:
    return platform.nsml("logs", name).stdout.splitlines()


def test_a_session_has_its_gpu_until_nothing_of_it_is_left(
    platform: Platform, probe: NvmlProbe, tmp_path: Path
) -> None:
    every = ("-g", str(len(gpus(platform))))
    first = begun(platform, HOLDS, tmp_path / "first", *every)
    wait_for(lambda: printed(platform, first) == ["holds"] * 2, what="both processes hold memory")
    second = begun(platform, FAULTS, tmp_path / "second", *every)
    uuid, *_ = (
        platform.nsml("sh", first, "--", "printenv", "CUDA_VISIBLE_DEVICES")
        .stdout.strip()
        .split(",")
    )

    def shown() -> dict[str, Any]:
        return next(one for one in gpus(platform) if one["uuid"] == uuid)

    wait_for(lambda: shown()["memory_used_bytes"] >= 2 * HELD_BYTES, what="its memory is shown")
    assert (shown()["sessions"], shown()["withheld"]) == ([first], None)
    processes = platform.json("top", first)["items"]
    pids = {one["node_pid"] for one in processes}
    assert len(pids) == 2
    for one in processes:
        assert shown()["index"] in {
            held["index"] for held in one["gpus"] if held["memory_bytes"] >= HELD_BYTES
        }
    assert state(platform, second) == "QUEUED"

    platform.nsml("stop", "-y", first)
    wait_for(lambda: state(platform, first) == "STOPPED", what="the first is over")
    assert not any(Path("/proc", str(pid)).exists() for pid in pids)
    wait_for(lambda: state(platform, second) == "FAILED", what="the second ran, and its fault")
    assert "cuCtxSynchronize failed: 7" in "".join(printed(platform, second))
    wait_for(lambda: shown()["memory_used_bytes"] < HELD_BYTES, what="nobody holds memory")
    [sample] = [one for one in probe.sample() if one.uuid == uuid]
    assert sample.processes == ()
    assert shown()["withheld"] is None


def test_mps_keeps_two_sessions_to_their_halves(
    platform: Platform, device: Device, pipes: Path, tmp_path: Path
) -> None:
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None or device.parent_uuid:
        pytest.skip("needs nvidia-cuda-mps-control and a whole GPU")
    environment = {
        **os.environ,
        "CUDA_MPS_PIPE_DIRECTORY": str(pipes),
        "CUDA_MPS_LOG_DIRECTORY": str(tmp_path),
    }
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    subprocess.run([control, "-d"], check=True, stdin=subprocess.DEVNULL, **quiet)
    try:
        both = [begun(platform, TAKES_ALL, tmp_path / one, "-g", "0.5") for one in "ab"]
        found = []
        for name in both:
            wait_for(lambda name=name: printed(platform, name), what=f"{name} has taken all")
            _, cores, count = printed(platform, name)[-1].split()
            found.append((int(cores), int(count)))
        assert found[0][0] == found[1][0]
        assert all(0 < count * GIB <= device.memory_bytes // 2 for _, count in found)
        assert all(one["withheld"] is None for one in gpus(platform))
        for name in both:
            platform.nsml("stop", "-y", name)
    finally:
        subprocess.run([control], input=b"quit\n", check=False, **quiet)
