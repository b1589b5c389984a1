"""Garbage collection settings of control planes and agents, also used by benchmarks of their parts."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

THRESHOLDS: Final = (20_000, 20, 50)
"""A cluster has a million long-lived records: with the default (700, 10, 10), collection takes a third of a plan's time."""


def collect_seldom() -> None:
    """Collect new objects rarely, and existing ones never: for the start of a process."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable collection during imports: they make no garbage, and it takes a tenth of a program's start."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
