"""The machine around the devices: processors and memory."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Constant until the next boot. `cpus` are those this process may use."""

    host: str
    boot_id: str
    kernel: str
    cpus: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """One reading."""

    cpu_percent: float
    memory_used_bytes: int


class HostProbe:
    """Reads the machine. `cpu_percent` is the mean since the previous reading; the first is 0."""

    def __init__(self) -> None:
        psutil.cpu_percent(interval=None)

    def facts(self) -> HostFacts:
        """Return the machine's facts."""
        return HostFacts(
            host=socket.gethostname(),
            boot_id=Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
            kernel=os.uname().release,
            cpus=len(os.sched_getaffinity(0)),
            memory_bytes=psutil.virtual_memory().total,
        )

    def sample(self) -> HostSample:
        """Return one reading."""
        memory = psutil.virtual_memory()
        return HostSample(
            cpu_percent=psutil.cpu_percent(interval=None),
            memory_used_bytes=memory.total - memory.available,
        )
