"""A folder of many files that `nsml dev --sync` keeps in step, beside rsync over ssh on loopback, each in turn.

`again_s` is a second call while nothing was changed: both folders are compared, by content, where rsync compares sizes
and times. `one_file_s`, `checkout_s` and `large_s` are from the last write here until all of it is there: of one file of
the many, of CHECKOUT of them as a version control system writes them, of KILOBYTE in the middle of a file of LARGE bytes.
rsync is called for that, as it does not watch. `first_s` has the upload of the code and the start of the session in it:
each small file is a blob of its own there, flushed to disk. On a busy machine that takes most of a run by far, so each
figure is also told on stderr as it is found.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.inside import Command, ssh_server
from bench.platform import PROGRAMS, Platform
from bench.report import report

FILES = 100_000
FILES_A_FOLDER = 100
CHECKOUT = 5_000
LARGE = 100_000_000
KILOBYTE = 1_000
ROUNDS = 5
PATIENCE_S = 900.0
STARTS = ("-g", "0", "-c", "1", "--memory", "2G", "--grace", "1s")


def fill(folder: Path, count: int) -> list[Path]:
    """Small files, and where they are."""
    files = [folder / f"{one // FILES_A_FOLDER}" / f"{one}.py" for one in range(count)]
    for number, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"number = {number}\n" * 20)
    return files


def wait(condition: Callable[[], bool], why_not: str) -> None:
    """Until it is so; TimeoutError after PATIENCE_S."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError(why_not)
        time.sleep(0.01)


def tell(name: str, taken_s: float) -> None:
    """What was found, for a run that does not come to its end."""
    print(f"{name} {taken_s:.2f}", file=sys.stderr, flush=True)


class Work:
    """A folder here, and one that follows it."""

    def __init__(self, here: Path, files: Sequence[Path]) -> None:
        self.here = here
        self._files = files
        self._number = 0

    def change(self, count: int) -> list[Path]:
        """Other content in so many files."""
        self._number += 1
        changed = random.Random(self._number).sample(list(self._files), count)
        for file in changed:
            file.write_text(f"round = {self._number}\n")
        return changed

    def change_large(self) -> list[Path]:
        """Other bytes in the middle of the large file."""
        self._number += 1
        with (self.here / "large").open("r+b") as file:
            file.seek(LARGE // 2)
            file.write(random.Random(self._number).randbytes(KILOBYTE))
        return [self.here / "large"]

    def is_there(self, changed: list[Path], there: Path) -> bool:
        """Whether these files are there as they are here; those that are leave the list."""
        while changed:
            file = changed[-1]
            copy = there / file.relative_to(self.here)
            if not copy.exists() or copy.stat().st_size != file.stat().st_size:
                return False
            if copy.read_bytes() != file.read_bytes():
                return False
            changed.pop()
        return True


@contextmanager
def syncing(platform: Platform, here: Path, *options: str) -> Iterator[tuple[float, int]]:
    """Seconds until it is in step, and the process id of the command."""
    with tempfile.TemporaryFile("w+") as said:
        began = time.perf_counter()
        running = subprocess.Popen(
            [str(PROGRAMS / "nsml"), "dev", *options, "--sync", "--no-shell"],
            cwd=here,
            env=platform.environment,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
        try:

            def is_in_step() -> bool:
                if running.poll() is not None:
                    raise RuntimeError("nsml dev --sync has ended")
                return b"in step with" in os.pread(said.fileno(), 1 << 20, 0)

            wait(is_in_step, "it is not in step")
            yield time.perf_counter() - began, running.pid
        finally:
            running.terminate()
            running.wait()


def rounds(work: Work, there: Path, carry: Callable[[], object], count: int) -> dict[str, float]:
    """Seconds of each kind of change; `carry` is called after each."""
    found: dict[str, list[float]] = {}
    kinds: dict[str, Callable[[], list[Path]]] = {
        "one_file_s": lambda: work.change(1),
        "checkout_s": lambda: work.change(count),
        "large_s": work.change_large,
    }
    for _ in range(ROUNDS):
        for name, change in kinds.items():
            changed = change()
            began = time.perf_counter()
            carry()
            wait(partial(work.is_there, changed, there), name)
            taken_s = time.perf_counter() - began
            tell(name, taken_s)
            found.setdefault(name, []).append(taken_s)
    return {name: statistics.median(values) for name, values in found.items()}


def peak_mb(pid: int) -> float:
    """The most memory that a process had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1e3


def measure(work: Work, count: int) -> dict[str, float]:
    """Those of nsml."""
    with Platform(simulate_gpus=1) as platform:
        with syncing(platform, work.here, *STARTS) as (first_s, _):
            tell("first_s", first_s)
        with syncing(platform, work.here) as (again_s, pid):
            tell("again_s", again_s)
            [there] = (platform.folder / "data/agent/replicas").glob("*/app")
            found = rounds(work, there, lambda: None, count)
            peak = peak_mb(pid)
        platform.nsml("stop", "-y", "@last")
    return {"first_s": first_s, "again_s": again_s, **found, "client_peak_mb": peak}


def measure_rsync(work: Work, there: Path, ssh: Command, count: int) -> dict[str, float]:
    """Those of rsync."""
    *way, host = ssh
    source, target = f"{work.here}/", f"{host}:{there}"
    # without that it takes what was changed within a second for the same
    exact = "--modify-window=-1"
    command = ["rsync", "-a", "--delete", exact, "-e", " ".join(way), source, target]
    taken = []
    for name in ("first_s", "again_s"):
        began = time.perf_counter()
        subprocess.run(command, check=True)
        taken.append(time.perf_counter() - began)
        tell(f"rsync: {name}", taken[-1])
    found = rounds(work, there, lambda: subprocess.run(command, check=True), count)
    return {"first_s": taken[0], "again_s": taken[1], **found}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--files", type=int, default=FILES, help="how many")
    given = parser.parse_args()
    count = min(CHECKOUT, given.files)
    with tempfile.TemporaryDirectory(prefix="nsml-sync-") as folder:
        here, there = Path(folder) / "here", Path(folder) / "there"
        work = Work(here, fill(here, given.files))
        (here / "large").write_bytes(random.Random(0).randbytes(LARGE))
        figures = measure(work, count)
        peers: dict[str, float] = {}
        if shutil.which("rsync"):
            with ssh_server() as ssh:
                peers = measure_rsync(work, there, ssh, count) if ssh else {}
    report(figures, peers=peers)


if __name__ == "__main__":
    main()
