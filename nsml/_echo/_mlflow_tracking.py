"""Experiments, runs and logged models of MLflow within one process: what it logs, it can read back."""

from __future__ import annotations

import uuid
from contextlib import suppress
from urllib.parse import quote

from nsml._echo._mlflow_rest import (
    MOST_NAMES,
    Refusal,
    entries,
    integer,
    now,
    number,
    number_json,
    pairs,
    pairs_json,
    put,
    text,
)
from nsml._echo._mlflow_search import found_by, search_experiments, search_models, search_runs
from nsml._echo._mlflow_series import Points, Series

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Tuple

    Facts = Dict[str, Any]

DEFAULT = "0"
"""The experiment that is there without being made."""
_MOST_EXPERIMENTS = 1_000
_MOST_RUNS = 10_000
_MOST_MODELS = 1_000
_PAGE = 25_000
_RUN_NAME = "mlflow.runName"


class Tracking:
    """Experiments, runs and logged models."""

    ENDPOINTS = (
        ("GET", "experiments/get-by-name", "experiment_by_name"),
        ("GET", "experiments/get", "experiment"),
        ("POST", "experiments/create", "create_experiment"),
        ("POST", "experiments/search", "search_experiments"),
        ("GET", "experiments/search", "search_experiments"),
        ("POST", "experiments/update", "update_experiment"),
        ("POST", "experiments/delete", "delete_experiment"),
        ("POST", "experiments/restore", "restore_experiment"),
        ("POST", "experiments/set-experiment-tag", "tag_experiment"),
        ("POST", "experiments/delete-experiment-tag", "untag_experiment"),
        ("POST", "runs/create", "create_run"),
        ("GET", "runs/get", "run"),
        ("POST", "runs/update", "update_run"),
        ("POST", "runs/delete", "delete_run"),
        ("POST", "runs/restore", "restore_run"),
        ("POST", "runs/log-metric", "log_metric"),
        ("POST", "runs/log-parameter", "log_parameter"),
        ("POST", "runs/log-batch", "log_batch"),
        ("POST", "runs/log-model", "log_model"),
        ("POST", "runs/log-inputs", "log_inputs"),
        ("POST", "runs/outputs", "log_outputs"),
        ("POST", "runs/set-tag", "set_tag"),
        ("POST", "runs/delete-tag", "delete_tag"),
        ("POST", "runs/search", "search_runs"),
        ("GET", "metrics/get-history", "history"),
        ("POST", "logged-models", "create_model"),
        ("POST", "logged-models/search", "search_models"),
        ("GET", "logged-models/*", "model"),
        ("PATCH", "logged-models/*", "finalize_model"),
        ("DELETE", "logged-models/*", "delete_model"),
        ("PATCH", "logged-models/*/tags", "tag_model"),
        ("DELETE", "logged-models/*/tags", "untag_model"),
        ("POST", "logged-models/*/params", "log_model_parameters"),
        ("POST", "traces", "start_trace"),
    )

    def __init__(self, place: str) -> None:
        self._place = place
        self._experiments: Dict[str, Facts] = {}
        self._runs: Dict[str, _Run] = {}
        self._models: Dict[str, _Model] = {}
        self._points = Points()
        self._new_experiment(DEFAULT, "Default", "", [])

    # Experiments.

    def experiment_by_name(self, given: Facts) -> Facts:
        name = text(given, "experiment_name")
        for one in self._experiments.values():
            if one["name"] == name:
                return {"experiment": _experiment_json(one)}
        raise _missing("experiment", name)

    def experiment(self, given: Facts) -> Facts:
        return {"experiment": _experiment_json(self._experiment(given))}

    def create_experiment(self, given: Facts) -> Facts:
        name = text(given, "name")
        if not name:
            raise Refusal("INVALID_PARAMETER_VALUE", "an experiment needs a name")
        if any(one["name"] == name for one in self._experiments.values()):
            raise Refusal("RESOURCE_ALREADY_EXISTS", f"Experiment '{name}' already exists.")
        if len(self._experiments) >= _MOST_EXPERIMENTS:
            raise Refusal("RESOURCE_EXHAUSTED", f"more than {_MOST_EXPERIMENTS} experiments")
        key = str(len(self._experiments))
        place = text(given, "artifact_location")
        self._new_experiment(key, name, place, pairs(given, "tags"))
        return {"experiment_id": key}

    def search_experiments(self, given: Facts) -> Facts:
        kind = given.get("view_type") or "ACTIVE_ONLY"
        shown = [
            one for one in self._experiments.values() if _is_shown(one["lifecycle_stage"], kind)
        ]
        jsons = [_experiment_json(one) for one in shown]
        found, token = found_by(search_experiments, jsons, given, lambda one: one["experiment_id"])
        return {"experiments": found, **token}

    def update_experiment(self, given: Facts) -> None:
        self._changed(given)["name"] = text(given, "new_name")

    def delete_experiment(self, given: Facts) -> None:
        self._changed(given)["lifecycle_stage"] = "deleted"

    def restore_experiment(self, given: Facts) -> None:
        self._changed(given)["lifecycle_stage"] = "active"

    def tag_experiment(self, given: Facts) -> None:
        put(self._experiment(given)["tags"], text(given, "key"), text(given, "value"))

    def untag_experiment(self, given: Facts) -> None:
        self._experiment(given)["tags"].pop(text(given, "key"), None)

    def _experiment(self, given: Facts) -> Facts:
        key = text(given, "experiment_id")
        if key not in self._experiments:
            raise _missing("experiment", key)
        return self._experiments[key]

    def _changed(self, given: Facts) -> Facts:
        found = self._experiment(given)
        found["last_update_time"] = now()
        return found

    def _new_experiment(
        self, key: str, name: str, place: str, tags: Iterable[Tuple[str, str]]
    ) -> None:
        self._experiments[key] = {
            "experiment_id": key,
            "name": name,
            "artifact_location": place or f"{self._place}/{key}",
            "lifecycle_stage": "active",
            "creation_time": now(),
            "last_update_time": now(),
            "tags": dict(tags),
        }

    # Runs.

    def create_run(self, given: Facts) -> Facts:
        experiment = self._experiment({"experiment_id": given.get("experiment_id") or DEFAULT})
        if experiment["lifecycle_stage"] != "active":
            raise Refusal("INVALID_STATE", "the experiment is deleted")
        self._forget_runs()
        run = _Run(given, experiment)
        self._runs[run.info["run_id"]] = run
        return {"run": run.json()}

    def run(self, given: Facts) -> Facts:
        return {"run": self._run(given).json()}

    def update_run(self, given: Facts) -> Facts:
        run = self._run(given)
        if given.get("status"):
            run.info["status"] = _status(given["status"])
        if given.get("end_time"):
            run.info["end_time"] = integer(given["end_time"])
        if given.get("run_name"):
            run.tag(_RUN_NAME, text(given, "run_name"))
        return {"run_info": run.info}

    def delete_run(self, given: Facts) -> None:
        self._run(given).info["lifecycle_stage"] = "deleted"

    def restore_run(self, given: Facts) -> None:
        self._run(given).info["lifecycle_stage"] = "active"

    def log_metric(self, given: Facts) -> None:
        self._log_metric(self._run(given), given)

    def log_parameter(self, given: Facts) -> None:
        self._run(given).parameter(text(given, "key"), text(given, "value"))

    def log_batch(self, given: Facts) -> None:
        run = self._run(given)
        for key, value in pairs(given, "params"):
            run.parameter(key, value)
        for one in entries(given, "metrics"):
            self._log_metric(run, one)
        for key, value in pairs(given, "tags"):
            run.tag(key, value)

    def log_model(self, given: Facts) -> None:
        run = self._run(given)
        before = run.tags.get("mlflow.log-model.history", "[]")
        model = text(given, "model_json")
        separator = "" if before == "[]" else ", "
        run.tag("mlflow.log-model.history", f"{before[:-1]}{separator}{model}]")

    def log_inputs(self, given: Facts) -> None:
        run = self._run(given)
        run.datasets += entries(given, "datasets")[: MOST_NAMES - len(run.datasets)]
        run.model_inputs += entries(given, "models")[: MOST_NAMES - len(run.model_inputs)]

    def log_outputs(self, given: Facts) -> None:
        run = self._run(given)
        run.model_outputs += entries(given, "models")[: MOST_NAMES - len(run.model_outputs)]

    def set_tag(self, given: Facts) -> None:
        self._run(given).tag(text(given, "key"), text(given, "value"))

    def delete_tag(self, given: Facts) -> None:
        run, key = self._run(given), text(given, "key")
        if key not in run.tags:
            raise Refusal("RESOURCE_DOES_NOT_EXIST", f"No tag with name: {key} in run")
        del run.tags[key]

    def search_runs(self, given: Facts) -> Facts:
        kind = given.get("run_view_type") or "ACTIVE_ONLY"
        wanted = set(map(str, entries(given, "experiment_ids")))
        jsons = [
            run.json()
            for run in self._runs.values()
            if run.info["experiment_id"] in wanted and _is_shown(run.info["lifecycle_stage"], kind)
        ]
        found, token = found_by(search_runs, jsons, given, lambda one: one["info"]["run_id"])
        return {"runs": found, **token}

    def history(self, given: Facts) -> Facts:
        run, key = self._run(given), text(given, "metric_key")
        begins = max(integer(given.get("page_token") or 0), 0)
        size = min(max(integer(given.get("max_results") or _PAGE), 1), _PAGE)
        series = run.metrics.get(key)
        if series is None:
            return {"metrics": []}
        found: Facts = {"metrics": series.json(key, begins, begins + size)}
        if begins + size < len(series.values):
            found["next_page_token"] = str(begins + size)
        return found

    def _run(self, given: Facts) -> _Run:
        key = text(given, "run_id") or text(given, "run_uuid")
        if key not in self._runs:
            raise Refusal("RESOURCE_DOES_NOT_EXIST", f"Run '{key}' not found")
        return self._runs[key]

    def _forget_runs(self) -> None:
        """Make room for a run: one that has ended is forgotten, else the oldest."""
        if len(self._runs) < _MOST_RUNS:
            return
        ended = (key for key, run in self._runs.items() if run.info["status"] != "RUNNING")
        run = self._runs.pop(next(ended, next(iter(self._runs))))
        for series in run.metrics.values():
            self._points.forget(series)

    def _log_metric(self, run: _Run, given: Facts) -> None:
        key = text(given, "key")
        value, step = number(given.get("value")), integer(given.get("step") or 0)
        stamp = integer(given.get("timestamp") or now())
        if key in run.metrics or (len(run.metrics) < MOST_NAMES and self._points.has_room):
            self._points.add(run.metrics.setdefault(key, Series()), step, stamp, value)
        model = self._models.get(text(given, "model_id"))
        if model is not None and len(model.metrics) < MOST_NAMES:
            model.metrics.append(
                {
                    "key": key,
                    "value": number_json(value),
                    "step": step,
                    "timestamp": stamp,
                    "model_id": model.info["model_id"],
                    "run_id": run.info["run_id"],
                    **{
                        name: text(given, name)
                        for name in ("dataset_name", "dataset_digest")
                        if given.get(name)
                    },
                }
            )

    # Logged models.

    def create_model(self, given: Facts) -> Facts:
        if len(self._models) >= _MOST_MODELS:
            self._models.pop(next(iter(self._models)))
        model = _Model(given, self._place)
        self._models[model.info["model_id"]] = model
        return {"model": model.json()}

    def model(self, given: Facts) -> Facts:
        return {"model": self._model(given).json()}

    def finalize_model(self, given: Facts) -> Facts:
        model = self._model(given)
        model.info["status"] = text(given, "status") or "LOGGED_MODEL_READY"
        model.info["last_updated_timestamp_ms"] = now()
        return {"model": model.json()}

    def delete_model(self, given: Facts) -> None:
        self._models.pop(self._model(given).info["model_id"], None)

    def tag_model(self, given: Facts) -> Facts:
        model = self._model(given)
        for key, value in pairs(given, "tags"):
            put(model.tags, key, value)
        return {"model": model.json()}

    def untag_model(self, given: Facts) -> None:
        self._model(given).tags.pop(text(given, "tag"), None)

    def log_model_parameters(self, given: Facts) -> None:
        for key, value in pairs(given, "params"):
            put(self._model(given).parameters, key, value)

    def search_models(self, given: Facts) -> Facts:
        wanted = set(map(str, entries(given, "experiment_ids")))
        jsons = [
            model.json() for model in self._models.values() if model.info["experiment_id"] in wanted
        ]
        found, token = found_by(search_models, jsons, given, lambda one: one["info"]["model_id"])
        return {"models": found, **token}

    def _model(self, given: Facts) -> _Model:
        key = text(given, "model_id")
        if key not in self._models:
            raise Refusal("RESOURCE_DOES_NOT_EXIST", f"Logged model with ID '{key}' not found.")
        return self._models[key]

    # Traces are accepted, since MLflow warns of those that are not; they are files like artifacts.

    def start_trace(self, given: Facts) -> Facts:
        trace = given.get("trace")
        info = trace.get("trace_info") if isinstance(trace, dict) else None
        if not isinstance(info, dict):
            raise Refusal("INVALID_PARAMETER_VALUE", "no trace")
        key = quote(str(info.get("trace_id", ""))[:200], safe="-_")
        tags = info.get("tags")
        tags = tags if isinstance(tags, dict) else {}
        info["tags"] = {**tags, "mlflow.artifactLocation": f"{self._place}/traces/{key}"}
        return {"trace": {"trace_info": info}}


