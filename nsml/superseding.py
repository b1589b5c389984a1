"""Which reported points count where a session had several attempts: one rule for charts, events, files and tables.

An attempt that goes on from a checkpoint repeats steps. It supersedes, line by line, what earlier attempts reported
from its first step on; a line is one metric of one replica. So each line has one value a step, that of the last
attempt. An attempt that begins at step 0 again supersedes all. Points without a step are never superseded and
supersede nothing: nothing says which of them are repeated.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from nsml.v1.sessions_pb2 import MetricPoint


def superseded_from(first_steps: Mapping[int, float], attempt: int) -> float:
    """The step from which on points of an attempt are superseded; infinity: none are.

    Args:
        first_steps: of a line, by attempt.
        attempt: from 1.
    """
    later = (step for other, step in first_steps.items() if other > attempt)
    return min(later, default=math.inf)


class FirstSteps:
    """The first step of each attempt, by line, as points come in the order in which they were reported."""

    def __init__(self) -> None:
        self._by_line: dict[Hashable, dict[int, float]] = {}

    def note(self, line: Hashable, attempt: int, step: float | None) -> bool:
        """Take a point; whether it is the first of an attempt and supersedes points that may have been seen."""
        if step is None or not math.isfinite(step):
            return False
        known = self._by_line.setdefault(line, {})
        if attempt in known:
            return False
        known[attempt] = step
        return any(other < attempt for other in known)

    def keeps(self, line: Hashable, attempt: int, step: float | None) -> bool:
        """Whether a point counts, as far as is known."""
        known = self._by_line.get(line)
        if not known or step is None or not math.isfinite(step):
            return True
        return step < superseded_from(known, attempt)


def place_of(point: MetricPoint) -> tuple[tuple[str, int], int, float | None]:
    """The line of a point, its attempt and its step, as FirstSteps takes them."""
    step = point.step if point.HasField("step") else None
    return (point.name, point.rank), point.attempt, step
