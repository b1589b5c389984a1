"""Hooks on Hugging Face Transformers: each Trainer reports, saves checkpoints of the session, and resumes from them."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from contextlib import suppress

from nsml._echo._framework_checkpoints import FrameworkCheckpoints
from nsml._echo._hooks import Fence
from nsml._echo._sink import sink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple

_ORIGIN = "transformers"
_INTEGRATIONS = "transformers.integrations.integration_utils"
_STATE = "trainer_state.json"
_PREFIXES = ("eval", "test")
_MAIN = frozenset(("train/loss", "eval/loss", "eval/accuracy"))
_ALWAYS = frozenset(
    ("learning_rate", "num_train_epochs", "output_dir", "per_device_train_batch_size", "seed")
)
"""Arguments that are recorded though they are the defaults."""
_NEVER = frozenset(("do_eval", "do_predict", "do_train", "local_rank", "logging_dir", "report_to"))
"""Arguments that the library sets, or that say nothing of the training."""
_MOST_LABELS = 20

_fence = Fence(_ORIGIN, _ORIGIN)


def install(module: Any) -> None:
    """Add the callback to each Trainer, and let `train` resume. `module`: transformers.trainer."""
    global _fence
    _fence = Fence(_ORIGIN, module.__name__)
    module.DEFAULT_CALLBACKS.append(_callback_class())
    _fence.follow(module.Trainer, "train", change=_resume)
    callback = getattr(sys.modules.get(_INTEGRATIONS), "MLflowCallback", None)
    for name in ("setup", "on_log") if callback is not None else ():
        _fence.follow(callback, name, _unmute_mlflow, before=_mute_mlflow)


def _mute_mlflow(*_: Any, **__: Any) -> None:
    """Its names lack the prefix that those for W&B and TensorBoard have: `loss` is `train/loss`."""
    sink().mute("mlflow", on=True)


def _unmute_mlflow(*_: Any, **__: Any) -> None:
    sink().mute("mlflow", on=False)


class _Reporting:
    """The callback of a Trainer. Errors of ours stay here; all attributes are forgotten by pickle and copies."""

    def __init__(self) -> None:
        self.checkpoints: Optional[FrameworkCheckpoints] = None
        """Of the current training; None: none are kept."""
        self._summary: Dict[str, Any] = {}

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), ()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the library's signature
        _fence.guard(self._train_begins, args, state, kwargs.get("model"))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        _fence.guard(self._record, args, state, logs)

    def on_predict(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        _fence.guard(self._record, args, state, kwargs.get("metrics"))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
        _fence.guard(self._step_ends, state, control)
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        _fence.guard(self._saved, args, state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        _fence.guard(self._train_ends, state)

    def _train_begins(self, args: Any, state: Any, model: Any) -> None:
        if state.is_world_process_zero:
            prefix = _prefix(args, state)
            values = {**_arguments(args), "model": _model(model)}
            sink().config(_ORIGIN, values, run=prefix.strip("/"))
        checkpoints = self.checkpoints
        if checkpoints is None or state.is_hyper_param_search:
            return
        if _is_sharded_over_nodes(args):
            sink().log_once(
                "shards",
                "its checkpoints are not kept: each node has a part of them",
                _ORIGIN,
            )
            return
        checkpoints.begins(is_resumable=not getattr(args, "save_only_model", False))

    def _record(self, args: Any, state: Any, values: Any) -> None:
        if not values or not state.is_world_process_zero:
            return
        main: Dict[str, Any] = {}
        others: Dict[str, Any] = {}
        mains = _MAIN | {
            _renamed(str(getattr(args, "metric_for_best_model", None) or "loss"), "eval")
        }
        for name, value in values.items():
            renamed = _renamed(name)
            (main if renamed in mains else others)[renamed] = value
        now, prefix = time.time(), _prefix(args, state)
        for part, is_main in ((main, True), (others, False)):
            sink().metrics(
                _ORIGIN, part, state.global_step, prefix=prefix, time=now, summary=is_main
            )
        self._summary.update(main)

    def _step_ends(self, state: Any, control: Any) -> None:
        session = _session()
        if state.is_world_process_zero:
            session.progress_writer.write(
                state.global_step, max(state.max_steps, 0), "steps", _ORIGIN
            )
        session.points.step(state.global_step)
        if self.checkpoints is not None and self.checkpoints.should_save(state.global_step):
            control.should_save = True
            control.should_log = True  # the mean loss since the last log would be lost

    def _saved(self, args: Any, state: Any) -> None:
        if self.checkpoints is None:
            return
        name = f"checkpoint-{state.global_step}"
        path = os.path.join(args.output_dir, name)
        if os.path.isdir(path) or not state.is_world_process_zero:
            self.checkpoints.keep(path, name, state.global_step, dict(self._summary))

    def _train_ends(self, state: Any) -> None:
        if state.is_world_process_zero:
            _session().progress_writer.finish(
                state.global_step, max(state.max_steps, 0), "steps", _ORIGIN
            )
        if self.checkpoints is not None:
            self.checkpoints.ends()
            self.checkpoints = None


def __getattr__(name: str) -> Any:
    if name == "NsmlCallback":  # in a process that loads a pickled Trainer
        return _callback_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _callback_class() -> Any:
    found = globals().get("NsmlCallback")
    if found is None:
        from importlib import import_module

        base = import_module("transformers.trainer_callback").TrainerCallback
        found = type("NsmlCallback", (_Reporting, base), {"__module__": __name__})
        globals()["NsmlCallback"] = found
    return found


def _session() -> Any:
    from nsml import _session

    return _session._SESSION  # noqa: SLF001 - of the same package


def _resume(
    trainer: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any
) -> Optional[Tuple[Any, Dict[str, Any]]]:
    """Let a training that is not to resume from a checkpoint of its own resume from the session's.

    `True` means the last one of its folder, which is empty in a new attempt.
    """
    handler = trainer.callback_handler
    callback = next((one for one in handler.callbacks if isinstance(one, _Reporting)), None)
    trial = args[0] if args else kwargs.get("trial")
    if callback is None or trial is not None:
        return None
    checkpoints = callback.checkpoints = FrameworkCheckpoints(_ORIGIN)
    if resume_from_checkpoint is not None and resume_from_checkpoint not in (True, False):
        return None
    folder = trainer.args.output_dir
    if resume_from_checkpoint is True:
        find = getattr(sys.modules.get("transformers.trainer"), "get_last_checkpoint", None)
        if find is None or (os.path.isdir(folder) and find(folder) is not None):
            return None
    path = checkpoints.restored(folder)
    if path is None or not os.path.isfile(os.path.join(path, _STATE)):
        return None
    _fetch_best(checkpoints, path, folder)
    return (trainer, path, *args), kwargs


def _fetch_best(checkpoints: FrameworkCheckpoints, path: str, folder: str) -> None:
    """Fetch the best checkpoint so far, too, which the state of the restored one names."""
    import json

    with open(os.path.join(path, _STATE), encoding="utf-8") as file:
        best = json.load(file).get("best_model_checkpoint")
    if best and os.path.realpath(os.path.dirname(best)) == os.path.realpath(folder):
        checkpoints.another(os.path.basename(best), os.path.abspath(best))


def _renamed(name: str, default: str = "train") -> str:
    """Return a metric's name as the library's own callbacks for W&B and TensorBoard have it."""
    for prefix in _PREFIXES:
        if name.startswith(f"{prefix}_"):
            return f"{prefix}/{name[len(prefix) + 1 :]}"
    return f"{default}/{name}"


def _prefix(args: Any, state: Any) -> str:
    trial = getattr(state, "trial_name", None) or ""
    folder = str(args.output_dir or "")
    name = getattr(args, "run_name", None) or folder
    if name == folder:
        name = os.path.basename(os.path.normpath(folder))
    return sink().prefix(_ORIGIN, f"{folder} {trial}", str(trial or name))


def _is_sharded_over_nodes(args: Any) -> bool:
    is_sharded = bool(getattr(args, "fsdp", None) or getattr(args, "deepspeed", None))
    on_node = os.environ.get("LOCAL_WORLD_SIZE") or "1"
    return is_sharded and (os.environ.get("WORLD_SIZE") or "1") != on_node


def _arguments(args: Any) -> Dict[str, Any]:
    """Return the training arguments that differ from the defaults, and the main ones; no tokens."""
    values = args.to_dict()
    found = {}
    for field in dataclasses.fields(args):
        name = field.name
        if name not in values or name in _NEVER or name.endswith("_token") or name[:1] == "_":
            continue
        value = values[name]
        if name in _ALWAYS or _differs(getattr(args, name), value, field):
            found[name] = value
    if found.get("run_name") == found.get("output_dir"):
        found.pop("run_name", None)
    return found


def _differs(given: Any, value: Any, field: Any) -> bool:
    """Return whether a value is not the default, which the library may have replaced by something like it."""
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    default = getattr(default, "value", default)  # of an enumeration
    if value == default or not (value or default):
        return False
    if default is None and dataclasses.is_dataclass(given) and not isinstance(given, type):
        with suppress(TypeError):  # a class without defaults
            return bool(given != type(given)())
    return True


def _model(model: Any) -> Dict[str, Any]:
    """Return the model's configuration where it differs from the defaults, and its number of parameters."""
    config: Any = getattr(model, "config", None)
    found: Dict[str, Any] = {}
    if isinstance(config, dict):
        found.update(config)
    elif hasattr(config, "to_diff_dict"):
        found.update(config.to_diff_dict())
        name = getattr(config, "_name_or_path", "")
        if name:
            found["name"] = name
    for labels in ("id2label", "label2id"):
        if len(found.get(labels) or ()) > _MOST_LABELS:
            found.pop(labels, None)
    found.pop("transformers_version", None)
    peft = getattr(model, "peft_config", None)
    if isinstance(peft, dict):
        found["peft"] = {
            name: {key: value for key, value in one.to_dict().items() if value}
            for name, one in peft.items()
            if hasattr(one, "to_dict")
        }
    if hasattr(model, "num_parameters"):
        found["num_parameters"] = model.num_parameters()
    elif hasattr(model, "parameters"):
        found["num_parameters"] = sum(one.numel() for one in model.parameters())
    return found
