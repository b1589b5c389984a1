"""The machine around the devices: processors, memory, disk, network."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What does not change until the next boot. `cpus` are those this process may use."""

    host: str
    boot_id: str
    kernel: str
    cpus: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """One reading. Network counters grow from the boot on; the disk is the data folder's."""

    cpu_percent: float
    memory_used_bytes: int
    disk_used_bytes: int
    disk_total_bytes: int
    network_sent_bytes: int
    network_received_bytes: int


class HostProbe:
    """Reads the machine. `cpu_percent` is the mean since the reading before; the first is 0."""

    def __init__(self, data: Path) -> None:
        self._data = data
        psutil.cpu_percent(interval=None)

    def facts(self) -> HostFacts:
        """What the machine is."""
        return HostFacts(
            host=socket.gethostname(),
            boot_id=Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
            kernel=os.uname().release,
            cpus=len(os.sched_getaffinity(0)),
            memory_bytes=psutil.virtual_memory().total,
        )

    def sample(self) -> HostSample:
        """How the machine is."""
        memory = psutil.virtual_memory()
        disk = psutil.disk_usage(str(self._data))
        network = psutil.net_io_counters()
        return HostSample(
            cpu_percent=psutil.cpu_percent(interval=None),
            memory_used_bytes=memory.total - memory.available,
            disk_used_bytes=disk.used,
            disk_total_bytes=disk.total,
            network_sent_bytes=network.bytes_sent if network else 0,
            network_received_bytes=network.bytes_recv if network else 0,
        )
