"""Facts about the current session; outside of a session empty or zero.

With several datasets `DATASET_PATH` and `DATASET_NAME` are lists, with one they are strings.
"""

from __future__ import annotations

import math
import os

from nsml import _small_sets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
]


def _one_or_list(variable: str) -> Any:
    """Return a string for up to one entry, a list for more: `DATASET_PATH[0]` must mean both in user code."""
    entries = os.environ.get(variable, "").split(os.pathsep)
    return entries[0] if len(entries) == 1 else entries


def _whole(variable: str) -> int:
    """Return a number rounded up (half a GPU is a GPU), 0 if the variable is missing or no number."""
    try:
        return math.ceil(float(os.environ.get(variable) or 0))
    except (ValueError, OverflowError):
        return 0


def _comma_list(variable: str) -> list[str]:
    return [entry for entry in os.environ.get(variable, "").split(",") if entry]


_small_sets.enter(os.environ)
IS_ON_NSML = bool(os.environ.get("NSML_RUN_DIR"))
SESSION_NAME = os.environ.get("NSML_SESSION_NAME", "")
SESSION_ID = os.environ.get("NSML_SESSION_ID", "")
DATASET_PATH: Any = _one_or_list("NSML_DATASET_PATH")
DATASET_NAME: Any = _one_or_list("NSML_DATASET_NAME")
HAS_DATASET = bool(DATASET_PATH)
IS_DATASET = HAS_DATASET
GPU_NUM = _whole("NSML_GPU_NUM")
MY_RANK = _whole("NSML_RANK")
PARALLEL_WORLD = _comma_list("NSML_PARALLEL_WORLD")
PARALLEL_PORTS = _comma_list("NSML_PARALLEL_PORTS")
NSML_NFS_OUTPUT = os.environ.get("NSML_NFS_OUTPUT", "")
