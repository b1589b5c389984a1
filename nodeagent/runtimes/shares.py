"""Variables of a program for its share of each GPU, and how MPS enforces it.

Without MPS a share is information only: programs that share a GPU see all of it, take turns on it, and may
use up its memory for one another. As a client of MPS (Multi-Process Service: the control daemon of
CUDA, started by an administrator) a program cannot allocate more than its share of the memory, nor
use more than its share of the multiprocessors.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.runtimes.interface import Mount, NodeRefused

if TYPE_CHECKING:
    from nodeagent.runtimes.interface import ReplicaSpec

MPS = "/run/nvidia-mps"
"""Path of the MPS pipes in a replica with a root of its own."""

_PID_FILE = "nvidia-cuda-mps-control.pid"
_INSTANCE = "MIG-"


def share_variables(spec: ReplicaSpec) -> dict[str, str]:
    """Return variables of the replica's share of each GPU; empty without GPUs."""
    if not spec.devices:
        return {}
    memory = min(device.memory_bytes for device in spec.devices)
    variables = {"NSML_GPU_SHARE": f"{spec.device_share:g}"}
    if memory:
        variables["NSML_GPU_MEMORY_BYTES"] = str(int(memory * spec.device_share))
    return variables


def is_kept_by_mps(spec: ReplicaSpec) -> bool:
    """Whether MPS is to enforce the replica's share: a part of real GPUs, none of them MIG's."""
    real = [
        device
        for device in spec.devices
        if not device.simulated and not device.uuid.startswith(_INSTANCE)
    ]
    return spec.device_share < 1 and bool(real) and len(real) == len(spec.devices)


def mps_variables(spec: ReplicaSpec, pipes: str) -> dict[str, str]:
    """Return variables that make a program a client of the MPS at `pipes`, within its share."""
    mebibytes = [int(one.memory_bytes * spec.device_share) >> 20 for one in spec.devices]
    return {
        "CUDA_MPS_PIPE_DIRECTORY": pipes,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{100 * spec.device_share:g}",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(
            f"{number}={size}M" for number, size in enumerate(mebibytes)
        ),
    }


def mps_mount(folder: Path) -> Mount:
    """Return the mount of the MPS pipes at `folder`. Blocking; raises NodeRefused if no daemon runs there."""
    try:
        pid = int((folder / _PID_FILE).read_text(encoding="ascii"))
        is_there = (folder / "control").exists() and Path("/proc", str(pid)).exists()
    except (OSError, ValueError):
        is_there = False
    if not is_there:
        raise NodeRefused(
            f"MPS, which keeps sessions to their part of a GPU, does not run at {folder}: start it on"
            f" the node (CUDA_MPS_PIPE_DIRECTORY={folder} nvidia-cuda-mps-control -d), or take"
            " mps_folder out of its agent's settings"
        )
    return Mount(source=folder, target=MPS)
