"""Work in the background, as workers of Textual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.app import ScreenStackError
from textual.css.query import NoMatches

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
    """Run `work` as a worker of `owner`, cancelled with it; `is_alone` replaces others of its group.

    `work` is called when it starts: a coroutine created earlier, and replaced or cancelled before that, would never be
    awaited. Textual removes the owner's parts before it cancels the owner's workers: a worker that misses a part then
    has nothing to show, and ends.
    """

    async def begun() -> None:
        try:
            await work()
        except (NoMatches, ScreenStackError):
            if not is_going(owner):
                raise

    worker: WorkType[None] = begun
    owner.run_worker(worker, name=group, group=group, exclusive=is_alone)


def is_going(node: DOMNode) -> bool:
    """Whether the node is being removed, or the app ends: parts of it may be gone."""
    return node._pruning or not node.app.is_running  # noqa: SLF001 - set before the first part of it goes
