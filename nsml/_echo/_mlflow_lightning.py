"""Lightning's logger for MLflow, which reads MLFLOW_TRACKING_URI before MLflow is imported, and then writes to ./mlruns."""

from __future__ import annotations

import functools

from nsml._echo._hooks import Fence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_URI = 2
"""Position of `tracking_uri` among the arguments of the logger."""


def install(module: Any) -> None:
    """Let loggers that are given no place use the tracking server of `_mlflow`."""
    logger: Any = getattr(module, "MLFlowLogger", None)
    original = vars(logger).get("__init__") if logger is not None else None
    if original is None:
        return
    fence = Fence("mlflow", module.__name__)

    @functools.wraps(original)
    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) <= _URI and "tracking_uri" not in kwargs and "save_dir" not in kwargs:
            uri = fence.guard(_own_uri)
            if uri:
                kwargs["tracking_uri"] = uri
        original(self, *args, **kwargs)

    setattr(logger, "__init__", begin)  # noqa: B010 - of a class that is not known here


def _own_uri() -> str:
    """Return the server's URI; "" if MLflow is not there, or the user has named a server."""
    try:
        import mlflow  # noqa: F401 - its hook starts the server
    except ImportError:
        return ""
    from nsml._echo._mlflow import own_uri

    return own_uri()
