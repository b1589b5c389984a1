"""What the scheduler decides on real traces, beside the rules and figures that others published.

    python -m bench.scheduler --quality [--json] [--only openb] [--traces DIR]
    python -m bench.scheduler --quality [--json] --nodes FILE --pods FILE
    python -m bench.scheduler --quality [--json] --jobs FILE --cluster 20x8
    python -m bench.scheduler --speed [--json]

`--speed` measures how fast it decides (`bench/scheduler/speed.py`). `--quality` replays the traces of `--traces`
(by default `../shared/traces`, beside the project); with `--nodes` and `--pods`, or `--jobs` and `--cluster`, it
replays those files instead. The suites and their figures are described where they are made:

- `openb`: how full a cluster gets (`bench/scheduler/packing.py`)
- `muri`, `philly`: how long sessions take and wait (`bench/scheduler/waits.py`)
- `locality`: how much is fetched when sessions come to their data (`bench/scheduler/locality.py`); of no trace

Seeds are printed to standard error; a figure of `openb` is the mean of its runs. What others published stands
under the same name in `peers`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report import report
from bench.scheduler import locality, packing, speed, waits
from bench.scheduler.arrivals import read_cluster
from bench.scheduler.traces import NO_TRACES, TRACES, BadTrace

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.scheduler.outcome import Outcome

SUITES: dict[str, Callable[[Path], Outcome]] = {
    "openb": packing.measure,
    "muri": waits.measure_muri,
    "philly": waits.measure_philly,
    "locality": locality.measure,
}
"""What each suite makes of the directory of the traces."""


def main() -> int:
    """Run what the command line asks for."""
    arguments = _parse()
    try:
        outcomes = list(_outcomes(arguments))
    except BadTrace as bad:
        print(f"bench.scheduler: {bad}", file=sys.stderr)
        return 2
    figures = {name: value for one in outcomes for name, value in one.figures.items()}
    peers = {name: value for one in outcomes for name, value in one.peers.items()}
    report(figures, peers=peers)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scheduler", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quality", action="store_true", help="how good the decisions are")
    parser.add_argument("--speed", action="store_true", help="how fast it decides")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--traces", type=Path, default=TRACES, help="directory of the traces")
    parser.add_argument("--only", choices=sorted(SUITES), action="append", help="these suites only")
    parser.add_argument("--nodes", type=Path, help="nodes of another cluster (as openb/nodes.csv)")
    parser.add_argument("--pods", type=Path, help="pods for it (as openb/pods_default.csv)")
    parser.add_argument(
        "--jobs", type=Path, help="sessions in time (as muri/*.csv or philly/*.csv)"
    )
    parser.add_argument("--cluster", help="nodes and GPUs of each for them, as in 20x8")
    arguments = parser.parse_args()
    if (arguments.nodes is None) != (arguments.pods is None):
        parser.error("--nodes and --pods go together")
    if (arguments.jobs is None) != (arguments.cluster is None):
        parser.error("--jobs and --cluster go together")
    if not (arguments.quality or arguments.speed):
        parser.error("say what to measure: --quality or --speed")
    return arguments


def _outcomes(arguments: argparse.Namespace) -> list[Outcome]:
    return [
        *(_quality(arguments) if arguments.quality else []),
        *([speed.measure()] if arguments.speed else []),
    ]


def _quality(arguments: argparse.Namespace) -> list[Outcome]:
    others = []
    if arguments.pods:
        others.append(packing.measure_files(arguments.nodes, arguments.pods))
    if arguments.jobs:
        others.append(waits.measure_file(arguments.jobs, read_cluster(arguments.cluster)))
    if others:
        return others
    if not arguments.traces.is_dir():
        raise BadTrace(f"{arguments.traces} {NO_TRACES}")
    return [SUITES[name](arguments.traces) for name in arguments.only or SUITES]


if __name__ == "__main__":
    sys.exit(main())
