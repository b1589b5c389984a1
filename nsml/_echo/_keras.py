"""Keras: what `fit` and `evaluate` report, what they are told, and the files of ModelCheckpoint become the session's.

The hooks are on CallbackList, through which every backend reports, so that a program's own callbacks stay as they are.
Metrics have the names that Keras prints and returns in History: `loss`, `val_loss`, and the epoch as step, counted from 0
as by its own callbacks for TensorBoard and W&B. Within an epoch they are `batch_loss`, as by the former, by batch.
"""

from __future__ import annotations

import os
import time
import weakref

from nsml._echo._hooks import Fence
from nsml._echo._sink import sink
from nsml._progress import is_first
from nsml._strict import reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional, Tuple

_ORIGIN = "keras"
_BATCH_S = 1.0
"""Least time between two reports within an epoch: values of a batch are read from the device."""
_FIT_PARAMETERS = ("batch_size", "validation_split", "shuffle", "class_weight")
_BATCH_SIZE = 3
"""Position of `batch_size` among the arguments of `fit`."""


def install(module: Any) -> None:
    """Follow all fits."""
    callbacks = getattr(module, "callbacks", None)
    lists = getattr(callbacks, "CallbackList", None)
    if lists is None:
        return
    fence = Fence(_ORIGIN, module.__name__)
    fits = _Fits()
    fence.follow(lists, "on_train_begin", before=fits.train_begins)
    fence.follow(lists, "on_epoch_begin", before=fits.epoch_begins)
    fence.follow(lists, "on_train_batch_end", fits.batch_ends)
    fence.follow(lists, "on_epoch_end", fits.epoch_ends)
    fence.follow(lists, "on_train_end", fits.train_ends)
    fence.follow(lists, "on_test_end", fits.evaluated)
    for kind in getattr(getattr(module, "Model", None), "__mro__", ()):
        if "fit" in vars(kind):
            fence.follow(kind, "fit", before=fits.fit_begins)
            break
    checkpoint = getattr(callbacks, "ModelCheckpoint", None)
    if checkpoint is not None:
        files = _Files()
        fence.follow(checkpoint, "_get_file_path", files.named)
        fence.follow(checkpoint, "_save_model", files.saved)


class _Fit:
    """One `fit`."""

    def __init__(self, model: _Model, params: Mapping[str, Any]) -> None:
        self.model = model
        self.epochs = _count(params.get("epochs"))
        self.steps = _count(params.get("steps"))
        self.epoch: Optional[int] = None
        self.batches = 0
        """Batches of this epoch."""
        self.due = time.monotonic() + _BATCH_S

    def progress(self) -> float:
        part = self.batches / self.steps if self.steps else 0.0
        return (self.epoch or 0) + min(part, 1.0)


class _Model:
    """One model: a further fit continues its x axes."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.fits = 0
        self.offset = 0
        self.next_epoch = 0
        self.batches = 0
        """Batches of all epochs that have ended."""

    def begin(self, epoch: int) -> None:
        """Begin a fit with this epoch: one that counts from 0 again comes after the last one."""
        self.offset = max(self.next_epoch - epoch, 0)


class _Fits:
    """The fits of this process."""

    def __init__(self) -> None:
        self._fits: weakref.WeakKeyDictionary[Any, _Fit] = weakref.WeakKeyDictionary()
        self._models: weakref.WeakKeyDictionary[Any, _Model] = weakref.WeakKeyDictionary()
        self._count = 0
        self._given: Dict[str, Any] = {}

    # Functions before or after those of Keras, with their signatures.

    def fit_begins(self, *args: Any, **kwargs: Any) -> None:
        given = {name: kwargs[name] for name in _FIT_PARAMETERS if kwargs.get(name) is not None}
        if len(args) > _BATCH_SIZE and args[_BATCH_SIZE] is not None:
            given["batch_size"] = args[_BATCH_SIZE]
        self._given = given

    def train_begins(self, callbacks: Any, *_: Any, **__: Any) -> None:
        keras = callbacks.model
        model = self._model(keras)
        params = callbacks.params or {}
        self._fits[callbacks] = _Fit(model, params)
        model.fits += 1
        if model.fits == 1:
            given, self._given = self._given, {}
            sink().config(_ORIGIN, _config(keras, params, given), run=model.prefix.rstrip("/"))

    def epoch_begins(self, callbacks: Any, epoch: int, *_: Any, **__: Any) -> None:
        fit = self._fits.get(callbacks)
        if fit is None:
            return
        if fit.epoch is None:
            fit.model.begin(epoch)
        fit.epoch, fit.batches = epoch, 0

    def batch_ends(self, _: Any, callbacks: Any, batch: int, logs: Any = None, **__: Any) -> None:
        fit = self._fits.get(callbacks)
        if fit is None:
            return
        fit.batches = batch + 1
        now = time.monotonic()
        if now < fit.due:
            return
        if logs:
            values = {f"batch_{name}": value for name, value in _logs(logs).items()}
            step = fit.model.batches + fit.batches
            sink().metrics(_ORIGIN, values, step, prefix=fit.model.prefix)
        self._report_progress(fit)
        fit.due = time.monotonic() + _BATCH_S

    def epoch_ends(self, _: Any, callbacks: Any, epoch: int, logs: Any = None, **__: Any) -> None:
        fit = self._fits.get(callbacks)
        if fit is None:
            return
        model = fit.model
        values = dict(_logs(logs or {}))
        rate = _learning_rate(callbacks.model)
        if rate is not None:
            values.setdefault("learning_rate", rate)
        sink().metrics(_ORIGIN, values, model.offset + epoch, prefix=model.prefix)
        model.next_epoch = model.offset + epoch + 1
        model.batches += fit.batches
        fit.epoch, fit.batches = epoch + 1, 0
        self._report_progress(fit)

    def train_ends(self, _: Any, callbacks: Any, *__: Any, **___: Any) -> None:
        fit = self._fits.pop(callbacks, None)
        if fit is not None:
            sink().progress.finish(fit.progress(), fit.epochs, "epochs", _ORIGIN)

    def evaluated(
        self,
        result: Any,  # noqa: ARG002
        callbacks: Any,
        logs: Any = None,
        **_: Any,
    ) -> None:
        if callbacks in self._fits or not logs:  # validation: the epoch has its values
            return
        model = self._model(callbacks.model)
        values = {f"evaluation_{name}": value for name, value in _logs(logs).items()}
        step = model.next_epoch - 1 if model.next_epoch else None
        sink().metrics(_ORIGIN, values, step, prefix=model.prefix)

    def _model(self, keras: Any) -> _Model:
        found = self._models.get(keras)
        if found is None:
            self._count += 1
            name = str(getattr(keras, "name", "") or "model")
            found = self._models[keras] = _Model(sink().prefix(_ORIGIN, str(self._count), name))
        return found

    def _report_progress(self, fit: _Fit) -> None:
        """Report epochs done, but not those of a loop of the program's around fits of one epoch."""
        if not fit.epochs or (fit.epochs == 1 and fit.model.fits > 1) or fit.model.prefix:
            return
        sink().progress.write(fit.progress(), fit.epochs, "epochs", _ORIGIN)


