"""Results of Ray Tune's trials, each with its number as prefix: `trial_00002/loss`."""

from __future__ import annotations

from ray.tune import Callback  # type: ignore[import-not-found] # there when Ray imports this

from nsml._echo._hooks import Fence
from nsml._echo._sink import sink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

_ORIGIN = "ray"
_STEP = "training_iteration"
_OF_RAY = frozenset(
    (
        *(
            "checkpoint_dir_name",
            "config",
            "date",
            "done",
            "experiment_id",
            "experiment_tag",
            "hostname",
        ),
        *("iterations_since_restore", "node_ip", "pid", "should_checkpoint", "time_since_restore"),
        *(
            "time_this_iter_s",
            "time_total_s",
            "timestamp",
            "timesteps_since_restore",
            "timesteps_total",
        ),
        *("trial_id", "warmup_time", _STEP),
    )
)
"""Entries of a result that Ray adds."""
_fence = Fence(_ORIGIN, "ray.tune")


class TrialCallback(Callback):  # type: ignore[misc]
    """Records the results of trials."""

    def on_trial_start(self, *_: Any, **facts: Any) -> None:
        """Record the trial's configuration."""
        _fence.guard(_started, **facts)

    def on_trial_result(self, *_: Any, **facts: Any) -> None:
        """Record a result."""
        _fence.guard(_reported, **facts)


def _started(*, trial: Any, **_: Any) -> None:
    sink().config(_ORIGIN, dict(trial.config), run=_run(trial))


def _reported(*, trial: Any, result: Dict[str, Any], **_: Any) -> None:
    values = {name: value for name, value in result.items() if name not in _OF_RAY}
    step, time = result.get(_STEP), result.get("timestamp")
    sink().metrics(_ORIGIN, values, step, prefix=f"{_run(trial)}/", time=time)


def _run(trial: Any) -> str:
    """Return the trial's name in each repetition of the experiment: its id is `7f120_00002`, first of all random."""
    return f"trial_{str(trial.trial_id).rpartition('_')[2]}"
