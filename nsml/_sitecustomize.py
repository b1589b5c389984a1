"""Installed as `sitecustomize.py` beside the SDK: makes `import nsml` load the platform's SDK.

PYTHONPATH alone does not: the program's own folder comes first, and many programs have an
`nsml.py` or `nsml/` of their own. The interpreter's own sitecustomize still runs.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any, Optional


class PlatformFinder:
    """A meta-path finder for one package, the SDK in `folder`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Optional[ModuleSpec]:
        """Find `nsml`; its submodules are found through its own path."""
        return PathFinder.find_spec(name, [self._folder]) if name == "nsml" else None


def install(folder: str) -> None:
    """Install the finder first, then run the sitecustomize hidden by this one, if there is one.

    Its exceptions pass to `site`, which reports them and continues, as without this one.
    """
    sys.meta_path.insert(0, PlatformFinder(folder))
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
