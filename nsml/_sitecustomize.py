"""Installed as `sitecustomize.py` beside the SDK: makes `import nsml` load the platform's SDK.

PYTHONPATH alone does not: the program's own folder comes first, and many programs have an
`nsml.py` or `nsml/` of their own. The interpreter's own sitecustomize still runs.

It also lets `os.environ` have NSML_METRIC_API, whose server begins when a program asks for the variable, and runs a
hook of `nsml._echo` once a library that reports elsewhere has been imported. Nothing of nsml is imported before that.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any, Dict, Optional, Tuple

    _Entries = Dict[bytes, bytes]
    Hooks = Dict[str, Tuple[str, str]]
else:
    _Entries = Hooks = dict

_METRIC_API = b"NSML_METRIC_API"

_HOOKS: Hooks = {
    "accelerate.accelerator": ("accelerate", "_accelerate"),
    "aim": ("aim", "_unrecorded"),
    "clearml": ("clearml", "_unrecorded"),
    "comet_ml": ("comet", "_unrecorded"),
    "jax._src.clusters": ("jax", "_jax"),
    "keras": ("keras", "_keras"),
    "lightning.fabric.fabric": ("lightning", "_lightning"),
    "lightning.pytorch.loggers.mlflow": ("mlflow", "_mlflow_lightning"),
    "lightning.pytorch.trainer.trainer": ("lightning", "_lightning"),
    "lightning_fabric.fabric": ("lightning", "_lightning"),
    "mlflow": ("mlflow", "_mlflow"),
    "neptune": ("neptune", "_unrecorded"),
    "pytorch_lightning.loggers.mlflow": ("mlflow", "_mlflow_lightning"),
    "pytorch_lightning.trainer.trainer": ("lightning", "_lightning"),
    "ray.train.v2._internal.callbacks.env_callback": ("ray", "_ray"),
    "ray.tune.utils.callback": ("ray", "_ray"),
    "tensorboard.summary.writer.event_file_writer": ("tensorboard", "_tensorboard"),
    "tensorboardX.event_file_writer": ("tensorboard", "_tensorboard"),
    "tensorflow": ("tensorboard", "_tensorflow"),
    "trackio": ("trackio", "_unrecorded"),
    "transformers.trainer": ("transformers", "_transformers"),
    "wandb": ("wandb", "_wandb"),
}
"""Origin and module of `nsml._echo`, by the name of the module whose import it follows."""


class PlatformFinder:
    """A meta-path finder for the SDK in `folder`, and for modules with a hook."""

    def __init__(self, folder: str, hooks: Optional[Hooks] = None) -> None:
        self._folder = folder
        self._hooks = hooks or {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        """Find `nsml`, whose submodules are found through its own path; and modules with a hook as others do."""
        if name in self._hooks:
            return self._hooked(name, path, target)
        return PathFinder.find_spec(name, [self._folder]) if name == "nsml" else None

    def _hooked(self, name: str, path: Any, target: Any) -> Optional[ModuleSpec]:
        spec = None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find and find(name, path, target)
            if spec is not None:
                break
        loader = getattr(spec, "loader", None)
        execute = getattr(loader, "exec_module", None)
        if execute is not None:
            origin, hook = self._hooks[name]

            def exec_module(module: Any) -> None:
                vars(loader).pop("exec_module", None)
                if getattr(module, "__name__", "") != name:  # a loader of several modules
                    execute(module)
                    return
                _run(origin, hook, "before_import", module)
                execute(module)
                _run(origin, hook, "install", module)

            try:  # noqa: SIM105 - contextlib is not loaded at the start of Python
                loader.exec_module = exec_module  # type: ignore[union-attr]
            except (AttributeError, TypeError):
                pass  # a built-in loader: the module stays as it is
        return spec


def _run(origin: str, hook: str, function: str, module: Any) -> None:
    try:
        from nsml._echo import _hooks

        _hooks.run(origin, hook, function, module)
    except Exception:
        pass  # a damaged SDK: `import nsml` says so; the library works as without it


def hooks_of(environment: Any) -> Hooks:
    """Return the hooks that NSML_ECHO leaves on: in sessions, except in those of submissions, which record no metrics."""
    if not environment.get("NSML_RUN_DIR") or environment.get("NSML_STAGE"):
        return {}
    chosen = environment.get("NSML_ECHO")
    if chosen is None:
        return _HOOKS
    origins = {name.strip() for name in chosen.split(",")}
    return {name: hook for name, hook in _HOOKS.items() if hook[0] in origins}


class Variables(_Entries):
    """The entries of `os.environ`, and one that is there as soon as it is looked up."""

    def __missing__(self, name: bytes) -> bytes:
        if name != _METRIC_API:
            raise KeyError(name)
        try:
            from nsml._metric_api import address

            os.environ[name.decode()] = address(os.environ["NSML_RUN_DIR"])  # for its children, too
            return self[name]
        except Exception:
            raise KeyError(name) from None


def offer_metric_api() -> None:
    """Do so in a session, except in those of submissions, which record no metrics."""
    entries = getattr(os.environ, "_data", None)
    offers = os.environ.get("NSML_RUN_DIR") and not os.environ.get("NSML_STAGE")
    if not offers or type(entries) is not dict or _METRIC_API in entries or os.name != "posix":
        return
    variables = Variables(entries)
    for environment in (os.environ, os.environb):
        vars(environment)["_data"] = variables


def install(folder: str) -> None:
    """Install the finder first, then run the sitecustomize hidden by this one, if there is one.

    Its exceptions pass to `site`, which reports them and continues, as without this one.
    """
    sys.meta_path.insert(0, PlatformFinder(folder, hooks_of(os.environ)))
    offer_metric_api()
    places = [place for place in sys.path if os.path.realpath(place or ".") != folder]
    hidden = PathFinder.find_spec("sitecustomize", places)
    if hidden is None or hidden.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(hidden)
    sys.modules["sitecustomize"] = module
    hidden.loader.exec_module(module)


if __name__ == "sitecustomize":
    install(os.path.dirname(os.path.realpath(__file__)))
