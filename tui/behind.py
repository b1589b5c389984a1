"""Work that goes on behind what is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from textual.dom import DOMNode
    from textual.worker import WorkType


def behind(
    owner: DOMNode,
    group: str,
    work: Callable[[], Coroutine[Any, Any, None]],
    *,
    is_alone: bool = True,
) -> None:
    """Have work done until its owner goes; alone in its group it replaces what goes on there.

    It is called when its turn comes: a coroutine that is replaced before, or whose owner goes, would never be awaited.
    """
    begun: WorkType[None] = work
    owner.run_worker(begun, name=group, group=group, exclusive=is_alone)
