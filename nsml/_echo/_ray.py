"""Ray Tune and Ray Train: a callback of ours beside those of RAY_TUNE_CALLBACKS and RAY_TRAIN_CALLBACKS.

Not through the variables themselves: a callback that cannot be imported would end the program.
"""

from __future__ import annotations

from nsml._echo._hooks import Fence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List


def install(module: Any) -> None:
    """Add the callback where Ray reads the variable of Tune or of Train."""
    fence = Fence("ray", module.__name__)
    added = _tune if module.__name__.startswith("ray.tune") else _train
    fence.follow(module, "_initialize_env_callbacks", added)


def _tune(callbacks: List[Any]) -> None:
    from nsml._echo._ray_tune import TrialCallback

    callbacks.append(TrialCallback())


def _train(callbacks: List[Any]) -> None:
    from nsml._echo._ray_train import ReportCallback

    callbacks.append(ReportCallback())
