"""Hooks on functions of other libraries: fenced, so that the program's result is the same with a hook that fails."""

from __future__ import annotations

import functools
import importlib
import sys

from nsml._notice import notice
from nsml._strict import comes_from_signal, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Set, Tuple

_TITLES = {
    "wandb": "W&B",
    "tensorboard": "TensorBoard",
    "mlflow": "MLflow",
    "transformers": "Transformers",
    "lightning": "Lightning",
    "accelerate": "Accelerate",
    "keras": "Keras",
    "ray": "Ray",
    "jax": "JAX",
    "trackio": "trackio",
    "aim": "Aim",
    "comet": "Comet",
    "neptune": "Neptune",
    "clearml": "ClearML",
}


_broken: Set[str] = set()
"""Hooks that have failed before they were there."""


def run(origin: str, hook: str, function: str, module: Any) -> None:
    """Call `function` of the module `hook` of this package, if it has one; log its first exception."""
    if hook in _broken:
        return
    try:
        call = getattr(importlib.import_module(f"nsml._echo.{hook}"), function, None)
        if call is not None:
            call(module)
    except Exception as error:
        if comes_from_signal(error):
            raise
        _broken.add(hook)
        Fence(origin, getattr(module, "__name__", "")).fail(error)


class Fence:
    """Guards the hooks on one library: the first exception of one removes all of them, and is logged.

    Args:
        origin: as in the records.
        module: name of the hooked module; its package has the version.
    """

    def __init__(self, origin: str, module: str) -> None:
        self._origin = origin
        self._package = module.partition(".")[0]
        self._hooked: List[Tuple[Any, str, Any, Any]] = []
        self.is_whole = True
        """Whether the hooks are on."""

    def follow(
        self,
        owner: Any,
        name: str,
        after: Optional[Callable[..., Any]] = None,
        *,
        before: Optional[Callable[..., Any]] = None,
        change: Optional[Callable[..., Optional[Tuple[Any, Dict[str, Any]]]]] = None,
    ) -> None:
        """Call `before(*args, **kwargs)` and `after(result, *args, **kwargs)` around a function of a class or module.

        Its result, signature and exceptions stay as they are. Without an attribute of this name nothing happens, since
        another version of the library may lack it. `change(*args, **kwargs)` may return a tuple and a dict of other
        arguments to call it with; None: the same.
        """
        original = vars(owner).get(name)
        if not callable(original):
            return

        @functools.wraps(original)
        def hooked(*args: Any, **kwargs: Any) -> Any:
            # As `guard`, without its call: programs make these in their inner loop.
            if before is not None and self.is_whole:
                try:
                    before(*args, **kwargs)
                except Exception as error:
                    if self._is_of_program(error):
                        raise
            if change is not None:
                args, kwargs = self.guard(change, *args, **kwargs) or (args, kwargs)
            result = original(*args, **kwargs)
            if after is not None and self.is_whole:
                try:
                    after(result, *args, **kwargs)
                except Exception as error:
                    if self._is_of_program(error):
                        raise
            return result

        setattr(owner, name, hooked)
        self._hooked.append((owner, name, hooked, original))

    def guard(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of ours while the hooks are on; return its result, None if it fails."""
        if not self.is_whole:
            return None
        try:
            return call(*args, **kwargs)
        except Exception as error:
            if self._is_of_program(error):
                raise
            return None

    def _is_of_program(self, error: Exception) -> bool:
        """Return whether an exception in a hook must reach the program; else take what it says of the hook."""
        if isinstance(error, RecursionError):
            return False  # the program is as deep in calls as Python allows: no fault of the hook
        if comes_from_signal(error):
            return True
        self.fail(error)
        return False

    def fail(self, error: BaseException) -> None:
        """Remove the hooks, and log why, once."""
        if not self.is_whole:
            return
        self.is_whole = False
        for owner, name, hooked, original in self._hooked:
            try:
                if vars(owner).get(name) is hooked:  # else another one wraps it: it passes calls on
                    setattr(owner, name, original)
            except Exception:  # noqa: S112 - an owner that lets nothing be set: the hook does nothing from now on
                continue
        title = _TITLES.get(self._origin, self._origin)
        version = str(getattr(sys.modules.get(self._package), "__version__", "") or "")
        notice(
            f"{title}{' ' + version if version else ''}: what it reports is not recorded from here on: "
            f"{reason(error)}; the program goes on as without nsml"
        )


def title(origin: str) -> str:
    """Return the library's name for people."""
    return _TITLES.get(origin, origin)
