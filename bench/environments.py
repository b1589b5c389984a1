"""How long the environments of sessions take to build, and what they take on the disk.

The first of a user, and then others that share all of its wheels: by a node without containers, in its sandbox, on an
agent's data folder of its own. The peers are measured in the same run, in turn with ours: a virtual environment
by pip with its cache, and one by uv alone, in no sandbox. Packages come from where this machine's pip looks.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.report import report
from nodeagent.environments.downloads import Downloads
from nodeagent.environments.hostconfig import fetching_variables, pip_options, uv_program
from nodeagent.environments.sandbox import Sandbox
from nodeagent.environments.virtualenvs import Environments
from nodeagent.runtimes.isolation import probe_isolation, strongest
from nsml.packages.requirements import Requirements

ROUNDS = 5
PACKAGES = ("numpy", "click", "six", "tqdm")
MB = 1e6


def occupied_mb(folder: Path) -> float:
    """What it takes on the disk, files with several names once."""
    seen = {}
    for place, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            facts = (Path(place) / name).lstat()
            seen[facts.st_ino] = facts.st_blocks * 512
    return sum(seen.values()) / MB


def taken(data: Path, build: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a build, and the megabytes that `data` has more after it."""
    before = occupied_mb(data)
    began = time.perf_counter()
    build()
    return time.perf_counter() - began, occupied_mb(data) - before


def ours(data: Path) -> Callable[[int], object]:
    """Builds one of an agent's environments; a further number is another one of the same wheels."""
    found = probe_isolation(data / "trial", trial_id=None, python=Path(sys.base_prefix))
    sandbox = Sandbox(data / "builds", machine=found.machine, level=strongest(found))
    environments = Environments(data / "environments", sandbox, Downloads(data / "downloads"))
    environments.provide(Requirements(), lambda _: None, owner="kim")  # with the copy of uv

    def build(number: int) -> object:
        wanted = Requirements(lines=(*PACKAGES, f"tqdm!=0.{number}"))
        return environments.provide(wanted, lambda _: None, owner="kim")

    return build


def of_pip(data: Path) -> Callable[[int], object]:
    """Builds a virtual environment with pip and a cache."""

    def build(number: int) -> None:
        place = str(data / str(number))
        cache = {**os.environ, "PIP_CACHE_DIR": str(data / "cache")}
        run([sys.executable, "-m", "venv", "--without-pip", place], cache)
        python = f"{place}/bin/python"
        run([sys.executable, "-m", "pip", "--python", python, "install", *PACKAGES], cache)

    return build


def of_uv(data: Path) -> Callable[[int], object]:
    """Builds a virtual environment with uv and a cache, with bytecode, as ours and pip's have it."""
    variables, _ = fetching_variables(pip_options(os.environ), os.environ, folder=str(data))
    own = {name: text for name, text in variables.items() if not text.startswith(str(data))}
    cache = {**os.environ, **own, "UV_CACHE_DIR": str(data / "cache"), "UV_LINK_MODE": "hardlink"}

    def build(number: int) -> None:
        place, uv = str(data / str(number)), str(uv_program())
        run([uv, "venv", "--python", sys.executable, place], cache)
        python = f"{place}/bin/python"
        run([uv, "pip", "install", "--compile-bytecode", "--python", python, *PACKAGES], cache)

    return build


def run(command: list[str], environment: dict[str, str]) -> None:
    """Run to a good end."""
    subprocess.run(command, env=environment, check=True, capture_output=True)


def main() -> None:
    """Measure and report."""
    with tempfile.TemporaryDirectory(prefix="nsml-bench-") as scratch:
        builders = {}
        for name, builder in (("", ours), ("pip_", of_pip), ("uv_", of_uv)):
            data = Path(scratch) / (name or "agent")
            data.mkdir()
            builders[name] = (data, builder(data))
        rounds = [
            {name: taken(data, lambda: build(number)) for name, (data, build) in builders.items()}  # noqa: B023
            for number in range(ROUNDS + 1)
        ]
    figures: dict[str, float] = {}
    for name in builders:
        first, *others = [one[name] for one in rounds]
        figures |= {
            f"{name}first_environment_s": first[0],
            f"{name}further_environment_s": statistics.median(one[0] for one in others),
            f"{name}further_environment_mb": statistics.median(one[1] for one in others),
        }
    peers = {name: figures.pop(name) for name in list(figures) if name.startswith(("pip_", "uv_"))}
    report(figures, peers=peers)


if __name__ == "__main__":
    main()
