"""In which order sessions are served: plain values, so that an index asks for the heads of its lines alone.

By class of priority, then by the user's fair share, then so that most finish soon: by the service that a session
is expected to need, in levels of a doubling. Its time limit says how long it runs at most; of one without a
limit, what it had so far tells how much it will still need, since run times are heavy-tailed. That is least
attained service, discretised so that equals do not take turns (Tiresias, NSDI'19, section 3.2).

Whoever waited for longer than `patience_s` is due and goes, oldest first, before all of its class and share that
are not: from then on nobody overtakes it, except those who fit beside its reservation. That is the bound on
starvation.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

UNKNOWN_S: Final = 3_600.0
"""What a session without a time limit is thought to need before it ran, seconds."""

WIDTH_POWER: Final = 2.0
"""A gang counts by its GPUs to this power. 1 would be GPU time; but wide gangs run longer than narrow ones, too,
and each keeps many others waiting. Of 1, 1.5, 2 and 3 it did best on two traces of Philly (`bench.scheduler`)."""

LEVEL_S: Final = 900.0
"""Weighted service, seconds, below which all are in the first level."""

LEAST_PATIENCE_S: Final = 4 * 3_600.0
"""Nobody who waited for less is due."""

MOST_PATIENCE_S: Final = 30 * 86_400.0
"""Whoever waited for longer is due. Shorter would turn a cluster that is overloaded for months, without limits, into one
in order of submission, with nodes held empty for it: of 60, 30 and 14 days the index took 422,000, 456,000 and 588,000 s
on average for one trace of Philly (`bench.scheduler`), and the longest wait was 57, 33 and 17 days."""

BACKLOG_SHARE: Final = 0.5
"""Of the time in which the cluster would run everything that waits, were limits used up: who waited so long is due.
In order of submission the wait would be about as long, as sessions use about half of their limits."""

_ROUNDING: Final = 1e-9


class Demand(NamedTuple):
    """What the order depends on; sessions that differ only in when they began to wait are in one line.

    Attributes:
        gpus: of the whole gang; below 1 for a share of one.
        limit_s: the most that an attempt may run; 0: no limit.
        attained_s: for how long it held its GPUs so far, in all attempts; with a limit since it used one up last.
    """

    gpus: float
    limit_s: float = 0.0
    attained_s: float = 0.0


def level_of(demand: Demand) -> int:
    """The level of the service that it is expected to need: 0, or one more for each doubling."""
    doubled = expected_s(demand) * _weight(demand) / LEVEL_S
    return max(0, 1 + math.floor(math.log2(doubled) + _ROUNDING)) if doubled else 0


def level_lasts_s(demand: Demand) -> float:
    """For how much longer it stays in its level if it runs, seconds; infinity: for ever."""
    expected, level, weight = expected_s(demand), level_of(demand), _weight(demand)
    if not demand.limit_s:
        return LEVEL_S * math.pow(2.0, level) / weight - expected
    return expected - LEVEL_S * math.pow(2.0, level - 1) / weight if level else math.inf


def expected_s(demand: Demand) -> float:
    """How much longer it is thought to run."""
    if demand.limit_s:
        return max(demand.limit_s - demand.attained_s, 0.0)
    return demand.attained_s + UNKNOWN_S


def patience_s(backlog_gpu_s: float, gpus: float, *, has_limits: bool) -> float:
    """For how long a session waits, at most, until it is due.

    Args:
        backlog_gpu_s: what all that wait may still use by their limits, GPU seconds.
        gpus: of the cluster.
        has_limits: whether everything that waits has a limit; else nobody knows how long the backlog is.
    """
    if not has_limits or not gpus:
        return MOST_PATIENCE_S
    return min(max(BACKLOG_SHARE * backlog_gpu_s / gpus, LEAST_PATIENCE_S), MOST_PATIENCE_S)


def _weight(demand: Demand) -> float:
    return math.pow(max(demand.gpus, 1.0), WIDTH_POWER)
