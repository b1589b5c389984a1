"""How long a replica takes from the order to its runtime to the first line of user code.

Both runtimes with all that they need at hand, one at a time and eight at once, in turn with the peer: a
bare `docker run` of the same image. Where no engine or no image is, containers are left out. The engine is DOCKER_HOST's, the image
`nsml-base:latest` (`deploy/image/build`).
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import structlog

from bench.report import report
from nodeagent.engine.client import Engine
from nodeagent.folders import ReplicaFolders, ReplicaId
from nodeagent.network.rules import NetworkRules
from nodeagent.network.session_network import NetworkFacts, probe_network
from nodeagent.runtimes.containment import NoContainers, engine_mark, probe_containers
from nodeagent.runtimes.docker import DockerDriver, EnginePlace
from nodeagent.runtimes.interface import Isolation, ReplicaSpec
from nodeagent.runtimes.isolation import IsolationFacts, probe_isolation
from nodeagent.runtimes.launcher import Launcher
from nodeagent.runtimes.process import ProcessDriver
from nodeagent.runtimes.shims import ShimDriver
from nsml.common.clock import SystemClock, in_own_thread, in_thread

ROUNDS = 12
AT_ONCE = 8
ROUNDS_AT_ONCE = 3
IMAGE = "nsml-base:latest"
SOCKET = Path(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://"))
FIRST_LINE = ("date", "+%s%N")
PEERS = {"container_ms": "docker_run_ms", "eight_containers_ms": "eight_docker_runs_ms"}
"""Figures of ours, and the peer's of each."""


async def eight_ms(one: Callable[[], Awaitable[float]]) -> float:
    """Eight at once: milliseconds until the last has its first line."""
    return max(await asyncio.gather(*(one() for _ in range(AT_ONCE))))


async def driver_ms(driver: ShimDriver, folders: ReplicaFolders, isolation: Isolation) -> float:
    """One start by `driver`, milliseconds to the program's own clock."""
    session = "s" + base64.b32encode(os.urandom(10)).decode().lower()
    replica = ReplicaId(session_id=session, attempt=1, rank=0)
    began = time.time_ns()
    await driver.start(ReplicaSpec(replica_id=replica, argv=FIRST_LINE, isolation=isolation))
    record = await driver.wait(replica)
    line = folders.of(replica).output.read_bytes()
    await driver.remove(replica)
    if record.exit_code != 0:
        raise RuntimeError(record.message)
    return (int(line) - began) / 1e6


def docker_run_ms() -> float:
    """The same by `docker run`."""
    began = time.time_ns()
    command = ["docker", "run", "--rm", "--init", "--network", "none", IMAGE, *FIRST_LINE]
    environment = {**os.environ, "DOCKER_HOST": f"unix://{SOCKET}"}
    done = subprocess.run(command, check=True, capture_output=True, env=environment)
    return (int(done.stdout) - began) / 1e6


def engine_place(data: Path, facts: IsolationFacts) -> EnginePlace | None:
    """Where containers are made; None where they do not work."""
    try:
        return probe_containers(
            Engine(SOCKET),
            facts.machine,
            data / "trial",
            node="bench",
            mark=engine_mark(data),
            default_image=IMAGE,
            most_open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        )
    except NoContainers:
        return None


def networks(data: Path) -> NetworkFacts:
    """Networks of their own for sessions, where they work."""
    if os.geteuid():
        return NetworkFacts()
    return probe_network(
        data, rules=NetworkRules(), subnet="198.18.0.0/15", nameservers=(), is_wanted=True
    )


async def measure(data: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Figures and peers: medians over ROUNDS, in turn, after a round that is not counted."""
    facts = probe_isolation(data / "trial")
    place = engine_place(data, facts)
    folders = ReplicaFolders(data / "replicas")
    clock = SystemClock()
    found = networks(data)
    process = ProcessDriver(
        folders,
        machine=facts.machine,
        levels=facts.levels,
        launcher=Launcher(in_thread),
        clock=clock,
        run=in_thread,
        run_long=in_own_thread,
        network=found.network,
    )
    taken: dict[str, list[float]] = {"process_ms": []}
    async with process:
        for _ in range(ROUNDS + 1):
            taken["process_ms"].append(await driver_ms(process, folders, facts.level))
    found.remove()
    if place is not None:
        docker = DockerDriver(
            folders,
            machine=facts.machine,
            place=place,
            launcher=Launcher(in_thread),
            clock=clock,
            run=in_thread,
            run_long=in_own_thread,
        )
        async with docker:
            taken |= await containers(partial(driver_ms, docker, folders, Isolation.CONTAINER))
    figures = {name: statistics.median(times[1:]) for name, times in taken.items()}
    peers = {name: figures.pop(name) for name in PEERS.values() if name in figures}
    for name, peer in PEERS.items():
        if peer in peers:
            figures[f"{name.removesuffix('_ms')}_over_docker_run"] = figures[name] / peers[peer]
    return figures, peers


async def containers(ours: Callable[[], Awaitable[float]]) -> dict[str, list[float]]:
    """Milliseconds of each, in turn with the peer's, by name."""
    bare = partial(in_own_thread, docker_run_ms)
    taken: dict[str, list[float]] = {name: [] for pair in PEERS.items() for name in pair}
    for _ in range(ROUNDS + 1):
        taken["container_ms"].append(await ours())
        taken["docker_run_ms"].append(await bare())
    for _ in range(ROUNDS_AT_ONCE + 1):
        taken["eight_containers_ms"].append(await eight_ms(ours))
        taken["eight_docker_runs_ms"].append(await eight_ms(bare))
    return taken


def main() -> None:
    """Measure and report."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory(prefix="nsml-bench-") as folder:
        figures, peers = asyncio.run(measure(Path(folder)))
    report(figures, peers=peers)


if __name__ == "__main__":
    main()
