"""What it costs to report, and how soon and how fast it is kept and seen; beside what others take for the same.

python -m bench.insight [--json] [--no-peers] [--peers tensorboardx,wandb,aim,mlflow] [--parts reporting,reads,logs,telemetry]

Figures: `report_calls_per_s` (calls of one metric) and `report_steps_per_s` (calls of four) in a training
program, before each of the peers in
turn, the median; `durable_points_per_s` from the first call to the last point on the control plane's disk, through
a real agent and control plane, while the program still reports on the same cores; what agent and control
plane burn for a point; `report_to_watch_p95_ms` from the call to a client that watches; `read_1m_p95_ms` and
`read_100x10k_p95_ms` for a plot of a session of a million points, and of 100 of 10,000, at once after they were
reported (`_first_ms`: the first such read; `_folded`: later; `_wide`: later, in 1,000 columns for 200), and `bytes_per_point` on the disk;
`log_...`, `search_...` and `follow_...` for a log of 1 GB and for printed lines (`bench.insight_logs`). The peers do the
same in the same run, and `..._over_PEER` is how many times as many calls are made. They are installed from PyPI
into a throw-away environment at the beginning, which takes some minutes. What the readings of a thousand agents
cost a control plane (`telemetry_cores`, `telemetry_rss_bytes`) is in `bench.insight_telemetry`.
"""

from __future__ import annotations

import argparse
import signal
import statistics
from typing import TYPE_CHECKING, Final

from bench import (
    insight_logs,
    insight_peers,
    insight_reads,
    insight_reporting,
    insight_telemetry,
)
from bench.report import report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PARTS: Final[Mapping[str, Callable[[], dict[str, float]]]] = {
    "reporting": insight_reporting.measure,
    "reads": insight_reads.measure,
    "logs": insight_logs.measure,
    "telemetry": insight_telemetry.measure,
}
COMPARED: Final = {"report_calls_per_s": "calls", "report_steps_per_s": "steps"}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="bench.insight", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--no-peers", action="store_true", help="install and measure none")
    parser.add_argument("--peers", default=",".join(insight_peers.PACKAGES), help="which")
    parser.add_argument("--parts", default=",".join(PARTS), help="which")
    chosen = parser.parse_args()
    names = [] if chosen.no_peers else _known(parser, chosen.peers, insight_peers.PACKAGES)
    parts = _known(parser, chosen.parts, PARTS)
    # Whoever ends it, nothing is left running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rounds: list[dict[str, float]] = []
    peers = insight_peers.measure(
        names, before_each=lambda: rounds.append(insight_reporting.calls())
    )
    figures: dict[str, float] = {}
    for part in parts:
        figures |= PARTS[part]()
    if rounds:
        figures |= {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    report(figures | ratios(figures, peers), peers=peers)


def ratios(figures: Mapping[str, float], peers: Mapping[str, float]) -> dict[str, float]:
    """How many times as many calls a second as each peer."""
    found = {}
    for key, rate in peers.items():
        peer, figure = key.split(".")
        if figure in COMPARED and figure in figures:
            found[f"{COMPARED[figure]}_over_{peer}"] = figures[figure] / rate
    return found


def _known(parser: argparse.ArgumentParser, given: str, known: Mapping[str, object]) -> list[str]:
    names = [name for name in given.split(",") if name]
    for name in names:
        if name not in known:
            parser.error(f"there is no {name}; there are {', '.join(known)}")
    return names


if __name__ == "__main__":
    main()
