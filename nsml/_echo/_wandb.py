"""Runs of W&B become records of the session: numbers, media, configuration, summary and alerts.

They are recorded in the calling thread, numbers before W&B has them: so nothing is lost when the program is killed, and
it is the same with an account of the user's, offline or without either. W&B itself goes on as before; where there is
no account, `_wandb_account` stands in for one.
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from weakref import WeakKeyDictionary, ref

from nsml._echo._hooks import Fence
from nsml._echo._sink import sink
from nsml._echo._wandb_account import NO_ACCOUNT, Account
from nsml._echo._wandb_axes import Axes
from nsml._echo._wandb_media import media_of, show
from nsml._notice import notice
from nsml._strict import comes_from_signal
from nsml._values import is_mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, MutableMapping, Optional

_ORIGIN = "wandb"
_OWN_NAMES = ("_timestamp", "_runtime", "_step", "_wandb")
_OWN_ARTIFACTS = ("run_table", "wandb-run-incremental-table", "job")
"""Types of artifacts that W&B makes of logged tables and of its jobs."""
_NUMBERS = (float, int, bool)
_MOST_NAMES = 10_000
_MOST_DEPTH = 15
_LONGEST_LIST = 4_096
_MOST_TEXT = 1_000
_KEEP_INSTEAD = "nsml.artifact(NAME, FILES) keeps files with the session"

_account = Account()
_fence = Fence(_ORIGIN, "wandb")


def before_import(_module: Any) -> None:
    """Stand in for an account before W&B reads its settings."""
    _account.check()


def install(module: Any) -> None:
    """Hook what programs call."""
    _fence.follow(module, "init", _initialized, before=_initializes)
    _fence.follow(module, "login", before=_logs_in)
    _fence.follow(module, "setup", before=_checks)
    _fence.follow(module.Api, "__init__", before=_checks)
    for name in ("sweep", "agent"):
        _fence.follow(module, name, before=_sweeps)
    run = import_module("wandb.sdk.wandb_run").Run
    _fence.follow(run, "log", _logged, before=_logs)
    _fence.follow(run, "define_metric", _defined)
    _fence.follow(run, "alert", _alerted)
    for name in ("log_artifact", "upsert_artifact", "log_model"):
        _fence.follow(run, name, before=_leaves_artifact)
    for name in ("use_artifact", "use_model"):
        _fence.follow(run, name, before=_lacks_artifact)
    _fence.follow(run, "save", before=_leaves_files)
    config = import_module("wandb.sdk.wandb_config").Config
    for name in ("__setitem__", "__setattr__"):
        _fence.follow(config, name, _set)
    for name in ("update", "setdefaults", "update_locked", "merge_locked"):
        _fence.follow(config, name, _updated)
    _fence.follow(import_module("wandb.sdk.wandb_summary").SummaryDict, "update", _summarized)
    # It returns what is sent, in each of W&B's own ways to report.
    interface = import_module("wandb.sdk.interface.interface")
    _fence.follow(interface, "history_dict_to_json", _encoded)


class _Run:
    """One run of W&B in this process."""

    def __init__(self, run: Any) -> None:
        identity = str(run.id)
        name = str(run.name or identity)
        self.run = ref(run)
        self.prefix = sink().prefix(_ORIGIN, identity, name)
        self.name = name if self.prefix else ""
        self.is_off = bool(run.disabled)
        self.axes = Axes()
        self._step = int(getattr(run, "starting_step", 0) or 0)
        """Of the next report, as W&B counts; to ask its service takes a millisecond."""
        self._last_step: Any = self._step
        self._latest: Dict[str, Any] = {}
        """Last values of metrics."""
        self._summary: Dict[str, Any] = {}
        """Values set by hand."""

    def log(self, data: Any, step: Any, commit: Any) -> None:
        """Record the numbers of one report."""
        if self.is_off or not is_mapping(data):
            return
        values, time = _numbers_of(data.items())
        at = self._step if step is None else step
        self._last_step = at
        self._count(step, commit)
        if not values:
            return
        latest = self._latest
        latest.update(
            values
            if len(latest) < _MOST_NAMES
            else {name: value for name, value in values.items() if name in latest}
        )
        if not self.axes:
            sink().metrics(_ORIGIN, values, at, prefix=self.prefix, time=time)
            return
        groups: Dict[Any, Dict[str, Any]] = {}
        for name, value in values.items():
            groups.setdefault(self.step_of(name, at), {})[name] = value
        for place, group in groups.items():
            sink().metrics(_ORIGIN, group, place, prefix=self.prefix, time=time)

    def step_of(self, name: str, at: Any) -> Any:
        """Return the last value of the step metric of a metric, if it has one; else `at`."""
        axis = self.axes.axis(name) if self.axes else ""
        found = self._latest.get(axis) if axis else None
        if found is None:
            return at
        return found if type(found) in _NUMBERS else _item(found, at)

    def summarize(self, values: Dict[str, Any]) -> None:
        """Record values of the summary that are set by hand, and are not those that it has anyway."""
        found = {}
        for name, value in values.items():
            for nested, plain in _plain(name, value).items():
                known = self._latest.get(nested, self._summary.get(nested))
                if known is not None and _is_equal(known, plain):
                    continue
                # A value other than the last one of a metric would be a point of its curve.
                found[f"summary/{nested}" if nested in self._latest else nested] = plain
                if len(self._summary) < _MOST_NAMES:
                    self._summary[nested] = plain
        if found and not self.is_off:
            sink().metrics(_ORIGIN, found, self._last_step, prefix=self.prefix, summary=True)

    def configure(self, values: Dict[str, Any]) -> None:
        """Record arguments."""
        plain = {key: value for key, value in values.items() if key[:1] != "_"}
        if plain and not self.is_off:
            sink().config(_ORIGIN, plain, run=self.name)

    def _count(self, step: Any, commit: Any) -> None:
        """Count as W&B does."""
        if step is not None and isinstance(step, (int, float)) and step > self._step:
            self._step = int(step)
        if commit or (step is None and commit is None):
            self._step += 1


_runs: MutableMapping[Any, _Run] = WeakKeyDictionary()
_known: List[_Run] = []
_report = threading.local()
"""`step`: of the report that this thread is making, as it was given."""


def _run_of(run: Any) -> _Run:
    found = _runs.get(run)
    if found is None:
        found = _runs[run] = _Run(run)
        _known[:] = [*(one for one in _known if one.run() is not None), found]
    return found


def _numbers_of(items: Iterable[Any]) -> Any:
    """Return the values of a report that are no media, and its time if it gives one."""
    values: Dict[str, Any] = {}
    time: Optional[float] = None
    for name, value in items:
        kind = type(value)
        if not isinstance(name, str):
            return {}, None  # W&B refuses all of it
        if name in _OWN_NAMES:
            if name == "_timestamp" and isinstance(value, (int, float)):
                time = float(value)
        elif kind is float or kind is int:
            values[name] = value
        else:
            values.update(_plain(name, value))
    return values, time


def _plain(name: str, value: Any, depth: int = 0) -> Dict[str, Any]:
    """Return what is no medium; nested values as NAME.KEY, as W&B shows them."""
    kind = type(value)
    if kind in _NUMBERS:
        return {name: value}
    if value is None or kind is str or str(kind.__module__).startswith(("wandb.", "matplotlib.")):
        return {}
    if is_mapping(value):
        found: Dict[str, Any] = {}
        if depth < _MOST_DEPTH and "_type" not in value:
            for key, entry in [*value.items()]:
                found.update(_plain(f"{name}.{key}", entry, depth + 1))
        return found
    try:
        length = len(value)
    except Exception as error:  # of one number of numpy or torch, which has no length
        if comes_from_signal(error):
            raise
        return {name: value}
    is_list = not isinstance(value, (list, tuple)) or all(type(one) in _NUMBERS for one in value)
    return {name: value} if length <= _LONGEST_LIST and is_list else {}


def _item(value: Any, otherwise: Any) -> Any:
    """Return a number of numpy or torch as Python's."""
    try:
        found = value.item()
    except Exception as error:
        if comes_from_signal(error):
            raise
        return otherwise
    return found if type(found) in _NUMBERS else otherwise


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception as error:  # of arrays
        if comes_from_signal(error):
            raise
        return False


