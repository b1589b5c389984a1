"""`nsml run --launch`: the real launchers, in gangs of two replicas on real agents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.nemesis import ENDED
from tests.e2e.programs import wait_for
from tests.support.in_process import Platform

pytestmark = pytest.mark.timeout(720)  # packages are installed: gigabytes, where an index is slow
ENDED_WITHIN_S = 600
PROGRAMS = {
    "ring.py": """\
import os
import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
got = world.sendrecv(world.rank, dest=(world.rank + 1) % world.size, source=(world.rank - 1) % world.size)
assert got == (world.rank - 1) % world.size
total = world.allreduce(world.rank + 1)
assert "NSML_GANG_SECRET" not in os.environ
print(f"process {world.rank} of {world.size}, sum {total}, replica {os.environ['NSML_RANK']}", flush=True)
if len(sys.argv) > 1 and world.rank == int(sys.argv[1]):
    if "raise" in sys.argv:
        raise ValueError("no more data")
    sys.exit(3)
if "raise" in sys.argv:
    world.barrier()
""",
    "mesh.py": """\
import jax

jax.distributed.initialize()
print(f"process {jax.process_index()} of {jax.process_count()}, {len(jax.devices())} devices")
""",
    "cluster.py": """\
import os

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init()


@ray.remote(num_cpus=1)
def read(part):
    return os.environ["NSML_RANK"], sum(range(part))


nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
places = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
found = ray.get([read.options(scheduling_strategy=places[part % len(places)]).remote(part) for part in range(16)])
print(f"nodes {len(nodes)}, replicas {sorted({rank for rank, _ in found})}, sum {sum(one for _, one in found)}")
""",
    "reduce.py": """\
import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print(f"process {dist.get_rank()} of {dist.get_world_size()}, sum {int(total)}")
if len(sys.argv) > 1:
    if dist.get_rank() == int(sys.argv[1]):
        raise ValueError("no more data")
    dist.all_reduce(total)
dist.destroy_process_group()
""",
    "mean.py": """\
import torch
from accelerate import Accelerator

one = Accelerator()
total = one.reduce(torch.ones(1) * (one.process_index + 1))
print(f"process {one.process_index} of {one.num_processes}, sum {int(total)}")
""",
}


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with Platform(simulate_gpus=4, options=["--isolation", "namespace"]) as running:
        yield running


def launched(
    platform: Platform, folder: Path, requirements: str, *words: str
) -> tuple[dict, list[str]]:
    """Run a session to its end; return it and the log of each of its two replicas."""
    (folder / "requirements.txt").write_text(requirements)
    for name, program in PROGRAMS.items():
        (folder / name).write_text(program)
    options = ["-o", "name", "--nodes", "2", "--time-limit", "10m"]
    name = platform.nsml("run", *options, *words, cwd=folder).stdout.strip()

    def ended() -> dict | None:
        item = platform.json("ps", "-a")["items"][0]
        return item if item["state"] in ENDED else None

    item = wait_for(ended, timeout_s=ENDED_WITHIN_S, what=f"{name} ended")
    logs = [platform.nsml("logs", name, "--rank", str(rank)).stdout for rank in (0, 1)]
    return item, logs


def started(logs: list[str], pattern: str) -> list[str]:
    return sorted(re.findall(pattern, "\n".join(logs)))


OF_TORCH = "torch==2.13.0\naccelerate\n"
OF_MPI = ["--launch", "mpirun", "-g", "2", "-e", "ring.py"]


@pytest.mark.long("installs Open MPI, 47 MB")
def test_mpi_processes_of_all_replicas_meet(platform: Platform, tmp_path: Path) -> None:
    item, logs = launched(platform, tmp_path, "openmpi\nmpi4py\n", *OF_MPI)
    assert item["state"] == "SUCCEEDED", (item.get("end"), logs)
    assert started(logs, r"process \d of 4, sum 10, replica \d") == [
        f"process {rank} of 4, sum 10, replica {rank // 2}" for rank in range(4)
    ], logs


@pytest.mark.slow
def test_the_mpi_process_that_fails_first_is_named(platform: Platform, tmp_path: Path) -> None:
    item, logs = launched(platform, tmp_path, "openmpi\nmpi4py\n", *OF_MPI, "--", "2")
    assert (item["state"], item["end"]["rank"], item["end"]["exit_code"]) == ("FAILED", 0, 3), item
    cause = "process 2 (replica 1, local rank 0): exit 3, last output: process 2 of 4, sum 10, replica 1"
    assert item["end"]["message"] == cause, logs


@pytest.mark.slow
def test_an_mpi_process_that_raises_ends_those_that_wait_for_it(
    platform: Platform, tmp_path: Path
) -> None:
    item, logs = launched(platform, tmp_path, "openmpi\nmpi4py\n", *OF_MPI, "--", "3", "raise")
    assert item["state"] == "FAILED", (item, logs)
    cause = "process 3 (replica 1, local rank 1): ValueError: no more data"
    assert item["end"]["message"] == cause, logs


@pytest.mark.slow
def test_jax_finds_the_other_replicas(platform: Platform, tmp_path: Path) -> None:
    item, logs = launched(
        platform, tmp_path, "jax[cpu]\n", "--launch", "jax", "-g", "1", "-e", "mesh.py"
    )
    assert item["state"] == "SUCCEEDED", (item.get("end"), logs)
    assert started(logs, r"process \d of 2, \d devices") == [
        f"process {rank} of 2, 2 devices" for rank in range(2)
    ], logs


@pytest.mark.slow
def test_a_gang_is_a_ray_cluster(platform: Platform, tmp_path: Path) -> None:
    item, logs = launched(
        platform, tmp_path, "ray\n", "--launch", "ray", "-g", "1", "-e", "cluster.py"
    )
    assert item["state"] == "SUCCEEDED", (item.get("end"), logs)
    assert "nodes 2, replicas ['0', '1'], sum 560" in logs[0], logs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "entry"), [("torchrun", "reduce.py"), ("accelerate", "mean.py")]
)
def test_torch_processes_of_all_replicas_meet(
    platform: Platform, tmp_path: Path, launcher: str, entry: str
) -> None:
    words = ["--launch", launcher, "-g", "2", "-e", entry]
    item, logs = launched(platform, tmp_path, OF_TORCH, *words)
    assert item["state"] == "SUCCEEDED", (item.get("end"), logs)
    for rank in range(4):
        line = rf"\[rank{rank}\]: *process {rank} of 4, sum 10"
        assert re.search(line, logs[rank // 2]), logs


@pytest.mark.slow
def test_the_process_that_fails_first_is_named(platform: Platform, tmp_path: Path) -> None:
    words = ["--launch", "torchrun", "-g", "2", "-e", "reduce.py", "--", "3"]
    item, logs = launched(platform, tmp_path, OF_TORCH, *words)
    assert (item["state"], item["end"]["rank"], item["end"]["exit_code"]) == ("FAILED", 1, 1), item
    cause = "process 3 (local rank 1): ValueError: no more data"
    assert item["end"]["message"] == cause, logs
    assert f"why: {cause}" in platform.nsml("status", "--explain", item["name"]).stdout
    assert cause in platform.nsml("ps", "-a").stdout
