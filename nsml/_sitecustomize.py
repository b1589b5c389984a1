"""Installed as `sitecustomize.py` beside the SDK: makes `import nsml` load the platform's SDK.

PYTHONPATH alone does not: the program's own folder comes first, and many programs have an
`nsml.py` or `nsml/` of their own. The interpreter's own sitecustomize still runs.

It also lets `os.environ` have NSML_METRIC_API, whose server begins when a program asks for the variable.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any, Dict, Optional

    _Entries = Dict[bytes, bytes]
else:
    _Entries = dict

_METRIC_API = b"NSML_METRIC_API"


class PlatformFinder:
    """A meta-path finder for one package, the SDK in `folder`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Optional[ModuleSpec]:
        """Find `nsml`; its submodules are found through its own path."""
        return PathFinder.find_spec(name, [self._folder]) if name == "nsml" else None


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
    sys.meta_path.insert(0, PlatformFinder(folder))
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
