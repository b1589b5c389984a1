"""Libraries whose reports nsml does not record: a line in the log says so, and what does help.

It comes when the program begins a run of such a library. Where a library that is recorded has been imported, too, that
one may report the same: then it comes at the end, unless metrics were recorded.
"""

from __future__ import annotations

import atexit
import os
import sys

from nsml._echo._hooks import Fence
from nsml._echo._sink import sink
from nsml._progress import is_first

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Tuple

_REPORT = "call nsml.report with the same values"
_WRITER = "report with torch's SummaryWriter of TensorBoard, which both record"
_LIBRARIES: Dict[str, Tuple[Tuple[str, str], str]] = {
    "aim": (("Run", "__init__"), _REPORT),
    "clearml": (("Task", "__init__"), f"{_REPORT}, or {_WRITER}"),
    "comet_ml": (("CometExperiment", "__init__"), f"{_REPORT}, or {_WRITER}"),
    "neptune": (("Run", "__init__"), _REPORT),
    "trackio": (
        ("", "init"),
        f"`import wandb` in its place, whose init, log and finish are recorded, or {_REPORT}",
    ),
}
"""By the module: what begins a run, as class and function; and what to do."""
_RECORDED = (
    "accelerate",
    "keras",
    "lightning.pytorch",
    "mlflow",
    "pytorch_lightning",
    "ray.tune",
    "tensorboard.summary.writer.event_file_writer",
    "tensorboardX",
    "tensorflow",
    "transformers.trainer",
    "wandb",
)
"""Modules of libraries that are recorded."""


def install(module: Any) -> None:
    """Follow the beginnings of runs."""
    name = module.__name__
    (owner, function), advice = _LIBRARIES[name]
    fence = Fence(_origin(name), name)
    said = _Line(_origin(name), f"nsml does not record what is reported to it: {advice}", fence)
    place = getattr(module, owner, None) if owner else module
    if place is not None:
        fence.follow(place, function, before=said.begins)


class _Line:
    """The line about one library, written once."""

    def __init__(self, origin: str, text: str, fence: Fence) -> None:
        self._origin = origin
        self._text = text
        self._fence = fence
        self._pid = 0

    def begins(self, *_: Any, **__: Any) -> None:
        """Write it, now or at the end."""
        if self._pid or not is_first():
            return
        self._pid = os.getpid()
        if any(name in sys.modules for name in _RECORDED):
            atexit.register(self._fence.guard, self._ends)
        elif not sink().has_metrics:
            self._write()

    def _ends(self) -> None:
        if os.getpid() == self._pid and not sink().has_metrics:
            self._write()

    def _write(self) -> None:
        sink().log_once("unrecorded", self._text, self._origin)


def _origin(module: str) -> str:
    return "comet" if module == "comet_ml" else module
