"""How long whole processes take: `nsml ps` on a running platform, `import nsml`.

`nsml ps` goes the short way of `cli/sessions/listing.py`, `nsml ps -a` the one of all other commands.
The peers are measured in the same run, in turn with ours: `python -c pass`, and `docker ps` where an
engine answers.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from bench.platform import PROGRAMS, Platform
from bench.report import report

ROUNDS = 15
LIVE = 2
"""Sessions that `nsml ps` has to show."""


def wall_ms(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Wall time of one run, milliseconds; its failure is ours."""
    began = time.perf_counter()
    subprocess.run(command, env=dict(environment), check=True, capture_output=True)
    return (time.perf_counter() - began) * 1000


def measure(
    commands: Mapping[str, Sequence[str]], environment: Mapping[str, str]
) -> dict[str, float]:
    """Median wall time of each command over ROUNDS, taken in turn, after one that is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for round_number in range(ROUNDS + 1):
        for name, command in commands.items():
            spent = wall_ms(command, environment)
            if round_number:
                taken[name].append(spent)
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> None:
    """Measure and report."""
    python, nsml = sys.executable, str(PROGRAMS / "nsml")
    commands = {
        "python_pass_ms": [python, "-c", "pass"],
        "import_nsml_ms": [python, "-c", "import nsml"],
        "nsml_version_ms": [nsml, "--version"],
        "nsml_help_ms": [nsml, "--help"],
        "nsml_ps_ms": [nsml, "ps"],
        "nsml_ps_all_ms": [nsml, "ps", "-a"],
    }
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "ps"], capture_output=True, check=False).returncode == 0:
        commands["docker_ps_ms"] = [docker, "ps"]
    with Platform() as platform:
        code = platform.folder / "code"
        code.mkdir()
        for _ in range(LIVE):
            platform.nsml("run", "--argv", "--", "sleep", "600", cwd=code)
        taken = measure(commands, platform.environment)
    peers: dict[str, float] = {
        name: taken.pop(name) for name in ("python_pass_ms", "docker_ps_ms") if name in taken
    }
    taken["nsml_ps_over_python"] = taken["nsml_ps_ms"] / peers["python_pass_ms"]
    taken["import_nsml_beyond_python_ms"] = taken["import_nsml_ms"] - peers["python_pass_ms"]
    if "docker_ps_ms" in peers:
        taken["nsml_ps_over_docker_ps"] = taken["nsml_ps_ms"] / peers["docker_ps_ms"]
    report(taken, peers=peers)


if __name__ == "__main__":
    main()
