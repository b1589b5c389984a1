"""Runs of MLflow: its file store `mlruns`, and its database `mlflow.db`."""

from __future__ import annotations

import heapq
import json
import re
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nsml._echo._mlflow import plain
from nsml._path_text import name_text
from nsml.imports.folders import shown
from nsml.imports.media_files import is_media, show_file, try_to_show
from nsml.imports.mlflow_database import Database
from nsml.imports.runs import Outcome, PastRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import BinaryIO

    from nsml.content.safe_paths import Parts
    from nsml.imports.folders import Folder
    from nsml.imports.mlflow_database import Row
    from nsml.imports.runs import Recording

ORIGIN: Final = "mlflow"
DATABASE: Final = "mlflow.db"
_META: Final = "meta.yaml"
_STORES: Final = ("mlruns", "mlartifacts")
_MODEL: Final = "MLmodel"
_MODELS: Final = "models"
_ACTIVE: Final = "active"
_OUTCOMES: Final = {
    **dict.fromkeys(("3", "FINISHED"), Outcome.SUCCEEDED),
    **dict.fromkeys(("4", "FAILED"), Outcome.FAILED),
}
"""By status; others were killed, or never ended."""
_MOST_META_BYTES: Final = 64 << 10
_MOST_VALUE_BYTES: Final = 64 << 10
_MOST_LINE_BYTES: Final = 4 << 10
_MOST_ENTRIES: Final = 10_000
_MOST_FILES: Final = 100_000
_MOST_OPEN: Final = 256
_NAME: Final = re.compile("[A-Za-z0-9_-]+")
_LINE: Final = re.compile(r"([A-Za-z_]\w*):(?:[ \t]+(.*))?")
_IMAGE: Final = re.compile(
    r"images/(?P<key>.+)[+%]step[+%](?P<step>-?\d{1,18})[+%]timestamp[+%](?P<time>\d{1,18})[+%].*\.png"
)
"""The name of an image of `log_image` with a key."""


class _Model(NamedTuple):
    """A logged model. `place`: the folder of its files; `created_at`: Unix seconds."""

    name: str
    place: Parts
    created_at: float


def find(folder: Folder) -> list[PastRun]:
    """Return the runs in a folder: mlruns, one above it, one with mlflow.db, or an experiment. Raises OSError, ValueError."""
    found = {one.id: one for one in _in_files(folder)}
    if DATABASE in folder.listing()[1]:
        for one in _in_database(folder):
            found.setdefault(one.id, one)
    runs = [*found.values()]
    names = {one.id.partition("-")[2]: one.name for one in runs}
    for one in runs:
        parent = one.labels.get("parent", "")
        if parent in names:
            one.labels["parent"] = names[parent]
    return runs


# The file store.


def _in_files(folder: Folder) -> Iterator[PastRun]:
    folders = folder.listing()[0]
    places: list[Parts] = [(), *((name,) for name in folders)]
    places += [(store, name) for store in _STORES for name in folder.listing((store,))[0]]
    for place in places:
        experiment = _meta(folder, place)
        if "experiment_id" not in experiment or "run_id" in experiment:
            continue
        name = experiment.get("name", "")
        if experiment.get("lifecycle_stage", _ACTIVE) != _ACTIVE:
            continue
        models = _models(folder, (*place, _MODELS))
        for below in folder.listing(place)[0]:
            meta = _meta(folder, (*place, below))
            if meta.get("run_id") and meta.get("lifecycle_stage", _ACTIVE) == _ACTIVE:
                tags = dict(_entries(folder, (*place, below, "tags")))
                run = _run_of(meta, tags, name, shown((*place, below)))
                own = models.get(meta["run_id"], [])
                run.read = partial(_read_files, folder, (*place, below), tags, meta, own)
                yield run


def _models(folder: Folder, place: Parts) -> dict[str, list[_Model]]:
    """Return the logged models of an experiment by the run that logged them."""
    found: dict[str, list[_Model]] = {}
    for name in folder.listing(place)[0]:
        meta = _meta(folder, (*place, name))
        if meta.get("source_run_id") and meta.get("lifecycle_stage", _ACTIVE) == _ACTIVE:
            model = _Model(
                meta.get("name") or name,
                (*place, name, "artifacts"),
                _seconds(meta.get("creation_timestamp")),
            )
            found.setdefault(meta["source_run_id"], []).append(model)
    return found


