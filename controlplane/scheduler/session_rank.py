"""The order of service: plain values, so that an index needs only the heads of its lines.

By priority class, then by the user's fair share, then so that most finish soon: by expected service, in levels of
a doubling. A time limit bounds the run time; without a limit the service so far predicts the rest, since run times
are heavy-tailed. That is least attained service, discretised so that equals do not take turns (Tiresias, NSDI'19,
section 3.2).

A session that waited for longer than `patience_s` is due: due sessions go, oldest first, before all others of their
class and share. From then on no session overtakes it, except those that fit beside its reservation. That is the bound
on starvation.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

UNKNOWN_S: Final = 3_600.0
"""Expected run time of a session without a time limit before it ran, seconds."""

WIDTH_POWER: Final = 2.0
"""Exponent of a gang's GPUs in its weight. 1 would be GPU time; but wide gangs also run longer than narrow ones,
and each delays many others. Of 1, 1.5, 2 and 3 it did best on two traces of Philly (`bench.scheduler`)."""

LEVEL_S: Final = 900.0
"""Limit of weighted service for the first level, seconds."""

LEAST_PATIENCE_S: Final = 4 * 3_600.0
"""Minimum wait until a session is due."""

MOST_PATIENCE_S: Final = 30 * 86_400.0
"""Maximum wait until a session is due. A shorter one would make a cluster that is overloaded for months, without limits,
serve in order of submission, with nodes held empty: with 60, 30 and 14 days the mean wait of one trace of Philly
(`bench.scheduler`) was 422,000, 456,000 and 588,000 s, and the longest 57, 33 and 17 days."""

BACKLOG_SHARE: Final = 0.5
"""A session is due after this share of the time to run the whole queue if limits were used up. In order of
submission the wait would be about as long, as sessions use about half of their limits."""

_ROUNDING: Final = 1e-9


class Demand(NamedTuple):
    """Inputs of the order; sessions that differ only in the start of their wait are in one line.

    Attributes:
        gpus: of the whole gang; below 1 for a share of one.
        limit_s: time limit of an attempt; 0: none.
        attained_s: how long it held its GPUs in all attempts; with a limit, since it last used one up.
    """

    gpus: float
    limit_s: float = 0.0
    attained_s: float = 0.0


def level_of(demand: Demand) -> int:
    """Return the level of its expected service: 0, and one more for each doubling."""
    doubled = expected_s(demand) * _weight(demand) / LEVEL_S
    return max(0, 1 + math.floor(math.log2(doubled) + _ROUNDING)) if doubled else 0


def level_lasts_s(demand: Demand) -> float:
    """Return how much longer it stays in its level while it runs, seconds; infinity: for ever."""
    expected, level, weight = expected_s(demand), level_of(demand), _weight(demand)
    if not demand.limit_s:
        return LEVEL_S * math.pow(2.0, level) / weight - expected
    return expected - LEVEL_S * math.pow(2.0, level - 1) / weight if level else math.inf


def expected_s(demand: Demand) -> float:
    """Return its expected remaining run time, seconds."""
    if demand.limit_s:
        return max(demand.limit_s - demand.attained_s, 0.0)
    return demand.attained_s + UNKNOWN_S


def patience_s(backlog_gpu_s: float, gpus: float, *, has_limits: bool) -> float:
    """Return how long a session waits until it is due, seconds.

    Args:
        backlog_gpu_s: maximum use of all queued sessions by their limits, GPU seconds.
        gpus: of the cluster.
        has_limits: whether all queued sessions have a limit; else the backlog is unknown.
    """
    if not has_limits or not gpus:
        return MOST_PATIENCE_S
    return min(max(BACKLOG_SHARE * backlog_gpu_s / gpus, LEAST_PATIENCE_S), MOST_PATIENCE_S)


def _weight(demand: Demand) -> float:
    return math.pow(max(demand.gpus, 1.0), WIDTH_POWER)
