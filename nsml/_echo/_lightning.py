"""Lightning's Trainer and Fabric: what they log, whether or not a logger is configured; hyperparameters and progress.

Not through Lightning's entry point for callbacks: the files that register it would be listed by `pip freeze`, and so be
part of the environments that are made from its output.
"""

from __future__ import annotations

import sys

import nsml
from nsml._echo._hooks import Fence
from nsml._echo._sink import sink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional

_ORIGIN = "lightning"
_SHOWN = ("loss", "acc", "accuracy")
"""Last words of metrics that `nsml ps` shows: of all others there may be hundreds."""


def install(module: Any) -> None:
    """Hook the Trainer or the Fabric in whose module this is."""
    fence = Fence(_ORIGIN, module.__name__)
    if hasattr(module, "Fabric"):
        fence.follow(module.Fabric, "log_dict", before=_fabric_logs)
        return
    fence.follow(module._LoggerConnector, "log_metrics", before=_trainer_logs)  # noqa: SLF001 - called without loggers, too
    fence.follow(module.call, "_call_callback_hooks", _callbacks_were_called)


def _fabric_logs(fabric: Any, metrics: Mapping[str, Any], step: Optional[int] = None) -> None:
    if fabric.is_global_zero:
        sink().metrics(_ORIGIN, metrics, step)


def _trainer_logs(connector: Any, metrics: Mapping[str, Any], step: Optional[int] = None) -> None:
    """Record what the loggers get: the same names and steps."""
    trainer = connector.trainer
    if not metrics or trainer.sanity_checking or not trainer.is_global_zero:
        return
    values = dict(metrics)
    if step is None:
        step = values.pop("step", None)
    if step is None:
        values.setdefault("epoch", trainer.current_epoch)
        loop = trainer.fit_loop.epoch_loop
        step = getattr(loop, "_batches_that_stepped", trainer.global_step)
    shown = {name: value for name, value in values.items() if _is_shown(name)}
    others = {name: value for name, value in values.items() if name not in shown}
    for chosen, summary in ((shown, True), (others, False)):
        if chosen:
            sink().metrics(_ORIGIN, chosen, step, summary=summary)


def _is_shown(name: str) -> bool:
    words = name.lower().replace("/", "_").split("_")
    return bool(words) and words[-1] in _SHOWN


def _callbacks_were_called(_: Any, trainer: Any, hook: str, *arguments: Any, **_named: Any) -> None:
    if hook == "on_train_batch_end":
        _batch_ended(trainer, arguments)
    elif hook == "on_fit_start" and trainer.is_global_zero:
        modules: List[Any] = [trainer.lightning_module, getattr(trainer, "datamodule", None)]
        for module in modules:
            if getattr(module, "_log_hyperparams", False):
                sink().config(_ORIGIN, dict(module.hparams_initial))


def _batch_ended(trainer: Any, arguments: Any) -> None:
    """A safe point: `nsml exec` and the like take effect here; and how far the training is."""
    nsml.step(trainer.global_step)
    if not trainer.is_global_zero:
        return
    batches, epochs, steps = trainer.num_training_batches, trainer.max_epochs, trainer.max_steps
    if epochs is not None and epochs > 0 and 0 < batches < sys.maxsize:
        batch = arguments[2] + 1 if len(arguments) > 2 else 0
        done: float = trainer.current_epoch + batch / batches
        sink().progress(_ORIGIN, done, epochs, "epochs")
    elif steps is not None and steps > 0:
        sink().progress(_ORIGIN, trainer.global_step, steps, "steps")