# Hooks.


def _checks(*_: Any, **__: Any) -> None:
    _account.check()


def _initializes(*_: Any, **given: Any) -> None:
    settings = given.get("settings")

    def chosen(name: str) -> Any:
        if isinstance(settings, dict):
            return settings.get(name)
        return getattr(settings, name, None)

    if not _account.explicit(chosen("api_key"), chosen("base_url")):
        _account.check()
    resume = given.get("resume") or chosen("resume") or os.environ.get("WANDB_RESUME")
    identity = given.get("id") or chosen("run_id") or os.environ.get("WANDB_RUN_ID")
    if resume == "must" and identity:
        _account.must_exist.add(str(identity))


def _logs_in(*positional: Any, **given: Any) -> None:
    key, _, host, *_ = (*positional, None, None, None)
    if not _account.explicit(given.get("key", key), given.get("host", host)):
        _account.check()


def _sweeps(*_: Any, **__: Any) -> None:
    _account.check()
    _tell("sweep", f"sweeps are planned by its server, and {NO_ACCOUNT}")


def _leaves_artifact(_run: Any, artifact: Any = None, *_: Any, **__: Any) -> None:
    if getattr(artifact, "type", "") not in _OWN_ARTIFACTS:
        _tell("artifact", f"its artifacts are not kept, since {NO_ACCOUNT}; {_KEEP_INSTEAD}")


