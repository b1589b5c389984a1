"""Lightning's Trainer and Fabric: what they log, whether or not a logger is configured; hyperparameters, progress, checkpoints.

Not through Lightning's entry point for callbacks: the files that register it would be listed by `pip freeze`, and so be
part of the environments that are made from its output.
"""

from __future__ import annotations

import os
import sys
import weakref

import nsml
from nsml._echo._framework_checkpoints import FrameworkCheckpoints
from nsml._echo._hooks import Fence
from nsml._echo._sink import sink
from nsml._rights import make_folders, make_unique, remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple

_ORIGIN = "lightning"
_CKPT_PATH = 5
"""Position of `ckpt_path` among the arguments of `Trainer.fit`."""
_OF_SHARDS = ("fsdp", "deepspeed", "modelparallel")
_MOST_SUMMARY = 20

_trainings: List[_Training] = []
"""The call of `fit` that runs in this process, if there is one."""


def install(module: Any) -> None:
    """Hook the Trainer or the Fabric in whose module this is."""
    fence = Fence(_ORIGIN, module.__name__)
    if hasattr(module, "Fabric"):
        fence.follow(module.Fabric, "log_dict", before=_fabric_logs)
        return
    fence.follow(module._LoggerConnector, "log_metrics", before=_trainer_logs)  # noqa: SLF001 - called without loggers, too
    fence.follow(module.call, "_call_callback_hooks", _callbacks_were_called)
    fence.follow(module.Trainer, "fit", change=_resume)
    fence.follow(module.Trainer, "save_checkpoint", _saved)


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
    sink().metrics(_ORIGIN, values, step)


def _callbacks_were_called(_: Any, trainer: Any, hook: str, *arguments: Any, **_named: Any) -> None:
    if hook == "on_train_batch_end":
        _batch_ended(trainer, arguments)
    elif hook == "on_fit_start":
        _record_hyperparameters(trainer)
    elif hook == "on_train_start":
        if (training := _training_of(trainer)) is not None:
            training.begins(trainer)
    elif hook == "on_train_end" and (training := _training_of(trainer)) is not None:
        training.checkpoints.ends()
        _trainings.clear()


def _record_hyperparameters(trainer: Any) -> None:
    if not trainer.is_global_zero:
        return
    modules: List[Any] = [trainer.lightning_module, getattr(trainer, "datamodule", None)]
    for module in modules:
        if getattr(module, "_log_hyperparams", False):
            sink().config(_ORIGIN, dict(module.hparams_initial))


def _batch_ended(trainer: Any, arguments: Any) -> None:
    """A safe point: `nsml exec` and the like take effect here. How far the training is; and a save on notice."""
    nsml.step(trainer.global_step)
    if trainer.is_global_zero:
        batches, epochs, steps = trainer.num_training_batches, trainer.max_epochs, trainer.max_steps
        if epochs is not None and epochs > 0 and 0 < batches < sys.maxsize:
            batch = arguments[2] + 1 if len(arguments) > 2 else 0
            done = trainer.current_epoch + batch / batches
            sink().progress.write(done, epochs, "epochs", _ORIGIN)
        elif steps is not None and steps > 0:
            sink().progress.write(trainer.global_step, steps, "steps", _ORIGIN)
    training = _training_of(trainer)
    if training is not None:
        training.batch_ended(trainer)


class _Training:
    """One call of `fit` in this process."""

    def __init__(self, trainer: Any) -> None:
        # A fit that raises ends without a call of ours: its trainer, model and data must not stay in memory.
        self._trainer = weakref.ref(trainer)
        self.checkpoints = FrameworkCheckpoints(_ORIGIN)
        self._step = -1

    def is_of(self, trainer: Any) -> bool:
        """Return whether it is this trainer's."""
        return self._trainer() is trainer

    def begins(self, trainer: Any) -> None:
        """Keep checkpoints from here on; and fetch the best one so far, to which the restored one may refer."""
        strategy = type(trainer.strategy).__name__.lower()
        if trainer.num_nodes > 1 and any(word in strategy for word in _OF_SHARDS):
            text = "its checkpoints are not kept: each node has a part of them"
            sink().log_once("lightning shards", text, _ORIGIN)
            return
        if getattr(trainer, "fast_dev_run", False):
            return
        self._step = trainer.global_step
        self.checkpoints.begins()
        for callback in trainer.checkpoint_callbacks if trainer.ckpt_path else ():
            best = getattr(callback, "best_model_path", "")
            if best and not os.path.exists(best):
                self.checkpoints.another(_name(best), best)

    def batch_ended(self, trainer: Any) -> None:
        """Save on notice, in all processes after the same optimizer step."""
        step = trainer.global_step
        if step == self._step:  # gradients are accumulated: not all processes need be here
            return
        self._step = step
        if self.checkpoints.should_save(step):
            connector = trainer._logger_connector  # noqa: SLF001
            if connector.should_update_logs:  # as it would after this: the program may end here
                _trainer_logs(connector, connector.metrics["log"])
            make_folders(os.path.join(os.environ["NSML_RUN_DIR"], "echo"))
            folder = make_unique(os.path.join(os.environ["NSML_RUN_DIR"], "echo"))
            try:
                trainer.save_checkpoint(os.path.join(folder, f"notice-step={step}.ckpt"))
            finally:
                remove_tree(folder)

    def saved(self, trainer: Any, path: str, *, is_whole: bool) -> None:
        """Make a file or folder that the trainer has saved a checkpoint of the session. Raises SystemExit on notice."""
        self.checkpoints.keep(
            path, _name(path), trainer.global_step, _summary(trainer), is_resumable=is_whole
        )


def _training_of(trainer: Any) -> Optional[_Training]:
    return next((one for one in _trainings if one.is_of(trainer)), None)


def _resume(trainer: Any, *args: Any, **kwargs: Any) -> Optional[Tuple[Any, Dict[str, Any]]]:
    """Let a training without a checkpoint of its own resume from the session's."""
    training = _Training(trainer)
    _trainings[:] = [training]
    given = args[_CKPT_PATH - 1] if len(args) >= _CKPT_PATH else kwargs.get("ckpt_path")
    if given not in (None, "last"):
        return None
    path = training.checkpoints.restored(None)
    if path is None:
        return None
    if len(args) >= _CKPT_PATH:
        return (trainer, *args[: _CKPT_PATH - 1], path, *args[_CKPT_PATH:]), kwargs
    return (trainer, *args), {**kwargs, "ckpt_path": path}


def _saved(
    _: Any,
    trainer: Any,
    filepath: Any,
    weights_only: Optional[bool] = None,
    *_args: Any,
    **_named: Any,
) -> None:
    training = _training_of(trainer)
    if training is not None and "://" not in str(filepath):
        training.saved(trainer, os.fspath(filepath), is_whole=not weights_only)


def _name(path: str) -> str:
    name = os.path.basename(os.path.normpath(path))
    return os.path.splitext(name)[0] if name.endswith(".ckpt") else name


def _summary(trainer: Any) -> Dict[str, Any]:
    values = {}
    for name, value in list(trainer.callback_metrics.items())[:_MOST_SUMMARY]:
        values[str(name)] = float(value)
    return values
