"""How full a cluster gets: the openb suite, after "Beware of Fragmentation" (FGD, USENIX ATC 2023, section 6).

Alibaba's cluster of 2023: 1,213 nodes with 6,212 GPUs. The pods of a list arrive in an order shuffled by the
seed; then pods drawn from the same list follow until 130 % of the cluster's GPUs have been asked for. Each
goes at once to the node that the policy picks, or is dropped; none ends. What counts is how much of the
cluster's GPUs is given away when arrivals have reached 100 % and 130 % of them.

Figures: `openb_LIST_POLICY_allocated_pct` (at 130 %) and `openb_LIST_POLICY_allocated_at_100_pct`, means of
the seeds in `SEEDS`. The peers are what the paper's artifact publishes for its own seeds, which are
others: the same number would be luck, 0.3 points are not.

Policies: `random`, `bestfit` and `fgd` as published; `worstfit`; and `ours`, the index of the control plane itself,
to which every pod is a session (`bench/scheduler/ours.py`). FGD is told the mix of the whole list before the first
pod; ours learns it from the pods that have arrived.

The artifact rounds arrivals to whole percents and takes the mean of all states that fall into one; so does this.
"""

from __future__ import annotations

import random
import statistics
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.scheduler.outcome import Outcome
from bench.scheduler.policies import POLICIES
from bench.scheduler.spread import spread
from bench.scheduler.traces import WHOLE, Machine, Pod, read_machines, read_pods, read_rows

if TYPE_CHECKING:
    from pathlib import Path

LISTS: Final = ("default", "cpu050", "gpushare40", "multigpu20")
SEEDS: Final = tuple(range(42, 52))
ARRIVED: Final = 1.3
"""Share of the cluster's GPUs that is asked for in all."""

PUBLISHED_AS: Final = {"01-Random": "random", "05-BestFit": "bestfit", "06-FGD": "fgd"}


class Run(NamedTuple):
    """One list replayed once."""

    label: str
    policy: str
    seed: int


def measure(traces: Path) -> Outcome:
    """Replay every list of the traces with every policy and seed.

    Raises:
        BadTrace: the traces are absent or damaged
    """
    openb = traces / "openb"
    machines = read_machines(openb / "nodes.csv")
    lists = {label: read_pods(openb / f"pods_{label}.csv") for label in LISTS}
    return Outcome(
        figures=_figures(machines, lists), peers=_published(openb / "published_allocation.csv")
    )


def measure_files(nodes: Path, pods: Path) -> Outcome:
    """The same for one list of pods on one cluster, named after the file of the pods.

    Raises:
        BadTrace: a file is absent or damaged
    """
    label = pods.stem.removeprefix("pods_")
    return Outcome(figures=_figures(read_machines(nodes), {label: read_pods(pods)}))


class Allocated(NamedTuple):
    """Percent of the cluster's GPUs given away when so many percent of them had been asked for."""

    at_100: float
    at_130: float


def replay(machines: list[Machine], pods: list[Pod], policy: str, seed: int) -> Allocated:
    """Let the pods arrive, in the order of this seed."""
    chooser = POLICIES[policy](machines, pods, random.Random(seed))
    total = sum(machine.gpus for machine in machines) * WHOLE
    arrived = given = 0
    history: list[tuple[int, float]] = [(0, 0.0)]
    for pod in arrivals(pods, total, random.Random(seed)):
        arrived += pod.total_thousandths
        if chooser.place(pod):
            given += pod.total_thousandths
        history.append((round(100 * arrived / total), 100 * given / total))
    return Allocated(_allocated_at(100, history), _allocated_at(130, history))


def _allocated_at(percent: int, history: list[tuple[int, float]]) -> float:
    """On a cluster so small that no state falls into this percent: the last one before it."""
    before = max(arrived for arrived, _ in history if arrived <= percent)
    return statistics.fmean(given for arrived, given in history if arrived == before)


def arrivals(pods: list[Pod], total_thousandths: int, rng: random.Random) -> list[Pod]:
    """All pods, shuffled; then some dropped or others drawn until `ARRIVED` of the GPUs is asked for."""
    bound = ARRIVED * total_thousandths
    order = rng.sample(pods, len(pods))
    wanted = sum(pod.total_thousandths for pod in order)
    while wanted > bound:
        wanted -= order.pop(rng.randrange(len(order))).total_thousandths
    while True:
        pod = rng.choice(pods)
        if wanted + pod.total_thousandths > bound:
            return order
        wanted += pod.total_thousandths
        order.append(pod)


def _figures(machines: list[Machine], lists: dict[str, list[Pod]]) -> dict[str, float]:
    print(f"openb: seeds {', '.join(map(str, SEEDS))}", file=sys.stderr)
    runs = [Run(label, policy, seed) for label in lists for policy in POLICIES for seed in SEEDS]
    found = dict(zip(runs, spread(_replay, (machines, lists), runs), strict=True))
    figures = {}
    for label in lists:
        for policy in POLICIES:
            of_seeds = [found[Run(label, policy, seed)] for seed in SEEDS]
            name = f"openb_{label}_{policy}_allocated"
            figures[f"{name}_pct"] = statistics.fmean(one.at_130 for one in of_seeds)
            figures[f"{name}_at_100_pct"] = statistics.fmean(one.at_100 for one in of_seeds)
    return figures


def _replay(traces: tuple[list[Machine], dict[str, list[Pod]]], run: Run) -> Allocated:
    machines, lists = traces
    return replay(machines, lists[run.label], run.policy, run.seed)


def _published(path: Path) -> dict[str, float]:
    columns = {"pods", "policy", "arrived_gpu_percent", "allocated_gpu_percent_mean"}
    return dict(pair for pair in read_rows(path, columns, _published_of) if pair[0])


def _published_of(row: dict[str, str]) -> tuple[str, float]:
    policy = PUBLISHED_AS.get(row["policy"], "")
    if not policy:
        return "", 0.0
    at = "" if row["arrived_gpu_percent"] == "130" else f"_at_{row['arrived_gpu_percent']}"
    name = f"openb_{row['pods']}_{policy}_allocated{at}_pct"
    return name, float(row["allocated_gpu_percent_mean"])
