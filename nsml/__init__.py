"""The SDK for training code: `nsml.bind`, `nsml.report`, `nsml.image`, `nsml.save` and others.

Only the standard library is imported. Outside of a session modules are loaded at first use (PEP 562), so that
`import nsml` costs next to nothing on any Python from 3.8 on. In a session all recording code is loaded at once, so
that the first report is as safe against signals, threads and forks as every later one. `docs/sdk-protocol.md` specifies
the written files, so that programs in other languages can report too.
"""

from __future__ import annotations

import _thread
import os
import sys
import time

TYPE_CHECKING = False  # not imported from typing: that costs more than this whole package
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Tuple

    from nsml import constants, decoder, encoder
    from nsml._extras import copy
    from nsml._session import (
        Visdom,
        artifact,
        audio,
        bind,
        cache,
        embedding,
        feature_map,
        histogram,
        image,
        infer,
        knob,
        knobs,
        load,
        paused,
        report,
        save,
        should_stop,
        step,
        steps,
        strict,
        table,
        text,
        video,
    )
    from nsml._streams import open  # noqa: A004, F401 - see _FUNCTIONS
    from nsml.constants import (
        DATASET_NAME,
        DATASET_PATH,
        GPU_NUM,
        HAS_DATASET,
        IS_DATASET,
        IS_ON_NSML,
        MY_RANK,
        NSML_NFS_OUTPUT,
        PARALLEL_PORTS,
        PARALLEL_WORLD,
        SESSION_ID,
        SESSION_NAME,
    )

__all__ = [
    "DATASET_NAME",
    "DATASET_PATH",
    "GPU_NUM",
    "HAS_DATASET",
    "IS_DATASET",
    "IS_ON_NSML",
    "MY_RANK",
    "NSML_NFS_OUTPUT",
    "PARALLEL_PORTS",
    "PARALLEL_WORLD",
    "SESSION_ID",
    "SESSION_NAME",
    "Visdom",
    "artifact",
    "audio",
    "bind",
    "cache",
    "constants",
    "copy",
    "decoder",
    "embedding",
    "encoder",
    "feature_map",
    "histogram",
    "image",
    "infer",
    "knob",
    "knobs",
    "load",
    "paused",
    "report",
    "save",
    "should_stop",
    "step",
    "steps",
    "strict",
    "table",
    "text",
    "video",
]

_IMPORTED_AT = time.monotonic()
_FUNCTIONS = {
    **dict.fromkeys(("audio", "embedding", "feature_map", "histogram"), "_session"),
    **dict.fromkeys(("image", "table", "text", "video"), "_session"),
    "artifact": "_session",
    "bind": "_session",
    "infer": "_session",
    "knob": "_session",
    "knobs": "_session",
    "load": "_session",
    "paused": "_session",
    "report": "_session",
    "save": "_session",
    "should_stop": "_session",
    "step": "_session",
    "steps": "_session",
    "strict": "_session",
    "Visdom": "_session",
    "cache": "_session",
    "copy": "_extras",
    # not in __all__: `from nsml import *` must leave the built-in open alone
    "open": "_streams",
}
_SUBMODULES = ("constants", "decoder", "encoder")
_LOADED_BY_CALLS = (
    *("fcntl", "nsml._agent", "nsml._distributions"),
    *("nsml._pictures", "nsml._sounds", "nsml._tables"),
    *(("nsml._predictions",) if os.environ.get("NSML_STAGE") else ()),
)
"""Modules that functions load at their first call; in a session they are loaded at once, since a signal
handler that calls such a function in the middle of the import would find half a module."""
_RECORDING = frozenset(
    ("audio", "embedding", "feature_map", "histogram", "image", "report", "table", "text", "video")
)
_CALLED_ELSEWHERE = {
    **dict.fromkeys(
        ("add_scalar", "add_scalars", "log", "log_metric", "log_metrics", "track"),
        "nsml.report(step=STEP, loss=VALUE) records numbers",
    ),
    **dict.fromkeys(
        ("end_run", "finish", "init", "start_run"), "no call begins or ends a run: leave it out"
    ),
    **dict.fromkeys(
        ("load_checkpoint", "log_model", "restore", "resume", "save_checkpoint"),
        "nsml.bind names what saves and loads, nsml.save(STEP) saves a checkpoint",
    ),
    **dict.fromkeys(("add_image", "log_image"), "nsml.image(NAME, PIXELS, STEP) shows an image"),
    **dict.fromkeys(
        ("log_artifact", "log_artifacts", "upload_artifact"),
        "nsml.artifact(NAME, PATH) saves a file or a folder",
    ),
    "config": "arguments come from the command line: nsml run ... -- --lr 0.1",
}
"""Function names of other experiment trackers, and what to use instead."""
_loading = _thread.RLock()  # as in `threading`, without loading it
_early: List[Tuple[str, Tuple[Any, ...], Dict[str, Any]]] = []
"""Calls by signal handlers while the interrupted thread was loading the called function."""


def __getattr__(name: str) -> Any:
    """Load the module of `name` at its first use."""
    if name not in __all__ and name not in _FUNCTIONS:
        hint = _CALLED_ELSEWHERE.get(name, "")
        instead = f"; {hint}" if hint else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{instead}")
    with _loading:
        module = _module(name if name in _SUBMODULES else _FUNCTIONS.get(name, "constants"))
        if name in _SUBMODULES:
            return module
        try:
            value = globals()[name] = getattr(module, name)
        except AttributeError:
            if name in _RECORDING:
                return _later(name)
            raise
        while _early:
            called, arguments, named = _early.pop(0)
            getattr(module, called)(*arguments, **named)
    return value


def _module(name: str) -> Any:
    """Import a module of this package, without loading `importlib`."""
    __import__(f"{__name__}.{name}")
    return sys.modules[f"{__name__}.{name}"]


def _later(name: str) -> Callable[..., None]:
    """Queue a call until its function is loaded."""

    def call(*arguments: Any, **named: Any) -> None:
        _early.append((name, arguments, named))

    return call


if hasattr(os, "register_at_fork"):
    # Else a child would wait forever for an import of another thread of its parent.
    os.register_at_fork(
        before=_loading.acquire,
        after_in_parent=_loading.release,
        after_in_child=_loading.release,
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_FUNCTIONS})


if os.environ.get("NSML_RUN_DIR"):
    for _name, _where in _FUNCTIONS.items():
        if _where == "_session":
            __getattr__(_name)
    for _name in _LOADED_BY_CALLS:
        try:  # noqa: SIM105 - contextlib is not loaded yet
            __import__(_name)
        except ImportError:
            pass  # this Python has no such module: the call that needs it says so
