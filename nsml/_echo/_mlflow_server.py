"""A tracking server for programs that name none: MLflow's REST, with its state in the memory of this process.

It only keeps MLflow satisfied: `nsml._echo._mlflow` records. What a program has logged it can read back. Artifacts are
files below the run folder, which MLflow writes and reads itself.

An error of this module is answered as if all were well, since MLflow raises into the program otherwise.
"""

from __future__ import annotations

import os
import threading
import uuid
from urllib.parse import quote

from nsml._echo._http import Answer
from nsml._echo._mlflow_registry import Registry
from nsml._echo._mlflow_rest import Refusal, now
from nsml._echo._mlflow_tracking import DEFAULT, Tracking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Tuple

    from nsml._echo._http import Request

    Facts = Dict[str, Any]
    Call = Callable[[Facts], Any]

_MOST_BYTES = 16 << 20
"""Most bytes of a request: MLflow's own limit is 1 MB and 1,000 values."""
_BEGINNINGS = ("/api/2.0/mlflow/", "/api/3.0/mlflow/", "/ajax-api/2.0/mlflow/")


class Server:
    """Answers requests of MLflow.

    Args:
        folder: for artifacts; made by MLflow.
        failed: called with the first error of this module.
    """

    def __init__(self, folder: str, failed: Callable[[Exception], Any]) -> None:
        self._tracking = Tracking(f"file://{quote(os.path.abspath(folder))}")
        self._registry = Registry()
        self._failed = failed
        self._is_whole = True
        self._lock = threading.RLock()
        self._calls: Dict[str, Call] = {
            **_calls_of(self._tracking),
            **_calls_of(self._registry),
        }

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        path = request.path
        for beginning in _BEGINNINGS:
            if path.startswith(beginning):
                return self._answered(request, path[len(beginning) :].strip("/"))
        if path.strip("/") == "health":
            return Answer(b"OK", content_type="text/plain")
        if path.strip("/") == "version":  # an old one: spans of traces are not sent to it
            return Answer(b"2.0.0", content_type="text/plain")
        return _refused(_no_endpoint(path))

    def accepts(self, method: str, path: str, given: Facts) -> bool:
        """Handle a call of this process; return False if it must be a request, for its answer is an error."""
        try:
            with self._lock:
                self._calls[f"{method} {path}"](given)
        except Refusal as error:
            return not self._is_refused(error)
        except Exception as error:
            self._has_failed(error)
        return True

    def _answered(self, request: Request, path: str) -> Answer:
        given = dict(request.query) if request.method == "GET" else request.body.json(_MOST_BYTES)
        if not isinstance(given, dict):
            return _refused(Refusal("INVALID_PARAMETER_VALUE", "the request is no JSON object"))
        call = self._calls.get(f"{request.method} {path}")
        if call is None:
            call, given = self._below(request.method, path, given)
        if call is None:
            return _refused(_no_endpoint(path))
        try:
            with self._lock:
                return Answer(call(given))
        except Refusal as error:
            if self._is_refused(error):
                return _refused(error)
        except Exception as error:
            self._has_failed(error)
        return Answer(_stand_in(path, given))

    def _is_refused(self, error: Refusal) -> bool:
        return self._is_whole or error.code != "RESOURCE_DOES_NOT_EXIST"

    def _has_failed(self, error: Exception) -> None:
        self._is_whole = False  # from here on runs may be missing
        self._failed(error)

    def _below(self, method: str, path: str, given: Facts) -> Tuple[Optional[Call], Facts]:
        """Return the call for a path that contains an id, and what it is given."""
        first, _, rest = path.partition("/")
        key, _, rest = rest.partition("/")
        if first == "logged-models" and key:
            what, _, tag = rest.partition("/")
            given = {**given, "model_id": key, "tag": tag}
            return self._calls.get(f"{method} logged-models/*/{what}".rstrip("/")), given
        return None, given


def _calls_of(owner: Any) -> Dict[str, Call]:
    return {f"{method} {path}": getattr(owner, name) for method, path, name in owner.ENDPOINTS}


def _stand_in(path: str, given: Facts) -> Facts:
    """Return an answer with which MLflow goes on, from the request alone."""
    experiment = {"experiment_id": DEFAULT, "name": "Default", "lifecycle_stage": "active"}
    key = str(given.get("run_id") or given.get("run_uuid") or uuid.uuid4().hex)[:100]
    info = {
        "run_id": key,
        "run_uuid": key,
        "run_name": key[:8],
        "experiment_id": DEFAULT,
        "user_id": "",
        "status": "RUNNING",
        "start_time": now(),
        "lifecycle_stage": "active",
    }
    run = {"info": info, "data": {}}
    answers: Facts = {
        "runs/create": {"run": run},
        "runs/get": {"run": run},
        "runs/update": {"run_info": info},
        "experiments/create": {"experiment_id": DEFAULT},
        "experiments/get": {"experiment": experiment},
        "experiments/get-by-name": {"experiment": experiment},
    }
    found: Facts = answers.get(path, {})
    return found


def _refused(error: Refusal) -> Answer:
    status = 404 if error.code in ("RESOURCE_DOES_NOT_EXIST", "ENDPOINT_NOT_FOUND") else 400
    return Answer({"error_code": error.code, "message": str(error)}, status)


def _no_endpoint(path: str) -> Refusal:
    return Refusal(
        "ENDPOINT_NOT_FOUND",
        f"nsml has no {path[:100]}: it tracks experiments, runs, models and artifacts of this session; for more set "
        "MLFLOW_TRACKING_URI to a server of your own",
    )