class _Run:
    def __init__(self, given: Facts, experiment: Facts) -> None:
        key = uuid.uuid4().hex
        self.tags: Dict[str, str] = {}
        self.parameters: Dict[str, str] = {}
        self.metrics: Dict[str, Series] = {}
        self.datasets: List[Any] = []
        self.model_inputs: List[Any] = []
        self.model_outputs: List[Any] = []
        self.info: Facts = {
            "run_id": key,
            "run_uuid": key,
            "experiment_id": experiment["experiment_id"],
            "user_id": text(given, "user_id"),
            "status": "RUNNING",
            "start_time": integer(given.get("start_time") or now()),
            "artifact_uri": f"{experiment['artifact_location']}/{key}/artifacts",
            "lifecycle_stage": "active",
        }
        for name, value in pairs(given, "tags"):
            self.tag(name, value)
        given_name = text(given, "run_name") or self.tags.get(_RUN_NAME, "")
        self.tag(_RUN_NAME, given_name or _random_name(key))

    def tag(self, key: str, value: str) -> None:
        put(self.tags, key, value)
        if key == _RUN_NAME:
            self.info["run_name"] = value

    def parameter(self, key: str, value: str) -> None:
        before = self.parameters.get(key, value)
        if before != value:
            raise Refusal(
                "INVALID_PARAMETER_VALUE",
                f"Changing param values is not allowed. Param with key='{key}' was already logged with "
                f"value='{before}' for run ID='{self.info['run_id']}'. Attempted logging new value '{value}'.",
            )
        put(self.parameters, key, value)

    def json(self) -> Facts:
        return {
            "info": self.info,
            "data": {
                "metrics": [series.last(key) for key, series in self.metrics.items()],
                "params": pairs_json(self.parameters),
                "tags": pairs_json(self.tags),
            },
            "inputs": {"dataset_inputs": self.datasets, "model_inputs": self.model_inputs},
            "outputs": {"model_outputs": self.model_outputs},
        }


