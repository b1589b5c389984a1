"""The same work on many things, on all processors that this process may use."""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")


def spread(work: Callable[[S, T], R], shared: S, things: Sequence[T]) -> list[R]:
    """What `work` makes of what they share and each of these, in their order.

    Args:
        work: a function of a module, which draws on nothing but its arguments.
        shared: sent to each process once.
        things: one piece of work each.
    """
    with multiprocessing.Pool(len(os.sched_getaffinity(0)), _remember, (work, shared)) as pool:
        return pool.map(_one, things, chunksize=1)


_REMEMBERED: dict[str, Any] = {}


def _remember(work: Callable[..., Any], shared: Any) -> None:
    _REMEMBERED["it"] = (work, shared)


def _one(thing: Any) -> Any:
    work, shared = _REMEMBERED["it"]
    return work(shared, thing)
