"""Keras: what `fit` and `evaluate` report, what they are told, and the files of ModelCheckpoint become the session's.

A `fit` with BackupAndRestore is saved on notice, and goes on in a further attempt: its backup is a checkpoint, and is
back in its folder before Keras looks there. nsml adds no such callback: what other callbacks, data and random numbers
are at is in no file of Keras, so that the program has to ask for it.

The hooks are on CallbackList, through which every backend reports, so that a program's own callbacks stay as they are.
Metrics have the names that Keras prints and returns in History: `loss`, `val_loss`, and the epoch as step, counted from 0
as by its own callbacks for TensorBoard and W&B. Within an epoch they are `batch_loss`, as by the former, by batch.
"""

from __future__ import annotations

import json
import os
import time
import weakref

from nsml._echo._framework_checkpoints import FrameworkCheckpoints, Ranks, move
from nsml._echo._hooks import Fence
from nsml._echo._sink import sink
from nsml._rights import make_folders, remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple

_ORIGIN = "keras"
_BATCH_S = 1.0
"""Least time between two reports within an epoch: values of a batch are read from the device."""
_FIT_PARAMETERS = ("batch_size", "validation_split", "shuffle", "class_weight")
_BATCH_SIZE = 3
"""Position of `batch_size` among the arguments of `fit`."""
_POSITION = "training_metadata.json"
"""The file of BackupAndRestore with the epoch to go on with."""
_MOST_SUMMARY = 20
_STATE_LOST = frozenset(("EarlyStopping", "ReduceLROnPlateau", "SwapEMAWeights"))
"""Callbacks of Keras with a state that its backup lacks."""


def install(module: Any) -> None:
    """Follow all fits."""
    callbacks = getattr(module, "callbacks", None)
    lists = getattr(callbacks, "CallbackList", None)
    if lists is None:
        return
    fence = Fence(_ORIGIN, module.__name__)
    backup = getattr(callbacks, "BackupAndRestore", None)
    fits = _Fits(backup)
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
    if backup is not None:
        fence.follow(backup, "_save_model", fits.backed_up)
    checkpoint = getattr(callbacks, "ModelCheckpoint", None)
    if checkpoint is not None:
        files = _Files(fits)
        fence.follow(checkpoint, "_get_file_path", files.named)
        fence.follow(checkpoint, "_save_model", files.saved)


class _Fit:
    """One `fit`, in whose callbacks may be a BackupAndRestore."""

    def __init__(
        self, model: _Model, params: Mapping[str, Any], callbacks: List[Any], backup: Any
    ) -> None:
        self.model = model
        self.epochs = _count(params.get("epochs"))
        self.steps = _count(params.get("steps"))
        self.epoch: Optional[int] = None
        self.batches = 0
        """Batches of this epoch."""
        self.due = time.monotonic() + _BATCH_S
        self.checkpoints = FrameworkCheckpoints(_ORIGIN)
        self.backup: Any = None
        """The callback whose backup is the session's; None without one."""
        self.is_backed_up = False
        """Whether there is a backup that is not kept yet."""
        self.is_restored = False
        """Whether Keras goes on from the backup of an earlier attempt."""
        self.logs: Dict[str, Any] = {}
        """Of the last epoch or batch."""
        self._begin_checkpoints(callbacks, backup)

    def _begin_checkpoints(self, callbacks: List[Any], backup: Any) -> None:
        """Keep what is saved; and put a backup in place if this training is to go on from it."""
        ranks = Ranks.current()
        found = next((one for one in callbacks if backup and isinstance(one, backup)), None)
        if found is not None and "://" not in str(found.backup_dir):
            if ranks is None or ranks.size > 1:
                text = "the backup of BackupAndRestore is not kept: several processes train"
                sink().log_once("keras backup", text, _ORIGIN)
            else:
                self.backup = found
                path = os.path.abspath(found.backup_dir)
                self.is_restored = _restore(self.checkpoints, path)
                if self.is_restored:
                    _say_lost(callbacks)
        self.checkpoints.begins(is_resumable=self.backup is not None)

    def keep_backup(self, *, is_epoch: bool) -> None:
        """Make the last backup a checkpoint; on notice save one. Raises SystemExit on notice."""
        if self.backup is None:
            return
        done = self.model.batches + self.batches
        if is_epoch and not self.is_backed_up and self.checkpoints.should_save(done):
            self.backup._save_model()  # noqa: SLF001 - of the hooked class
        if not self.is_backed_up:
            return
        self.is_backed_up = False
        path = os.path.abspath(self.backup.backup_dir)
        self.checkpoints.keep(path, os.path.basename(path), done, _summary(self.logs))

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

    def begin(self, epoch: int, fit: _Fit) -> None:
        """Begin a fit with this epoch: one that counts from 0 again comes after the last one."""
        self.offset = max(self.next_epoch - epoch, 0)
        if fit.backup is not None and not self.batches:
            self.batches = epoch * fit.steps  # of an earlier attempt