def _leaves_files(*_: Any, **__: Any) -> None:
    _tell("save", f"files of run.save are not kept, since {NO_ACCOUNT}; {_KEEP_INSTEAD}")


def _lacks_artifact(*_: Any, **__: Any) -> None:
    _tell("use", f"it has no artifacts to use, since {NO_ACCOUNT}")


def _tell(topic: str, text: str) -> None:
    if _account.is_ours:
        sink().log_once(f"wandb {topic}", text, _ORIGIN)


def _initialized(run: Any, *_: Any, **__: Any) -> None:
    if run is not None:
        _run_of(run).configure(dict(run.config.items()))


def _logs(
    run: Any, data: Any = None, step: Any = None, commit: Any = None, *_: Any, **__: Any
) -> None:
    _report.step = step
    _run_of(run).log(data, step, commit)


def _logged(*_: Any, **__: Any) -> None:
    _report.step = None


def _encoded(payload: Any, run: Any, *_: Any, step: Any = None, **__: Any) -> None:
    if not is_mapping(payload):
        return
    for name, value in media_of(payload):
        known = _run_of(run)
        if known.is_off:
            return
        given = getattr(_report, "step", None)
        shown = sink().media_name(name, known.prefix)
        at = known.step_of(name, step if given is None else given)
        show(_ORIGIN, str(run.dir), shown, value, at)


def _defined(
    _result: Any, run: Any, name: Any, step_metric: Any = None, *_: Any, **__: Any
) -> None:
    axis = getattr(step_metric, "name", step_metric) or ""
    _run_of(run).axes.define(str(name), str(axis))


def _alerted(_result: Any, _run: Any, title: Any = "", text: Any = "", *_: Any, **__: Any) -> None:
    notice("W&B alert: " + " ".join(f"{title}: {text}"[:_MOST_TEXT].split()))


def _set(_result: Any, config: Any, key: Any, *_: Any, **__: Any) -> None:
    name = str(key).strip("-")
    _configured(config, {name: config.get(name)})


def _updated(_result: Any, config: Any, *_: Any, **__: Any) -> None:
    _configured(config, dict(config.items()))


def _configured(config: Any, values: Dict[str, Any]) -> None:
    for known in _known:
        run = known.run()
        if run is not None and run.config is config:
            known.configure(values)


def _summarized(_result: Any, summary: Any, values: Any = None, *_: Any, **__: Any) -> None:
    names: List[str] = []
    root = summary
    while "_parent" in vars(root):
        names.insert(0, str(vars(root)["_parent_key"]))
        root = vars(root)["_parent"]
    for known in _known if is_mapping(values) else []:
        run = known.run()
        if run is not None and run.summary is root:
            known.summarize({".".join([*names, str(key)]): one for key, one in values.items()})
