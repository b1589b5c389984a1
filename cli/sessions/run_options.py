"""What a command line of `run` asks for."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line asks for."""

    entry: str
    args: tuple[str, ...]
    argv: tuple[str, ...]
    datasets: tuple[str, ...]
    gpu_thousandths: int
    cpu_thousandths: int
    memory_bytes: int
    shm_bytes: int
    disk_bytes: int
    process_count: int
    memo: str
    replica_count: int
    environment: dict[str, str] = field(repr=False)
    environment_files: tuple[str, ...]
    secrets: tuple[tuple[str, str], ...]
    image: str
    time_limit_s: float | None
    grace_s: float | None
    retry_count: int
    no_queue: bool
    priority: str
    """"" where nothing was said."""
    preemptible: bool
    gpu_model: str
    pod: str
    network: str
    refreshes: bool
    project: str
    visibility: str
    sends_code: bool
    max_bytes: int | None
    command: tuple[str, ...]