class _Files:
    """Files of ModelCheckpoint, which become checkpoints of the session."""

    def __init__(self) -> None:
        self._before: Tuple[str, Any] = ("", None)

    def named(self, path: Any, *_: Any, **__: Any) -> None:
        """Look at a file before it is saved, perhaps."""
        self._before = os.fspath(path), _mark(path)

    def saved(self, *_: Any, **__: Any) -> None:
        (path, before), self._before = self._before, ("", None)
        if path and _mark(path) not in (None, before):
            _keep(path)


def _keep(path: str) -> None:
    """Save a file as a checkpoint. A notice of the platform is not answered: that is for who can resume."""
    from nsml import _session
    from nsml._copies import copy_file

    if not is_first():
        return
    name = os.path.basename(path)

    def save(folder: str, **_: Any) -> None:
        copy_file(path, os.path.join(folder, name))

    try:
        _session._SESSION._save(name, save)  # noqa: SLF001
    except (OSError, ValueError) as error:
        sink().log_once(
            "checkpoint",
            f"checkpoint {name} is not saved in the session, training goes on: {reason(error)}",
            _ORIGIN,
        )


def _mark(path: Any) -> Any:
    """Return what changes when a file is written; None of folders and what is elsewhere."""
    try:
        if not os.path.isfile(path):
            return None
        facts = os.stat(path)
    except (OSError, ValueError):
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _config(model: Any, params: Mapping[str, Any], given: Mapping[str, Any]) -> Dict[str, Any]:
    found: Dict[str, Any] = {"model": str(getattr(model, "name", ""))}
    for name in ("epochs", "steps"):
        if params.get(name) is not None:
            found["steps_per_epoch" if name == "steps" else name] = params[name]
    found.update(given)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        values = optimizer.get_config()
        found["optimizer"] = {
            key: _rounded(value) for key, value in values.items() if value is not None
        }
    loss = getattr(model, "loss", None)
    if loss is not None:
        found["loss"] = _name(loss)
    if getattr(model, "built", False):
        found["model_parameters"] = int(model.count_params())
    return found


def _name(value: Any) -> Any:
    """Return the name of a loss, or those of several."""
    if isinstance(value, (list, tuple)):
        return [_name(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _name(one) for key, one in value.items()}
    if isinstance(value, str):
        return value
    return str(getattr(value, "name", "") or getattr(value, "__name__", "") or type(value).__name__)


def _learning_rate(model: Any) -> Optional[float]:
    optimizer = getattr(model, "optimizer", None)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    rate = getattr(optimizer, "learning_rate", None)
    try:
        return None if rate is None else _rounded(float(rate))
    except (TypeError, ValueError):
        return None  # a schedule of Keras 2


def _rounded(value: Any) -> Any:
    """Return a number that was 0.001 before it was one of 32 bits as 0.001."""
    return float(f"{value:.7g}") if type(value) is float else value


def _logs(logs: Any) -> Mapping[str, Any]:
    """Return logs as a mapping; arrays on a device become numbers in the sink."""
    return logs if isinstance(logs, dict) else {}


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0