def _meta(folder: Folder, place: Parts) -> dict[str, str]:
    """Return the texts at the top of a file of YAML: the only ones that MLflow writes there."""
    try:
        text = folder.read((*place, _META), _MOST_META_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return {}
    found: dict[str, str] = {}
    key = ""
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match:
            key = match[1]
            found[key] = match[2] or ""
        elif key and line.startswith((" ", "\t")):  # a long text goes on
            found[key] += " " + line.strip()
    return {key: _unquoted(value.strip()) for key, value in found.items()}


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if text.startswith('"'):
        with suppress(ValueError):
            return str(json.loads(re.sub(r"\\x([0-9A-Fa-f]{2})", r"\\u00\1", text)))
    return "" if text in {"null", "~"} else text


def _entries(folder: Folder, place: Parts) -> Iterator[tuple[str, str]]:
    """Yield names and contents of the files of parameters or tags."""
    left = _MOST_ENTRIES
    for parts, files in folder.walk(place):
        for name in files:
            left -= 1
            if left < 0:
                return
            with suppress(OSError, ValueError):
                data = folder.read((*parts, name), _MOST_VALUE_BYTES)
                key = "/".join((*parts, name)[len(place) :])
                yield key, data.decode("utf-8", "replace")


def _read_files(  # noqa: PLR0917 - of `partial`
    folder: Folder,
    place: Parts,
    tags: Mapping[str, str],
    meta: Mapping[str, str],
    models: list[_Model],
    into: Recording,
) -> None:
    parameters = {key: plain(value) for key, value in _entries(folder, (*place, "params"))}
    _configure(into, parameters, tags)
    files = [(*parts, name) for parts, names in folder.walk((*place, "metrics")) for name in names]
    _, own = folder.listing(place)
    if _META not in own:
        raise ValueError("its folder is gone")
    for start in range(0, len(files), _MOST_OPEN):
        with ExitStack() as stack:
            some = files[start : start + _MOST_OPEN]
            streams = []
            for parts in some:
                try:
                    file = stack.enter_context(folder.opened(parts))
                except OSError as error:
                    why = error.strerror or str(error)
                    into.leave_out(f"{shown(parts)}: {why}", is_damage=True)
                    continue
                key = "/".join(parts[len(place) + 1 :])
                streams.append(_points(file, key, shown(parts), into))
            for time, step, key, value in heapq.merge(*streams, key=_order):
                into.metrics({key: value}, step, time)
    artifacts = (*place, "artifacts")
    if folder.listing(artifacts) == ([], {}):
        _name_elsewhere(into, meta.get("artifact_uri", ""))
    _take_artifacts(into, folder, artifacts)
    _take_models(into, folder, models)


def _order(point: tuple[float, float, str, float]) -> tuple[float, float]:
    return point[:2]


def _points(
    file: BinaryIO, key: str, path: str, into: Recording
) -> Iterator[tuple[float, float, str, float]]:
    """Yield time, step, name and value of each line."""
    damaged = 0
    while line := file.readline(_MOST_LINE_BYTES):
        words = line.split()
        try:
            time, value = int(words[0]) / 1000, float(words[1])
            step = int(words[2]) if len(words) > 2 else 0
        except (ValueError, IndexError, OverflowError):
            damaged += 1
            continue
        yield time, step, key, value
    if damaged:
        into.leave_out(f"{path}: {damaged:,} lines cannot be read", is_damage=True)


# The database.


def _in_database(folder: Folder) -> Iterator[PastRun]:
    with folder.opened((DATABASE,)):  # no link
        pass
    path = folder.path / DATABASE
    with Database(path) as database:
        experiments = database.experiments()
        rows = database.runs()
        for row in rows:
            experiment = experiments.get(row["experiment_id"])
            if row["lifecycle_stage"] != _ACTIVE or experiment is None:
                continue
            tags = dict(database.pairs("tags", row["run_uuid"]))
            meta = {
                "run_id": row["run_uuid"],
                "run_name": row.get("name", ""),
                "user_id": row.get("user_id", ""),
                "status": row["status"],
                "start_time": row["start_time"],
                "end_time": row["end_time"],
            }
            run = _run_of(meta, tags, experiment, f"{DATABASE}:{row['run_uuid']}")
            places = [
                (*store, row["experiment_id"], row["run_uuid"], "artifacts")
                for store in ((), *((one,) for one in _STORES))
            ]
            run.read = partial(_read_database, folder, row, tags, places)
            yield run


def _read_database(
    folder: Folder, row: Row, tags: Mapping[str, str], places: list[Parts], into: Recording
) -> None:
    with Database(folder.path / DATABASE) as database:
        run_id = row["run_uuid"]
        parameters = {key: plain(value) for key, value in database.pairs("params", run_id)}
        _configure(into, parameters, tags)
        for key, value, time, step in database.metrics(run_id):
            into.metrics({key: value}, step, time / 1000)
        models = [
            _Model(
                name or model_id, (*store, experiment, _MODELS, model_id, "artifacts"), at / 1000
            )
            for model_id, experiment, name, at in database.models(run_id)
            for store in ((), *((one,) for one in _STORES))
            if _NAME.fullmatch(model_id) and _NAME.fullmatch(experiment)
        ]
    for place in places:
        if all(map(_NAME.fullmatch, place)) and folder.listing(place) != ([], {}):
            _take_artifacts(into, folder, place)
            break
    else:
        _name_elsewhere(into, row.get("artifact_uri", ""))
    _take_models(into, folder, [one for one in models if folder.listing(one.place) != ([], {})])


# Both.


def _name_elsewhere(into: Recording, uri: str) -> None:
    if "://" in uri and not uri.startswith("file:"):
        into.leave_out(f"artifacts in {name_text(uri)[:200]}, if there are any")


def _run_of(
    meta: Mapping[str, str], tags: Mapping[str, str], experiment: str, place: str
) -> PastRun:
    run_id = meta["run_id"]
    labels = {"experiment": experiment}
    for label, tag in (
        ("parent", "mlflow.parentRunId"),
        ("commit", "mlflow.source.git.commit"),
    ):
        if tags.get(tag):
            labels[label] = tags[tag]
    source = tags.get("mlflow.source.name", "")
    return PastRun(
        origin=ORIGIN,
        id=f"{ORIGIN}-{run_id}",
        name=name_text(tags.get("mlflow.runName") or meta.get("run_name") or run_id),
        place=place,
        project=experiment,
        read=_read_nothing,
        began_at=_seconds(meta.get("start_time")),
        ended_at=_seconds(meta.get("end_time")),
        outcome=_OUTCOMES.get(str(meta.get("status")), Outcome.STOPPED),
        exit_code=1 if str(meta.get("status")) in {"4", "FAILED"} else 0,
        owner=tags.get("mlflow.user") or meta.get("user_id", ""),
        notes=tags.get("mlflow.note.content", ""),
        labels=labels,
        command=(("python", source) if source.endswith(".py") else (source,)) if source else (),
    )


def _read_nothing(_: Recording) -> None:
    """Replaced by a function that knows where the run is."""


def _seconds(text: str | None) -> float:
    try:
        number = int(text or 0) / 1000
    except ValueError:
        return 0.0
    return number if 0 < number < 1 << 33 else 0.0


def _configure(into: Recording, parameters: Mapping[str, Any], tags: Mapping[str, str]) -> None:
    own = {f"tags.{key}": plain(one) for key, one in tags.items() if not key.startswith("mlflow.")}
    if parameters or own:
        into.config({**parameters, **own})


def _take_artifacts(into: Recording, folder: Folder, place: Parts) -> None:
    """Record files as media, and folders with anything else as artifacts, also models: folders with MLmodel.

    What lies directly in the folder of artifacts is an artifact of its own, as is each folder there.
    """
    models: set[Parts] = set()
    groups: dict[Parts, dict[Parts, Parts]] = {}
    needed: set[Parts] = set()
    """Groups with files that are not shown."""
    left = _MOST_FILES
    for parts, sizes in folder.walk(place):
        inside = parts[len(place) :]
        left -= len(sizes)
        if left < 0:
            into.leave_out(f"artifacts beyond {_MOST_FILES:,} files")
            break
        if _MODEL in sizes and inside not in models:
            models.add(inside)
        model = next((inside[:at] for at in range(len(inside) + 1) if inside[:at] in models), None)
        _name_others(into, folder, parts, "/".join(inside))
        for name in sizes:
            path, file = (*inside, name), (*parts, name)
            top = path[:1] if model is None else model
            if model is None and _is_shown_alone(into, folder, file, "/".join(path)):
                continue
            is_shown = model is None and is_media(name)
            if not is_shown or try_to_show(into, folder, file, shown(path)):
                needed.add(top)
            groups.setdefault(top, {})[path[len(top) :] or path] = file
    for top in sorted(needed):
        into.artifacts.add("/".join(top) or "model", folder, groups[top])


def _name_others(into: Recording, folder: Folder, parts: Parts, place: str) -> None:
    """Name links and special files of a folder of artifacts."""
    if into.artifacts.is_on:
        for name, what in folder.others(parts).items():
            path = name_text(f"{place}/{name}" if place else name)
            into.leave_out(f"artifact {path[:200]}: it is {what}")


def _is_shown_alone(into: Recording, folder: Folder, parts: Parts, name: str) -> bool:
    """Return whether a file is an image of `log_image`, or a small form of one: it is in no artifact."""
    if name.endswith(("+compressed.webp", "%compressed.webp")):
        return True
    match = _IMAGE.fullmatch(name)
    if match is None:
        return False
    key = re.sub("[~#]", "/", match["key"])
    at = int(match["time"]) / 1000
    show_file(into, folder, parts, key, call="image", step=int(match["step"]), time=at)
    return True


def _take_models(into: Recording, folder: Folder, models: list[_Model]) -> None:
    """Record logged models of MLflow 3, which lie beside the runs: versions of one name in the order of their times."""
    for one in sorted(models, key=lambda one: one.created_at):
        files: dict[Parts, Parts] = {}
        for parts, sizes in folder.walk(one.place):
            inside = parts[len(one.place) :]
            _name_others(into, folder, parts, "/".join((one.name, *inside)))
            files |= {(*inside, name): (*parts, name) for name in sizes}
        into.artifacts.add(one.name, folder, files, one.created_at)
