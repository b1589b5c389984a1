"""Datasets there and back, beside what people copy and back up folders with, each in turn on one disk.

Two inputs that do not compress: a folder of small files, and one large file. Of each a first push, one with nothing changed
(`again_s`), one with a megabyte inserted in the middle of the file or one file of the folder changed (`sent_share`: of all
bytes, from what the object store has grown by), and a pull into a new folder. `cpu_s_per_gib` is what client and control
plane take together for the first push. With --tls the client is a user of another machine, who comes over TLS.

The peers are the best that are installed of cp (with a flush of what it wrote), rclone, restic, borg and dvc: a figure of nsml has
the fastest of them beside it, and on stderr stands each one's.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.inside import cpu_s
from bench.platform import Platform
from bench.report import report

FILES = 10_000
FILES_A_FOLDER = 100
GIB = 1 << 30
MEGABYTE = 1_000_000
TIMEOUT_S = 1_800.0


def fill_tree(folder: Path, count: int, size: int) -> None:
    """Small files, of so many bytes in all."""
    noise = random.Random(0)
    for number in range(count):
        file = folder / f"{number // FILES_A_FOLDER}" / f"{number}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(noise.randbytes(size // count))


def fill_file(folder: Path, size: int) -> None:
    """One file of so many bytes."""
    noise = random.Random(1)
    folder.mkdir()
    with (folder / "large.bin").open("wb") as file:
        for at in range(0, size, MEGABYTE):
            file.write(noise.randbytes(min(MEGABYTE, size - at)))


def change(folder: Path) -> None:
    """A megabyte more in the middle of the one file, or other content in one of many."""
    noise = random.Random(2).randbytes(MEGABYTE)
    large = folder / "large.bin"
    if not large.exists():
        some = folder / "0" / "7.bin"
        some.write_bytes(noise[: some.stat().st_size])
        return
    with large.open("rb+") as file:
        file.seek(large.stat().st_size // 2)
        rest = file.read()
        file.seek(-len(rest), os.SEEK_CUR)
        file.write(noise + rest)


def stored_bytes(platform: Platform) -> int:
    """What the object store has."""
    objects = platform.folder / "data/controlplane/objects"
    return sum(file.stat().st_size for file in objects.rglob("*") if file.is_file())


def children_cpu_s() -> float:
    """Of the programs that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def signed_in(platform: Platform) -> dict[str, str]:
    """The environment of a user of another machine, who has signed in to the platform."""
    there = platform.folder / "laptop"
    environment = {"NSML_CONFIG_DIR": str(there / "config"), "NSML_DATA": str(there / "data")}
    platform.nsml("admin", "user", "add", "lee")
    made = platform.nsml("admin", "user", "token", "lee")
    address = made.stderr.partition("nsml login ")[2].split()[0]
    platform.nsml("login", address, "--token-stdin", stdin=made.stdout, environment=environment)
    return environment