class _Model:
    def __init__(self, given: Facts, place: str) -> None:
        key = f"m-{uuid.uuid4().hex}"
        experiment = text(given, "experiment_id") or DEFAULT
        self.tags = dict(pairs(given, "tags"))
        self.parameters = dict(pairs(given, "params"))
        self.metrics: List[Facts] = []
        self.info: Facts = {
            "model_id": key,
            "experiment_id": experiment,
            "name": text(given, "name") or _random_name(key),
            "creation_timestamp_ms": now(),
            "last_updated_timestamp_ms": now(),
            "artifact_uri": f"{place}/{quote(experiment, safe='')}/models/{key}/artifacts",
            "status": "LOGGED_MODEL_PENDING",
            "model_type": text(given, "model_type"),
            "source_run_id": text(given, "source_run_id"),
        }

    def json(self) -> Facts:
        return {
            "info": {**self.info, "tags": pairs_json(self.tags)},
            "data": {"params": pairs_json(self.parameters), "metrics": self.metrics},
        }


def _missing(what: str, key: str) -> Refusal:
    return Refusal("RESOURCE_DOES_NOT_EXIST", f"No {what} '{key[:200]}' exists")


def _is_shown(stage: str, kind: Any) -> bool:
    if kind == "ALL":
        return True
    return stage == ("deleted" if kind == "DELETED_ONLY" else "active")


def _experiment_json(one: Facts) -> Facts:
    return {**one, "tags": pairs_json(one["tags"])}


def _random_name(key: str) -> str:
    with suppress(Exception):
        from mlflow.utils.name_utils import _generate_random_name

        return str(_generate_random_name())
    return key[:8]


def _status(given: Any) -> str:
    names = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
    return names[given] if type(given) is int and given in names else str(given)[:20]
