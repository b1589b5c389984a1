"""What a program is told of its part of each GPU, and how MPS keeps it to that.

Without MPS a part is told only: programs that share a GPU see all of it, take turns on it, and may
use up its memory for one another. As a client of MPS (Multi-Process Service: the control daemon of
CUDA, which an administrator starts) a program cannot allocate more than its part of the memory, nor
fill more than its part of the multiprocessors.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.runtimes.interface import Mount, NodeRefused

if TYPE_CHECKING:
    from nodeagent.runtimes.interface import ReplicaSpec

MPS = "/run/nvidia-mps"
"""Where a replica with a root of its own finds the pipes of MPS."""

_PID_FILE = "nvidia-cuda-mps-control.pid"
_INSTANCE = "MIG-"


def share_variables(spec: ReplicaSpec) -> dict[str, str]:
    """How much of each of its GPUs is the replica's; nothing for one without."""
    if not spec.devices:
        return {}
    memory = min(device.memory_bytes for device in spec.devices)
    variables = {"NSML_GPU_SHARE": f"{spec.device_share:g}"}
    if memory:
        variables["NSML_GPU_MEMORY_BYTES"] = str(int(memory * spec.device_share))
    return variables


def is_kept_by_mps(spec: ReplicaSpec) -> bool:
    """Whether MPS is to keep the replica to its part: a part of real GPUs, none of them MIG's."""
    real = [
        device
        for device in spec.devices
        if not device.simulated and not device.uuid.startswith(_INSTANCE)
    ]
    return spec.device_share < 1 and bool(real) and len(real) == len(spec.devices)


def mps_variables(spec: ReplicaSpec, pipes: str) -> dict[str, str]:
    """What makes a program a client of the MPS at `pipes`, within its part."""
    mebibytes = [int(one.memory_bytes * spec.device_share) >> 20 for one in spec.devices]
    return {
        "CUDA_MPS_PIPE_DIRECTORY": pipes,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{100 * spec.device_share:g}",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(
            f"{number}={size}M" for number, size in enumerate(mebibytes)
        ),
    }


def mps_mount(folder: Path) -> Mount:
    """The pipes of the MPS at `folder`. Blocking; raises NodeRefused where no daemon runs there."""
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