class _Fits:
    """The fits of this process."""

    def __init__(self, backup: Any) -> None:
        self._backup = backup
        """The class BackupAndRestore."""
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
        fit = _Fit(model, params, list(callbacks.callbacks), self._backup)
        self._fits[callbacks] = fit
        model.fits += 1
        if model.fits == 1:
            given, self._given = self._given, {}
            sink().config(_ORIGIN, _config(keras, params, given), run=model.prefix.rstrip("/"))

    def epoch_begins(self, callbacks: Any, epoch: int, *_: Any, **__: Any) -> None:
        fit = self._fits.get(callbacks)
        if fit is None:
            return
        if fit.epoch is None:
            fit.model.begin(epoch, fit)
        fit.epoch, fit.batches = epoch, 0

    def batch_ends(self, _: Any, callbacks: Any, batch: int, logs: Any = None, **__: Any) -> None:
        fit = self._fits.get(callbacks)
        if fit is None:
            return
        fit.batches = batch + 1
        now = time.monotonic()
        if now >= fit.due:
            if logs:
                values = {f"batch_{name}": value for name, value in _logs(logs).items()}
                step = fit.model.batches + fit.batches
                sink().metrics(_ORIGIN, values, step, prefix=fit.model.prefix)
            self._report_progress(fit)
            fit.due = time.monotonic() + _BATCH_S
        if fit.is_backed_up and not getattr(callbacks, "_async_train", False):
            fit.logs = dict(_logs(logs or {}))
            fit.keep_backup(is_epoch=False)

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
        fit.logs = values
        fit.keep_backup(is_epoch=True)

    def train_ends(self, _: Any, callbacks: Any, *__: Any, **___: Any) -> None:
        fit = self._fits.pop(callbacks, None)
        if fit is not None:
            sink().progress.finish(fit.progress(), fit.epochs, "epochs", _ORIGIN)
            fit.checkpoints.ends()
            if fit.is_restored and hasattr(callbacks.model, "_initial_epoch"):
                # BackupAndRestore leaves it there: further fits would begin with that epoch, too.
                callbacks.model._initial_epoch = None  # noqa: SLF001

    def backed_up(self, _: Any, backup: Any, *__: Any, **___: Any) -> None:
        """Note that BackupAndRestore has saved: its files are kept when all callbacks have been called."""
        for fit in list(self._fits.values()):
            if fit.backup is backup:
                fit.is_backed_up = True

    def fit_of(self, callback: Any) -> Optional[_Fit]:
        """Return the fit with this callback."""
        for callbacks, fit in list(self._fits.items()):
            if any(one is callback for one in callbacks.callbacks):
                return fit
        return None

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
    """Files of ModelCheckpoint, which become checkpoints of the session. Nothing resumes from them."""

    def __init__(self, fits: _Fits) -> None:
        self._fits = fits
        self._before: Tuple[str, Any] = ("", None)

    def named(self, path: Any, *_: Any, **__: Any) -> None:
        """Look at a file before it is saved, perhaps."""
        self._before = os.fspath(path), _mark(path)

    def saved(self, _: Any, callback: Any, *args: Any, **kwargs: Any) -> None:
        """Keep the file if it was saved."""
        (path, before), self._before = self._before, ("", None)
        fit = self._fits.fit_of(callback)
        if fit is None or not path or _mark(path) in (None, before):
            return
        logs = kwargs.get("logs", args[2] if len(args) > 2 else None)
        batch = kwargs.get(
            "batch", args[1] if len(args) > 1 else None
        )  # None: at the end of an epoch
        fit.checkpoints.keep(
            path,
            os.path.basename(path),
            fit.model.batches + (fit.batches if batch is None else batch + 1),
            _summary(_logs(logs or {})),
            waits=False,
            is_resumable=False,
        )


def _restore(checkpoints: FrameworkCheckpoints, folder: str) -> bool:
    """Put the backup of an earlier attempt at its place, unless one that is as far or further is there."""
    path = checkpoints.restored(otherwise=os.path.basename(folder))
    if path is None:
        return False
    if _position(folder) >= _position(path):
        return True
    if os.path.lexists(folder):
        remove_tree(folder)
    make_folders(os.path.dirname(folder))
    move(path, folder)
    return True


def _position(folder: str) -> Tuple[int, int]:
    """Return epoch and batch of a backup; less than any if there is none."""
    try:
        with open(os.path.join(folder, _POSITION), encoding="utf-8") as file:
            found = json.load(file)
        return int(found["epoch"]), int(found.get("batch") or 0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return -1, 0


def _say_lost(callbacks: List[Any]) -> None:
    """Name the callbacks that begin anew: the training may end otherwise than without the break."""
    names = set()
    for one in callbacks:
        kinds = {kind.__name__ for kind in type(one).__mro__}
        is_best = "ModelCheckpoint" in kinds and getattr(one, "save_best_only", False)
        if is_best or kinds & _STATE_LOST:
            names.add(type(one).__name__)
    if names:
        text = f"{', '.join(sorted(names))}: begins anew, a backup of Keras lacks the state"
        sink().log_once("keras callbacks", text, _ORIGIN)


def _summary(logs: Mapping[str, Any]) -> Dict[str, Any]:
    values = {}
    for name, value in list(logs.items())[:_MOST_SUMMARY]:
        try:
            values[str(name)] = float(value)
        except (TypeError, ValueError):
            continue  # no number
    return values


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
