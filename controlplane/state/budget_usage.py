"""A project's usage of its budget, period by period."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.domain.values import DAY_S, GPU_UNITS, WHOLE_DEVICE, Used

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.domain.values import Budget, Project


class Spent:
    """Sums up spans of held GPUs; each second counts in its own period.

    In whole units (see `Used`), so that the order of adding does not matter.

    Args:
        project: the project, with its creation time.
        budget: its budget; only the periods matter here.
        since: Unix seconds; earlier usage is not counted.
    """

    def __init__(self, project: Project, budget: Budget, since: float) -> None:
        self._of = _periods(project, budget)
        self._anchor = budget.anchor
        self._length_s = budget.period_days * DAY_S
        self._since = max(since, project.created_at)
        self._units: dict[int, int] = {}

    def held(self, gpu_thousandths: int, since: float, until: float) -> None:
        """Add a span, in Unix seconds."""
        begun = max(since, self._since)
        number = self._number(begun)
        while gpu_thousandths and begun < until:
            # By number, which always advances: a time next to a boundary may be rounded to either side.
            end = self._anchor + (number + 1) * self._length_s
            units = _units(gpu_thousandths, min(until, end) - begun)
            self._units[number] = self._units.get(number, 0) + units
            begun, number = end, number + 1

    def has(self, project: Project, now: float) -> bool:
        """Whether it covers the whole current period of a project, with its present budget periods."""
        if project.budget is None or self._of != _periods(project, project.budget):
            return False
        return self._since <= project.period(now)[0]

    def used(self, project: Project, now: float, running: Iterable[tuple[int, float]]) -> Used:
        """Return the usage up to `now`; `running`: thousandths of a GPU and seconds held, for each session."""
        since, until = project.period(now)
        live = sum(_units(gpu, min(held_s, now - since)) for gpu, held_s in running)
        units = self._units.get(self._number(now), 0) + live
        return Used(project=project.name, gpu_units=units, since=since, until=until)

    def _number(self, at: float) -> int:
        return int((at - self._anchor) // self._length_s)


def _periods(project: Project, budget: Budget) -> tuple[float, float, float]:
    return project.created_at, budget.anchor, budget.period_days


def _units(gpu_thousandths: int, seconds: float) -> int:
    return gpu_thousandths * round(max(seconds, 0.0) * (GPU_UNITS / WHOLE_DEVICE))