def measure(
    platform: Platform, name: str, source: Path, size: int, environment: dict[str, str]
) -> dict[str, float]:
    """The figures of one input."""

    def nsml(*arguments: object) -> None:
        line = ["dataset", *map(str, arguments)]
        platform.nsml(*line, timeout_s=TIMEOUT_S, environment=environment)

    def push() -> None:
        nsml("push", name, source)

    controlplane, target = platform.pid("controlplane"), platform.folder / "pulled"
    used = cpu_s(controlplane) + children_cpu_s()
    first_s = timed(push)
    used = cpu_s(controlplane) + children_cpu_s() - used
    again_s = timed(push)
    before = stored_bytes(platform)
    change(source)
    changed_s = timed(push)
    sent = stored_bytes(platform) - before
    pull_s = timed(partial(nsml, "pull", name, target))
    shutil.rmtree(target)
    return {
        f"{name}_push_mb_per_s": size / first_s / 1e6,
        f"{name}_cpu_s_per_gib": used / size * GIB,
        f"{name}_again_s": again_s,
        f"{name}_changed_s": changed_s,
        f"{name}_sent_share": sent / size,
        f"{name}_pull_mb_per_s": size / pull_s / 1e6,
    }


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Command lines of one: SOURCE, KEPT and BACK stand for where the input is, its copy, and what comes back."""

    prepare: str = ""
    send: str
    fetch: str
    sends_again: bool = True
    """Whether it knows what is there."""


PEERS = {
    "cp": Peer(
        send="cp -r SOURCE KEPT && sync -f KEPT",
        fetch="cp -r KEPT BACK && sync -f BACK",
        sends_again=False,
    ),
    "rclone": Peer(
        send="rclone copy SOURCE KEPT && sync -f KEPT",
        fetch="rclone copy KEPT BACK && sync -f BACK",
    ),
    "restic": Peer(
        prepare="restic init -r KEPT",
        send="restic backup -r KEPT SOURCE",
        fetch="restic restore latest -r KEPT -t BACK",
    ),
    "borg": Peer(
        prepare="borg init -e none KEPT",
        send="borg create -C none KEPT::{now:%s%f} SOURCE",
        fetch="mkdir BACK && cd BACK && borg extract KEPT::$(borg list --short --last 1 KEPT)",
    ),
    "dvc": Peer(
        prepare="mkdir KEPT && cd KEPT && dvc init -q --no-scm && dvc remote add -q -d store KEPT/store",
        send="cd KEPT && dvc add -q -f --to-remote --out data SOURCE && sync -f KEPT",
        fetch="cd KEPT && dvc pull -q && mv data BACK && sync -f BACK",
    ),
}


def peers_of(name: str, source: Path, size: int, work: Path) -> dict[str, float]:
    """The best of each figure."""
    environment = {
        **os.environ,
        "RESTIC_PASSWORD": "password",
        "XDG_CACHE_HOME": str(work / "cache"),
        "BORG_BASE_DIR": str(work / "borg"),
        "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
        "DVC_SITE_CACHE_DIR": str(work / "dvc"),
        "DVC_NO_ANALYTICS": "1",
    }
    places = {"SOURCE": source, "KEPT": work / "kept", "BACK": work / "back"}

    def run(line: str) -> None:
        for word, place in places.items():
            line = line.replace(word, shlex.quote(str(place)))
        subprocess.run(["sh", "-c", line], env=environment, check=True, capture_output=True)

    found: dict[str, list[float]] = {}
    for program, peer in PEERS.items():
        if not shutil.which(program):
            continue
        run(peer.prepare)
        used = children_cpu_s()
        figures = {f"{name}_push_mb_per_s": size / timed(partial(run, peer.send)) / 1e6}
        figures[f"{name}_cpu_s_per_gib"] = (children_cpu_s() - used) / size * GIB
        if peer.sends_again:
            figures[f"{name}_again_s"] = timed(partial(run, peer.send))
        figures[f"{name}_pull_mb_per_s"] = size / timed(partial(run, peer.fetch)) / 1e6
        print(program, {key: round(value, 2) for key, value in figures.items()}, file=sys.stderr)
        for key, value in figures.items():
            found.setdefault(key, []).append(value)
        for place in (places["KEPT"], places["BACK"]):
            shutil.rmtree(place)
    return {
        key: min(values) if key.endswith(("_again_s", "_cpu_s_per_gib")) else max(values)
        for key, values in found.items()
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--files", type=int, default=FILES, help="of the folder")
    parser.add_argument("--size", type=int, default=GIB, help="bytes of each input")
    parser.add_argument("--tls", action="store_true", help="the client comes over TLS")
    given = parser.parse_args()
    figures: dict[str, float] = {}
    peers: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="nsml-data-") as folder:
        work = Path(folder)
        inputs = {"tree": work / "tree", "file": work / "file"}
        fill_tree(inputs["tree"], given.files, given.size)
        fill_file(inputs["file"], given.size)
        os.sync()
        for name, source in inputs.items():
            peers |= peers_of(name, source, given.size, work)
            options = ("--listen", "127.0.0.1:0") if given.tls else ()
            with Platform(simulate_gpus=1, options=options) as platform:
                environment = signed_in(platform) if given.tls else {}
                figures |= measure(platform, name, source, given.size, environment)
    report(figures, peers=peers)


if __name__ == "__main__":
    main()
