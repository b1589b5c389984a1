"""Datasets on a node: how long sessions wait for one that is there, how often it is fetched, and what a change moves.

On a platform of one node, with a folder of FILES files that do not compress:

- `fetches_for_50`: how often the node fetches it for 50 sessions that start at once on an empty cache.
- `cached_start_ms`: the step of a start that has it on the node, median over ROUNDS sessions, by the node's log.
- `tree_change_moved_share`, `file_change_moved_share`: what the node fetches of a new version, by all bytes of it, where one
  file of a hundred, or one hundredth of one large file in a row, has other content.

And of pushes alone: `many_push_s` and `many_again_s` of a folder of many small files, the second with nothing changed;
`large_push_client_mib`, `large_push_server_mib`, `large_pull_client_mib`, `large_pull_server_mib`: the most memory (VmHWM) that
client and control plane had at one time for one large file, in MiB. Each figure is told on stderr as it is found.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.data import GIB, TIMEOUT_S, fill_file, fill_tree, timed
from bench.inside import wait
from bench.platform import PROGRAMS, Platform
from bench.report import report

SESSIONS = 50
ROUNDS = 10
FILES = 2_000
SIZE = 256 << 20
MANY_FILES = 100_000
MANY_FILE_BYTES = 1_024
LARGE_SIZE = 2 * GIB
CHANGED = 100
"""One of so many files, or parts of a file, has other content."""
STARTS = ("--no-code", "-g", "0", "-c", "0.01", "--memory", "32M", "--shm-size", "2M")
"""So little that all start at once."""


def log_of(platform: Platform, event: str) -> Iterator[Mapping[str, Any]]:
    """What the node's agent has logged of a kind."""
    with (platform.folder / "data/agent.log").open(encoding="utf-8") as lines:
        for line in lines:
            said = json.loads(line) if line.startswith("{") else {}
            if said.get("event") == event:
                yield said


def start(platform: Platform, dataset: str, count: int = 1) -> None:
    """Run so many sessions with a dataset, at once, to their end; raises where one fails."""
    together = ["--array", f"0-{count - 1}"] if count > 1 else ["--wait"]
    platform.nsml(
        *("run", "-d", dataset, *STARTS, *together, "--argv", "--", "true"), timeout_s=TIMEOUT_S
    )
    wait(lambda: all(one["ended_at"] for one in sessions(platform)), "sessions do not end")
    states = {one["state"] for one in sessions(platform)}
    if states != {"SUCCEEDED"}:
        raise RuntimeError(f"sessions ended otherwise: {states}")


def sessions(platform: Platform) -> list[dict[str, Any]]:
    """All that were made."""
    return list(platform.json("ps", "-a", "-n", "1000")["items"])


def push(platform: Platform, name: str, source: Path) -> None:
    """One version more."""
    platform.nsml("dataset", "push", name, str(source), timeout_s=TIMEOUT_S)


def change_tree(folder: Path) -> None:
    """Other content in one of CHANGED files."""
    noise = random.Random(3)
    for file in sorted(folder.rglob("*.bin"))[::CHANGED]:
        file.write_bytes(noise.randbytes(file.stat().st_size))


def change_file(folder: Path) -> None:
    """Other content in one of CHANGED parts, in the middle of the file."""
    file = folder / "large.bin"
    size = file.stat().st_size
    with file.open("rb+") as content:
        content.seek(size // 2)
        content.write(random.Random(4).randbytes(size // CHANGED))


def moved_share(platform: Platform, name: str, source: Path) -> float:
    """What a node that has all but the newest version fetches of that, by all bytes of it."""
    push(platform, name, source)
    start(platform, name)
    *_, fetched = log_of(platform, "tree.fetched")
    return float(fetched["received"] / fetched["size"])


def starts(platform: Platform, work: Path, files: int, size: int) -> Iterator[tuple[str, float]]:
    """Figures of a node."""
    tree, file = work / "tree", work / "file"
    fill_tree(tree, files, size)
    fill_file(file, size)
    push(platform, "tree", tree)
    start(platform, "tree", SESSIONS)
    yield f"fetches_for_{SESSIONS}", float(len(list(log_of(platform, "tree.fetched"))))
    before = len(list(log_of(platform, "replica.prepared")))
    for _ in range(ROUNDS):
        start(platform, "tree")
    prepared = list(log_of(platform, "replica.prepared"))[before:]
    yield "cached_start_ms", statistics.median(one["took_ms"]["DataHook"] for one in prepared)
    change_tree(tree)
    yield "tree_change_moved_share", moved_share(platform, "tree", tree)
    push(platform, "file", file)
    start(platform, "file")
    change_file(file)
    yield "file_change_moved_share", moved_share(platform, "file", file)


def many(platform: Platform, work: Path, files: int) -> Iterator[tuple[str, float]]:
    """Figures of many small files."""
    fill_tree(work / "many", files, files * MANY_FILE_BYTES)
    os.sync()
    for figure in ("many_push_s", "many_again_s"):
        yield figure, timed(lambda: push(platform, "many", work / "many"))


def peak_bytes(pid: int) -> int:
    """The most memory that a process had at one time; 0 of one that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return 1024 * int(found[0]) if found else 0


def peaks_mib(platform: Platform, *arguments: str) -> tuple[float, float]:
    """The most memory of `nsml ARGUMENTS` with its processes, and of the control plane meanwhile."""
    server = platform.pid("controlplane")
    Path(f"/proc/{server}/clear_refs").write_text("5")  # counts from now on
    most: dict[int, int] = {}
    command = [str(PROGRAMS / "nsml"), *arguments]
    with subprocess.Popen(
        command,
        env=platform.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as client:
        while client.poll() is None:
            for pid in (client.pid, *children_of(client.pid)):
                most[pid] = max(most.get(pid, 0), peak_bytes(pid))
            time.sleep(0.02)
        said = client.stderr.read() if client.stderr else ""
    if client.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {client.returncode}: {said}")
    return sum(most.values()) / (1 << 20), peak_bytes(server) / (1 << 20)


def children_of(pid: int) -> list[int]:
    """Processes that a process has started."""
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def large(platform: Platform, work: Path, size: int) -> Iterator[tuple[str, float]]:
    """Figures of one large file."""
    fill_file(work / "large", size)
    for verb, places in (
        ("push", ("large", str(work / "large"))),
        ("pull", ("large", str(work / "pulled"))),
    ):
        client, server = peaks_mib(platform, "dataset", verb, *places)
        yield f"large_{verb}_client_mib", client
        yield f"large_{verb}_server_mib", server


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--files", type=int, default=FILES, help="of the folder on a node")
    parser.add_argument("--size", type=int, default=SIZE, help="bytes of it, and of the file")
    parser.add_argument("--many", type=int, default=MANY_FILES, help="small files; 0: leave out")
    parser.add_argument(
        "--large", type=int, default=LARGE_SIZE, help="bytes of the large file; 0: leave out"
    )
    given = parser.parse_args()
    parts: list[Callable[[Platform, Path], Iterator[tuple[str, float]]]] = [
        partial(starts, files=given.files, size=given.size),
        *([partial(many, files=given.many)] if given.many else []),
        *([partial(large, size=given.large)] if given.large else []),
    ]
    figures: dict[str, float] = {}
    for measured in parts:
        with (
            tempfile.TemporaryDirectory(prefix="nsml-starts-") as work,
            Platform(simulate_gpus=1) as platform,
        ):
            for name, value in measured(platform, Path(work)):
                print(f"{name} {value:.3f}", file=sys.stderr, flush=True)
                figures[name] = value
    report(figures)


if __name__ == "__main__":
    main()
