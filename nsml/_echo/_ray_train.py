"""Reports of Ray Train's workers: those of rank 0, counted from 1 if they name no step."""

from __future__ import annotations

from ray.train.v2._internal.execution import callback  # type: ignore[import-not-found] # there when Ray calls this

from nsml._echo._hooks import Fence
from nsml._echo._sink import sink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

_ORIGIN = "ray"
_fence = Fence(_ORIGIN, "ray.train")


class ReportCallback(callback.ReportCallback):  # type: ignore[misc]
    """Records what `ray.train.report` is given, in the process that controls the workers."""

    def __init__(self) -> None:
        super().__init__()
        self._reports = 0

    def after_report(self, *_: Any, **facts: Any) -> None:
        """Record the metrics of rank 0."""
        self._reports += 1
        _fence.guard(_reported, self._reports, **facts)


def _reported(count: int, *, metrics: List[Dict[str, Any]], **_: Any) -> None:
    values = dict(metrics[0]) if metrics else {}
    steps = (values[name] for name in ("step", "global_step", "epoch") if name in values)
    sink().metrics(_ORIGIN, values, next(steps, count))
