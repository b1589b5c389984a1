"""How long sessions take and wait: traces replayed on a virtual clock, by our rules and by those of others.

Suites:
    muri: two cuts of Microsoft's Philly trace on 8 nodes of 8 GPUs, as in Muri (SIGCOMM'22). Sessions can be
        resumed and state no time limit. SRTF, SRSF and LAS preempt and move at no cost, as they do in Muri's
        simulator, and the first two know true run times; ours knows what each had so far, moves nothing,
        and pays 60 s of a gang's GPU time for each preemption.
    philly: ten weeks of Philly on 56 nodes of 8 GPUs, more than fits. Nothing can be resumed. SJF and SRTF know
        true run times; EASY and ours know the least of 1, 4, 24, 72 or 168 hours (or whole weeks) that is enough.

`ours` is the index of the control plane itself (`bench/scheduler/indexed.py`), with `give_way_in_class = "service"`:
without that setting who states no limit gives way to no equal.

Figures, for each policy: `..._mean_jct_s` from submission to end, `..._mean_wait_s` and `..._max_wait_s` all of
that in which a session did not advance, `..._lost_gpu_pct` of the GPU time held what preemption cost. What the
authors of Muri published stands in `peers`; theirs of LAS is Tiresias-L.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from bench.scheduler.arrivals import check_fits, is_muri, read_muri, read_philly
from bench.scheduler.backfilling import Easy
from bench.scheduler.indexed import Indexed
from bench.scheduler.outcome import Outcome
from bench.scheduler.references import (
    Repacking,
    Skipping,
    attained_service,
    by_run_time,
    by_submission,
    drawn,
    falls_at,
    remaining_service,
    remaining_time,
    tightest,
    widest,
)
from bench.scheduler.simulator import Cluster, Floor, Policy, Waits, replay
from bench.scheduler.spread import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from bench.scheduler.simulator import Arrival

SEED: Final = 1
"""Of the one policy that draws."""

PREEMPTION_S: Final = 60.0
"""What a preemption costs our rules: seconds of the whole gang to stop, save and start again."""

MURI_CLUSTER: Final = (8, 8)
PHILLY_CLUSTER: Final = (56, 8)

MURI_TRACES: Final = ("trace3", "trace4")
PHILLY_TRACE: Final = "jobs_until_2017-11-14.csv"

PUBLISHED: Final = {
    "muri_trace3_srtf_mean_jct_s": 193_082.0,
    "muri_trace3_srsf_mean_jct_s": 185_022.0,
    "muri_trace3_las_mean_jct_s": 347_213.0,
    "muri_trace3_themis_mean_jct_s": 397_059.0,
    "muri_trace4_srtf_mean_jct_s": 581_983.0,
    "muri_trace4_srsf_mean_jct_s": 487_167.0,
    "muri_trace4_las_mean_jct_s": 1_319_383.0,
    "muri_trace4_themis_mean_jct_s": 994_971.0,
}
"""Muri's artifact, figures 9 and 10."""

Policies = dict[str, "Callable[[], Policy]"]

MURI_POLICIES: Final[Policies] = {
    "bestfit": lambda: Skipping(by_submission, tightest),
    "sjf": lambda: Skipping(by_run_time, tightest),
    "srtf": lambda: Repacking(remaining_time),
    "srsf": lambda: Repacking(remaining_service),
    "las": lambda: Repacking(attained_service, falls_at),
    "ours": Indexed,
}

PHILLY_POLICIES: Final[Policies] = {
    "random": lambda: Skipping(by_submission, drawn(SEED)),
    "worstfit": lambda: Skipping(by_submission, widest),
    "bestfit": lambda: Skipping(by_submission, tightest),
    "sjf": lambda: Skipping(by_run_time, tightest),
    "srtf": lambda: Repacking(remaining_time),
    "easy": Easy,
    "ours": Indexed,
}

POLICIES: Final = {"muri": MURI_POLICIES, "philly": PHILLY_POLICIES}
MURI_FIGURES: Final = ("mean_jct_s", "max_wait_s", "lost_gpu_pct")
PHILLY_FIGURES: Final = ("mean_wait_s", "max_wait_s", "lost_gpu_pct")


def measure_muri(traces: Path) -> Outcome:
    """Both of Muri's traces."""
    figures: dict[str, float] = {}
    for trace in MURI_TRACES:
        path = traces / "muri" / f"{trace}.csv"
        figures |= _muri(f"muri_{trace}", path, MURI_CLUSTER)
    return Outcome(figures=figures, peers=dict(PUBLISHED))


def measure_philly(traces: Path) -> Outcome:
    """The stream of Philly."""
    return Outcome(figures=_philly(traces / "philly" / PHILLY_TRACE, PHILLY_CLUSTER))


def measure_file(path: Path, cluster: tuple[int, int]) -> Outcome:
    """Another trace, in the format of either, on another cluster."""
    if is_muri(path):
        return Outcome(figures=_muri(f"muri_{path.stem}", path, cluster))
    return Outcome(figures=_philly(path, cluster))


def _muri(name: str, path: Path, cluster: tuple[int, int]) -> dict[str, float]:
    arrivals = read_muri(path)
    check_fits(path, arrivals, *cluster)
    return _figures(name, _replays(arrivals, cluster, "muri"), MURI_FIGURES)


def _philly(path: Path, cluster: tuple[int, int]) -> dict[str, float]:
    arrivals = read_philly(path)
    check_fits(path, arrivals, *cluster)
    print(f"philly: seed {SEED} of random", file=sys.stderr)
    return _figures("philly", _replays(arrivals, cluster, "philly"), PHILLY_FIGURES)


def _replays(arrivals: Sequence[Arrival], cluster: tuple[int, int], suite: str) -> dict[str, Waits]:
    names = list(POLICIES[suite])
    return dict(zip(names, spread(_replay, (arrivals, cluster, suite), names), strict=True))


def _replay(trace: tuple[Sequence[Arrival], tuple[int, int], str], name: str) -> Waits:
    arrivals, cluster, suite = trace
    cost = PREEMPTION_S if name == "ours" else 0.0
    return replay(arrivals, Cluster(Floor(*cluster), preemption_s=cost), POLICIES[suite][name]())


def _figures(suite: str, found: Mapping[str, Waits], measures: Sequence[str]) -> dict[str, float]:
    return {
        f"{suite}_{policy}_{measure}": getattr(waits, measure)
        for policy, waits in found.items()
        for measure in measures
    }
