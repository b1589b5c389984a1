"""How often control planes and agents look for garbage in cycles; benchmarks of their parts do the same."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

THRESHOLDS: Final = (20_000, 20, 50)
"""A cluster is a million records that stay: with the interpreter's (700, 10, 10) a third of a plan goes by looking at them."""


def collect_seldom() -> None:
    """Look at what is new now and then only, and at what is there already never: for the start of a process."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


@contextmanager
def no_collection() -> Iterator[None]:
    """For imports: they make no garbage, and looking for it takes a tenth of a program's start."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
