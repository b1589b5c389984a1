"""MLflow: what a program logs with `mlflow` or `MlflowClient` is recorded, in the thread that logs it.

Without a tracking URI of the user's, a tracking server in this process (`_mlflow_server`) answers MLflow. With one, only
the hooks are there.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import sys
from contextlib import suppress
from math import isfinite
from urllib.parse import urlsplit

from nsml._echo._hooks import Fence
from nsml._echo._sink import sink
from nsml._path_text import name_text
from nsml._strict import reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

    from nsml._echo._mlflow_server import Server

_ORIGIN = "mlflow"
_URI = "MLFLOW_TRACKING_URI"
_QUIET = "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"
_OWN = "NSML_MLFLOW_URI"
"""The server's URI, by which children recognise it."""
_FIRST_RUN = "NSML_MLFLOW_RUN"
"""The first run of this process and its parents, which has no prefix."""
_PREFIX = "/mlflow"
_LOCAL = ("mlruns", "mlflow.db")
_CONNECT_S = 1.0
_MOST_RUNS = 10_000
_METRIC_FIELDS = (
    "key",
    "value",
    "timestamp",
    "step",
    "model_id",
    "dataset_name",
    "dataset_digest",
)
_MOST_TEXT_BYTES = 1 << 20
_MOST_TABLE_BYTES = 8 << 20
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp")
_SOUNDS = (".wav", ".mp3", ".flac", ".ogg")
_VIDEOS = (".mp4", ".webm", ".avi")
_TEXTS = (".txt", ".md", ".log", ".json", ".yaml", ".yml", ".toml", ".csv", ".tsv")

_servers: Dict[int, Server] = {}
"""The server of this process: children reach it through HTTP."""


def before_import(module: Any) -> None:  # noqa: ARG001 - as all hooks have it
    """Name a tracking server, unless the user has."""
    given = os.environ.get(_URI)
    own = os.environ.get(_OWN)
    if given and (given != own or _is_there(own)):
        return
    if not given and any(map(os.path.exists, _LOCAL)):
        return  # MLflow's default store, which may have what the program reads
    try:
        from nsml._echo._mlflow_server import Server
        from nsml._echo._receiver import receiver

        server = Server(os.path.join(os.environ["NSML_RUN_DIR"], "echo", "mlflow"), _failed)
        receiver().add(_PREFIX, server.answer)
        url = receiver().url(_PREFIX)
    except (
        OSError,
        RuntimeError,
    ) as error:  # no thread or port: MLflow's own default, and the hooks
        sink().log_once("mlflow server", f"no tracking server: {reason(error)}", _ORIGIN)
        return
    os.environ[_URI] = os.environ[_OWN] = url
    if _QUIET not in os.environ:
        os.environ[_QUIET] = "true"  # a link to this server leads nowhere
    _servers[os.getpid()] = server


def install(module: Any) -> None:
    """Record what clients log."""
    client = getattr(module, "MlflowClient", None)
    if client is None:  # the package for traces alone
        return
    fence = Fence(_ORIGIN, module.__name__)
    runs = _Runs()
    fence.follow(client, "log_metric", before=runs.log_metric)
    fence.follow(client, "log_batch", runs.log_settings, before=runs.log_metrics)
    fence.follow(client, "log_param", runs.log_parameter)
    fence.follow(client, "set_tag", runs.set_tag)
    fence.follow(client, "create_run", runs.created)
    fence.follow(client, "get_run", runs.fetched)
    fence.follow(client, "log_image", runs.log_image)
    fence.follow(client, "log_artifact", runs.log_artifact)
    fence.follow(client, "log_artifacts", runs.log_artifacts)
    fence.follow(client, "log_model_artifacts", runs.log_model)
    fence.follow(client, "create_logged_model", runs.model_created)
    fence.follow(module, "set_tracking_uri", _uri_set)
    _shorten(fence, "log_metric", _log_metric)
    _shorten(fence, "log_batch", _log_batch)


