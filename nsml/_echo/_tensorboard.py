"""TensorBoard: what passes `EventFileWriter.add_event` of tensorboard (torch's SummaryWriter uses it) or of tensorboardX.

An event is recorded before the library writes it, which it does in a thread, up to two minutes later.
"""

from __future__ import annotations

import os
import sys

from nsml._echo import _following
from nsml._echo._event_files import EventReader
from nsml._echo._events import ORIGIN, record
from nsml._echo._hooks import Fence
from nsml._echo._logdirs import Logdirs
from nsml._echo._sink import sink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List

_WRITER = "_nsml_writer"
"""Attribute of a library's writer."""
_RAY = "nsml._echo._ray_tune"
_HPARAMS = "hparams"
_logdirs: List[Logdirs] = []


class _Writer:
    """What is known of one writer.

    Attributes:
        prefix: of its metrics.
        has_curves: whether its scalars are metrics.
        reader: decodes its events.
    """

    def __init__(self, prefix: str, *, has_curves: bool) -> None:
        self.prefix = prefix
        self.has_curves = has_curves
        self.reader = EventReader()


def install(module: Any) -> None:
    """Follow the writers of a module."""
    fence = Fence(ORIGIN, module.__name__)
    fence.follow(module.EventFileWriter, "add_event", _added)
    fence.follow(module.EventFileWriter, "__init__", _made, before=_makes)


def _makes(*_: Any, **__: Any) -> None:
    _following.hold()


def _made(_: Any, writer: Any, *__: Any, **___: Any) -> None:
    """Its file is recorded here, not by a follower of files."""
    inner = getattr(writer, "_ev_writer", writer)
    _following.wrote(str(getattr(inner, "_file_name", "")))


def logdirs() -> Logdirs:
    """Return the log folders of this replica."""
    if not _logdirs:
        _logdirs.append(Logdirs(os.environ["NSML_RUN_DIR"]))
    return _logdirs[0]


def _added(_: Any, writer: Any, event: Any) -> None:
    """Record an event."""
    summary = getattr(event, "summary", None)
    if summary is None or getattr(writer, "_closed", False):
        return
    values = summary.value
    count = len(values)
    if not count:  # another kind of event
        return
    ours = getattr(writer, _WRITER, None) or _begin(writer, values)
    if count == 1:  # nearly all: a scalar
        value = values[0]
        if value.WhichOneof("value") == "simple_value":
            if ours.has_curves:
                found, time = {value.tag: value.simple_value}, event.wall_time or None
                sink().metrics(ORIGIN, found, event.step, prefix=ours.prefix, time=time)
            return
    for one in ours.reader.event(event.SerializeToString()):
        if ours.has_curves or one.kind != "scalar":
            record(sink(), one, ours.prefix)


def _begin(writer: Any, values: Any) -> _Writer:
    """Learn about a writer from its first summary.

    `SummaryWriter.add_hparams` makes a writer in a subfolder, for the hyperparameters and a last value of some metrics,
    which are no curves. Ray Tune writes what its hook records.
    """
    logdir = str(writer.get_logdir())
    known = logdirs()
    above = os.path.dirname(os.path.abspath(logdir))
    is_first = not (known.is_known(above) or known.is_known(logdir))
    has_hparams = len(values) == 1 and values[0].metadata.plugin_data.plugin_name == _HPARAMS
    is_of_ray = _RAY in sys.modules and len(values) > 0 and values[0].tag.startswith("ray/tune/")
    if (has_hparams and not is_first) or is_of_ray:
        ours = _Writer("", has_curves=False)
    else:
        ours = _Writer(known.prefix(logdir), has_curves=True)
    setattr(writer, _WRITER, ours)
    return ours


def _after_fork() -> None:
    for one in _logdirs:
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
