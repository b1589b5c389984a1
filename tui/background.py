"""Work in the background, as workers of Textual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from textual.dom import DOMNode
    from textual.worker import WorkType


def in_background(
    owner: DOMNode,
    group: str,
    work: Callable[[], Coroutine[Any, Any, None]],
    *,
    is_alone: bool = True,
) -> None:
    """Run `work` as a worker of its owner, which cancels it when it goes; `is_alone` replaces the others of its group.

    `work` is called when its turn comes: a coroutine made earlier, and replaced or cancelled before that, would never be
    awaited.
    """
    begun: WorkType[None] = work
    owner.run_worker(begun, name=group, group=group, exclusive=is_alone)
