"""Hooks on Hugging Face Accelerate: what `log` and `init_trackers` are given is recorded, whatever `log_with` says.

Folders of `save_state` become checkpoints of the session. In a further attempt the last one is put back where it was, for
programs that look for it there.
"""

from __future__ import annotations

import os
import sys

from nsml._echo._framework_checkpoints import FrameworkCheckpoints
from nsml._echo._hooks import Fence
from nsml._echo._sink import sink
from nsml._values import is_mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List

_ORIGIN = "accelerate"
_NAME = "nsml"
_SHARDED = frozenset(("DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA"))
"""Kinds of training in which each process writes a part, when it likes."""

_kept: List[FrameworkCheckpoints] = []
"""Of this process: programs save from one loop."""


def install(module: Any) -> None:
    """Follow the Accelerator, and register a tracker named nsml. `module`: accelerate.accelerator."""
    fence = Fence(_ORIGIN, module.__name__)
    accelerator = module.Accelerator
    fence.follow(accelerator, "__init__", _begun)
    fence.follow(accelerator, "init_trackers", _initialized)
    fence.follow(accelerator, "log", _logged)
    fence.follow(accelerator, "save_state", _saved)
    tracking = sys.modules.get("accelerate.tracking")
    classes = getattr(tracking, "LOGGER_TYPE_TO_CLASS", None)
    if isinstance(classes, dict):
        classes.setdefault(_NAME, _tracker_class(tracking, fence))


def _tracker_class(tracking: Any, fence: Fence) -> Any:
    class NsmlTracker(tracking.GeneralTracker):  # type: ignore[misc] # a class of the program's library
        """`log_with="nsml"`. What the Accelerator logs is recorded by the hook on that, so only calls of this one are here."""

        name = _NAME
        requires_logging_directory = False

        def __init__(self, run_name: str = "", **kwargs: Any) -> None:
            super().__init__()
            self.run_name = run_name
            self.init_kwargs = kwargs

        @property
        def tracker(self) -> Any:
            import nsml

            return nsml

        def store_init_configuration(self, values: Any) -> None:
            fence.guard(_record_config, values)

        def log(self, values: Any, step: Any = None, **_: Any) -> None:
            fence.guard(_record, values, step)

    NsmlTracker.__module__, NsmlTracker.__qualname__ = __name__, "NsmlTracker"
    globals()["NsmlTracker"] = NsmlTracker
    return NsmlTracker


def _record(values: Any, step: Any) -> None:
    if is_mapping(values):
        sink().metrics(_ORIGIN, values, step)


def _record_config(values: Any) -> None:
    if is_mapping(values):
        sink().config(_ORIGIN, values)


def _has_ours(accelerator: Any) -> bool:
    """Return whether our tracker records what the Accelerator is given."""
    return any(getattr(one, "name", "") == _NAME for one in accelerator.trackers)


def _begun(result: Any, accelerator: Any, *_: Any, **__: Any) -> None:  # noqa: ARG001 - of the hooked function
    if not _kept:
        _kept.append(FrameworkCheckpoints(_ORIGIN))
        if not accelerator.project_configuration.automatic_checkpoint_naming:
            _kept[0].restored(None)


def _initialized(
    result: Any,  # noqa: ARG001 - of the hooked function
    accelerator: Any,
    project_name: Any = None,  # noqa: ARG001
    config: Any = None,
    *_: Any,
    **__: Any,
) -> None:
    if accelerator.is_main_process and not _has_ours(accelerator):
        _record_config(config)


def _logged(
    result: Any,  # noqa: ARG001 - of the hooked function
    accelerator: Any,
    values: Any = None,
    step: Any = None,
    *_: Any,
    **__: Any,
) -> None:
    if accelerator.is_main_process and not _has_ours(accelerator):
        _record(values, step)


def _saved(result: Any, accelerator: Any, output_dir: Any = None, *_: Any, **__: Any) -> None:
    folder = result if isinstance(result, (str, os.PathLike)) else output_dir
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if not folder or not _kept or kind in _SHARDED or not accelerator.is_main_process:
        return
    kept = _kept[0]
    if not kept.is_on:
        kept.begins(is_told=False)
    path = os.path.normpath(os.fspath(folder))
    kept.keep(path, os.path.basename(path), None, {}, waits=False)
