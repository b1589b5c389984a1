"""The demo beside sessions: machines, datasets, projects."""

from __future__ import annotations

from typing import Final

from nsml.v1 import resources_pb2

NODES: Final = ("alder", "birch", "cedar", "elm", "fir")
GPUS: Final = 8
GPU_MEMORY: Final = 80 * 1024**3
CORES: Final = 128
NODE_MEMORY: Final = 1024 * 1024**3
USERS: Final = ("ada", "bo", "cleo", "dev", "eun")
SILENT: Final = (4, 600.0, 780.0)
"""A node out of contact for a while, from when to when."""
_MIB: Final = 1024**2
DATASETS: Final[
    dict[str, tuple[str, resources_pb2.Visibility, str, int, list[tuple[str, int]]]]
] = {
    "leaves": (
        "bo",
        resources_pb2.VISIBILITY_PUBLIC,
        "1,000 kinds, 224 x 224, test split mended",
        3,
        [
            ("labels.csv", 3 * _MIB),
            ("README.md", 2_210),
            *((f"train/{number:04d}.tar", 131 * _MIB + 7_919 * number) for number in range(160)),
            *((f"test/{number:04d}.tar", 64 * _MIB + 6_007 * number) for number in range(24)),
        ],
    ),
    "tales": (
        "cleo",
        resources_pb2.VISIBILITY_TEAM,
        "books and letters, deduplicated",
        11,
        [
            ("tokenizer.json", 2 * _MIB),
            *((f"shards/{number:05d}.bin", 512 * _MIB) for number in range(96)),
            ("held-out/00000.bin", 512 * _MIB),
        ],
    ),
    "waves": (
        "eun",
        resources_pb2.VISIBILITY_TEAM,
        "",
        26,
        [
            (f"{split}/{number:03d}.wav", 18 * _MIB)
            for split in ("noisy", "clean")
            for number in range(400)
        ],
    ),
    "maze": (
        "dev",
        resources_pb2.VISIBILITY_TEAM,
        "levels of the third season",
        1,
        [(f"levels/{number:02d}.json", 40_960 + number) for number in range(60)],
    ),
    "petals": ("ada", resources_pb2.VISIBILITY_PRIVATE, "a first try", 5, [("petals.csv", 4_310)]),
}
"""By name: owner, visibility, message, age in days, and files."""
PROJECTS: Final = {
    "brook": (("dev", "eun"), 24, 4_000.0),
    "grove": (("ada", "bo", "cleo"), 32, 12_000.0),
}
"""By name: members, the first of them the owner; GPUs at once; and GPU-hours per period."""


def is_silent(node: int, now: float) -> bool:
    """Whether a node is out of contact."""
    which, begin, end = SILENT
    return node == which and begin <= now < end


def resources_of(gpus: int) -> resources_pb2.Resources:
    """Resources of a replica with so many devices."""
    return resources_pb2.Resources(
        gpu_thousandths=1000 * gpus, cpu_thousandths=14_000 * gpus, memory_bytes=96 * 1024**3 * gpus
    )


def device_at(node: int, index: int) -> resources_pb2.Device:
    """A node's device."""
    return resources_pb2.Device(
        uuid=f"GPU-demo-{node}-{index}",
        index=index,
        model="Acorn A1",
        memory_bytes=GPU_MEMORY,
        simulated=True,
    )