def _shorten(fence: Fence, name: str, call: Callable[..., bool]) -> None:
    """Let MLflow hand its values to the server of this process without HTTP, which takes it several milliseconds."""
    store = getattr(sys.modules.get("mlflow.store.tracking.rest_store"), "RestStore", None)
    original = vars(store).get(name) if store is not None else None
    if original is None:
        return

    @functools.wraps(original)
    def logged(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not fence.guard(call, self, *args, **kwargs):
            return original(self, *args, **kwargs)
        return None

    setattr(store, name, logged)


def _log_metric(store: Any, run_id: str, metric: Any) -> bool:
    return _log_batch(store, run_id, [metric], (), ())


def _log_batch(store: Any, run_id: str, metrics: Any, params: Any, tags: Any) -> bool:
    """Return whether the server has accepted it; else MLflow asks again, and raises its own error."""
    server = _servers.get(os.getpid())
    if server is None or store.get_host_creds().host != os.environ.get(_OWN):
        return False
    given = {
        "run_id": run_id,
        "metrics": [{name: getattr(one, name, None) for name in _METRIC_FIELDS} for one in metrics],
        "params": [{"key": one.key, "value": one.value} for one in params],
        "tags": [{"key": one.key, "value": one.value} for one in tags],
    }
    return server.accepts("POST", "runs/log-batch", given)


def own_uri() -> str:
    """Return the URI of the server that nsml has named; "" if another one is in use."""
    named = os.environ.get(_URI, "")
    return named if named == os.environ.get(_OWN) else ""


class _Runs:
    """The runs of this process, and where their values belong: the first has no prefix, others have their name."""

    def __init__(self) -> None:
        self._names: Dict[str, str] = {}
        self._parents: Dict[str, str] = {}
        self._prefixes: Dict[str, str] = {}
        self._models: Dict[str, str] = {}

    # Functions after or before those of MlflowClient, with their signatures.

    def log_metric(  # noqa: PLR0917 - as MLflow has it
        self,
        client: Any,  # noqa: ARG002
        run_id: str,
        key: str,
        value: Any,
        timestamp: Optional[int] = None,
        step: Optional[int] = None,
        *_: Any,
        **__: Any,
    ) -> None:
        sink().metrics(
            _ORIGIN, {key: value}, step or 0, prefix=self._prefix(run_id), time=_seconds(timestamp)
        )

    def log_metrics(
        self,
        client: Any,  # noqa: ARG002
        run_id: str,
        metrics: Iterable[Any] = (),
        *_: Any,
        **__: Any,
    ) -> None:
        if not metrics:
            return
        prefix = self._prefix(run_id)
        for step, stamp, values in _grouped(metrics):
            sink().metrics(_ORIGIN, values, step, prefix=prefix, time=_seconds(stamp))

    def log_settings(  # noqa: PLR0917 - as MLflow has it
        self,
        result: Any,  # noqa: ARG002
        client: Any,  # noqa: ARG002
        run_id: str,
        metrics: Any = (),  # noqa: ARG002
        params: Iterable[Any] = (),
        tags: Iterable[Any] = (),
        *_: Any,
        **__: Any,
    ) -> None:
        found = {one.key: plain(one.value) for one in params}
        found.update(_shown_tags((one.key, one.value) for one in tags))
        self._config(run_id, found)

    def log_parameter(
        self,
        result: Any,  # noqa: ARG002
        client: Any,  # noqa: ARG002
        run_id: str,
        key: str,
        value: Any,
        *_: Any,
        **__: Any,
    ) -> None:
        self._config(run_id, {key: plain(str(value))})

    def set_tag(
        self,
        result: Any,  # noqa: ARG002
        client: Any,  # noqa: ARG002
        run_id: str,
        key: str,
        value: Any,
        *_: Any,
        **__: Any,
    ) -> None:
        self._config(run_id, _shown_tags([(key, value)]))

    def created(self, run: Any, *_: Any, **__: Any) -> None:
        self._known(run)
        self._config(run.info.run_id, _shown_tags(run.data.tags.items()))

    def fetched(self, run: Any, *_: Any, **__: Any) -> None:
        self._known(run)

    def log_image(  # noqa: PLR0917 - as MLflow has it
        self,
        result: Any,  # noqa: ARG002
        client: Any,  # noqa: ARG002
        run_id: str,
        image: Any,
        artifact_file: Optional[str] = None,
        key: Optional[str] = None,
        step: Optional[int] = None,
        *_: Any,
        **__: Any,
    ) -> None:
        if artifact_file is None and key:  # else `log_artifact` has its file
            _show_image(sink().media_name(key, self._prefix(run_id)), image, step or 0)

    def log_artifact(
        self,
        result: Any,  # noqa: ARG002
        client: Any,
        run_id: str,
        local_path: Any,
        artifact_path: Optional[str] = None,
        *_: Any,
        **__: Any,
    ) -> None:
        path = os.fspath(local_path)
        if os.path.isdir(path):
            where = _joined(artifact_path, os.path.basename(os.path.normpath(path)))
            self._keep(client, run_id, path, where)
            return
        name = _joined(artifact_path, os.path.basename(path))
        if name.startswith("images/") and "+step+" in name:  # of `log_image`, which is recorded
            return
        try:
            is_shown = _show(sink().media_name(name, self._prefix(run_id)), path)
        except OSError as error:  # it is gone already, or cannot be read
            sink().log_once("file", f"{name} is not recorded: {reason(error)}", _ORIGIN)
            return
        if not is_shown:
            self._keep(client, run_id, path, name)

    def log_artifacts(
        self,
        result: Any,  # noqa: ARG002
        client: Any,
        run_id: str,
        local_dir: Any,
        artifact_path: Optional[str] = None,
        *_: Any,
        **__: Any,
    ) -> None:
        path = os.fspath(local_dir)
        self._keep(client, run_id, path, artifact_path or os.path.basename(os.path.normpath(path)))

    def model_created(self, model: Any, *_: Any, **__: Any) -> None:
        if len(self._models) < _MOST_RUNS:
            run = str(getattr(model, "source_run_id", "") or "")
            prefix = self._prefix(run) if run else ""
            self._models[str(model.model_id)] = f"{prefix}{model.name}"

    def log_model(
        self,
        result: Any,  # noqa: ARG002
        client: Any,
        model_id: str,
        local_dir: Any,
        *_: Any,
        **__: Any,
    ) -> None:
        if _is_own(client):
            _keep(self._models.get(model_id, model_id), os.fspath(local_dir))

    def _keep(self, client: Any, run_id: str, path: str, name: str) -> None:
        """Save other files as an artifact of the session: those on a server of the user's are safe."""
        if _is_own(client):
            _keep(f"{self._prefix(run_id)}{name}", path)

    def _config(self, run_id: str, values: Dict[str, Any]) -> None:
        if values:
            sink().config(_ORIGIN, values, run=self._prefix(run_id).rstrip("/"))

    def _known(self, run: Any) -> None:
        key = str(run.info.run_id)
        if len(self._names) < _MOST_RUNS:
            self._names[key] = str(getattr(run.info, "run_name", "") or "")
            self._parents[key] = str(run.data.tags.get("mlflow.parentRunId", ""))

    def _prefix(self, run_id: str) -> str:
        found = self._prefixes.get(run_id)
        if found is not None:
            return found
        sink().prefix(_ORIGIN, os.environ.setdefault(_FIRST_RUN, self._oldest(run_id)))
        found = sink().prefix(_ORIGIN, run_id, self._names.get(run_id, ""))
        if len(self._prefixes) < _MOST_RUNS:
            self._prefixes[run_id] = found
        return found

    def _oldest(self, run_id: str) -> str:
        """Return the run above all others that this one is nested in."""
        for _ in range(10):
            above = self._parents.get(run_id)
            if not above:
                break
            run_id = above
        return run_id


def plain(value: Any) -> Any:
    """Return the number, boolean or None of which MLflow has the text, if it is exactly that; else the value."""
    if type(value) is not str or len(value) > 40:
        return value
    named = {"True": True, "False": False, "None": None}
    if value in named:
        return named[value]
    for kind in (int, float):
        with suppress(ValueError):
            number = kind(value)
            if str(number) == value and isfinite(number):
                return number
    return value


def _shown_tags(tags: Iterable[Tuple[str, Any]]) -> Dict[str, Any]:
    """Return the user's own tags, named as in MLflow's tables of runs."""
    return {
        f"tags.{key}": plain(str(value)) for key, value in tags if not key.startswith("mlflow.")
    }


def _grouped(metrics: Iterable[Any]) -> Iterable[Tuple[Any, Any, Dict[str, Any]]]:
    """Yield step, timestamp and values of metrics reported together."""
    step = stamp = None
    values: Dict[str, Any] = {}
    for one in metrics:
        key, value = one.key, one.value
        is_same = (one.step, one.timestamp) == (step, stamp)
        if is_same and key in values and values[key] == value:
            continue  # reported once per model
        if not is_same or key in values:
            if values:
                yield step, stamp, values
            step, stamp, values = one.step, one.timestamp, {}
        values[key] = value
    if values:
        yield step, stamp, values


def _seconds(stamp: Any) -> Optional[float]:
    return stamp / 1000 if type(stamp) in (int, float) and stamp > 0 else None


def _show_image(name: str, image: Any, step: Any) -> None:
    if hasattr(image, "to_pil"):  # mlflow.Image
        image = image.to_pil()
    shape = getattr(image, "shape", None)
    if shape is None:
        sink().media.image(name, image, step)
        return
    if str(image.dtype) == "bool":
        image = image.astype("uint8") * 255
    sink().media.image(name, image, step, dataformats="HW" if len(shape) == 2 else "HWC")


def _show(name: str, path: str) -> bool:
    """Show the file, if it is of a known kind; return whether it is."""
    ending = os.path.splitext(path)[1].lower()
    media = sink().media
    size = os.stat(path).st_size
    for endings, call in (
        (_IMAGES, media.image),
        (_SOUNDS, media.audio),
        (_VIDEOS, media.video),
    ):
        if ending in endings:
            call(name, path)
            return True
    if ending not in _TEXTS or size > _MOST_TABLE_BYTES:
        return False
    with open(path, "rb") as file:
        data = file.read(_MOST_TABLE_BYTES)
    table = _table(data) if ending == ".json" else None
    if table is not None:
        media.table(name, table[1], columns=table[0])
        return True
    if size > _MOST_TEXT_BYTES:
        return False
    media.text(name, data.decode("utf-8", "replace"))
    return True


def _table(data: bytes) -> Optional[Tuple[List[str], List[Any]]]:
    """Return columns and rows of a table of `log_table`; None of other JSON."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or set(found) - {"index"} != {"columns", "data"}:
        return None
    columns, rows = found["columns"], found["data"]
    is_table = isinstance(columns, list) and isinstance(rows, list) and bool(columns)
    if not is_table or not all(isinstance(row, list) and len(row) == len(columns) for row in rows):
        return None
    return [str(one) for one in columns], rows


def _keep(name: str, path: str) -> None:
    import nsml

    nsml.artifact(name_text(name), path)


def _joined(folder: Optional[str], name: str) -> str:
    return f"{folder.strip('/')}/{name}" if folder else name


def _is_own(client: Any) -> bool:
    """Return whether this client's files end with the session, since nobody has named a place for them."""
    return not os.environ.get(_URI) or (bool(own_uri()) and client.tracking_uri == own_uri())


def _uri_set(result: Any, uri: Any, *_: Any) -> None:  # noqa: ARG001
    """Show links again to a server that the program names itself."""
    if str(uri) != os.environ.get(_OWN) and os.environ.get(_QUIET) == "true":
        del os.environ[_QUIET]


def _is_there(url: Optional[str]) -> bool:
    """Return whether the server, of a parent, can be reached."""
    with suppress(OSError, ValueError):
        parts = urlsplit(url or "")
        socket.create_connection((parts.hostname or "", parts.port or 0), _CONNECT_S).close()
        return True
    return False


def _failed(error: Exception) -> None:
    sink().log_once(
        "mlflow server",
        f"its tracking server in this program failed: {reason(error)}; what is logged is recorded, but may not be read "
        "back",
        _ORIGIN,
    )
