"""TensorFlow: its writers of event files are C++, so the files are followed: Keras's TensorBoard callback, clu, flax."""

from __future__ import annotations

import os
import sys

from nsml._echo import _following
from nsml._echo._events import ORIGIN
from nsml._echo._hooks import Fence
from nsml._echo._sink import sink
from nsml._echo._tensorboard import logdirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OPERATIONS = "tensorflow.python.ops.gen_summary_ops"
"""All writers of TensorFlow 2 are made by its `create_summary_file_writer`."""
_WRITERS = "tensorflow.python.summary.writer.event_file_writer"
"""Those of `tf.compat.v1` by its `EventFileWriter`."""


def install(module: Any) -> None:
    """Follow the files of writers from now on."""
    fence = Fence(ORIGIN, module.__name__)
    operations = sys.modules.get(_OPERATIONS)
    if operations is not None:
        fence.follow(operations, "create_summary_file_writer", before=_begins)
    writer = getattr(sys.modules.get(_WRITERS), "EventFileWriter", None)
    if writer is not None:
        fence.follow(writer, "__init__", before=_begins)


def _begins(_: Any = None, logdir: Any = None, *__: Any, **___: Any) -> None:
    """Follow the folder of a new writer."""
    numpy = getattr(logdir, "numpy", None)
    try:
        path = logdir if numpy is None else numpy()
    except (AttributeError, NotImplementedError):
        return  # of a graph: its value is not here yet
    if not isinstance(path, (str, bytes, os.PathLike)):
        return
    text = os.fsdecode(path)
    if text and "://" not in text:
        sink()  # the follower has its own: this one tells it what `nsml.report` reports
        logdirs().prefix(text)
        _following.follow(text)
