"""Tasks and cancellations in cases where asyncio alone would lose one."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
    from types import TracebackType

S = TypeVar("S")
T = TypeVar("T")


class TaskGroup(asyncio.TaskGroup):
    """A task group that keeps a cancellation of the task that waits for it.

    If one of its tasks fails during a cancellation from outside, asyncio's group raises the
    failure and drops the cancellation: a loop that survives failures would then run forever, and
    so would its waiters. Here the failure is raised as well, and the cancellation
    is raised again at the next `await`.
    """

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """As asyncio's."""
        is_cancelled_by_us: bool = self._parent_cancel_requested  # type: ignore[attr-defined]
        try:
            await super().__aexit__(kind, error, trace)
        except BaseExceptionGroup:
            task = asyncio.current_task()
            # Before Python 3.13 a failure during the wait leaves a cancellation that nobody requested.
            if sys.version_info < (3, 13) and task is not None and not is_cancelled_by_us:
                if self._parent_cancel_requested:  # type: ignore[attr-defined]
                    task.uncancel()
            if task is not None and task.cancelling():
                task.uncancel()
                task.cancel()
            raise


class BackgroundTasks(TaskGroup):
    """A task group that cancels its running tasks on exit."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cancel all tasks, and wait for their end."""
        for task in tuple(self._tasks):
            task.cancel()
        await super().__aexit__(None, None, None)


@asynccontextmanager
async def beside_each_other() -> AsyncIterator[TaskGroup]:
    """A task group that raises its first failure, not an exception group."""
    try:
        async with TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def each_at_once(
    items: Sequence[S], call: Callable[[S], Awaitable[T]], *, most: int
) -> list[T]:
    """Return the results of all items in order, with at most `most` concurrent calls; raises the first failure."""
    room = asyncio.Semaphore(most)

    async def one(item: S) -> T:
        async with room:
            return await call(item)

    async with beside_each_other() as group:
        tasks = [group.create_task(one(item)) for item in items]
    return [task.result() for task in tasks]


async def first_to_end(*ways: Coroutine[Any, Any, object]) -> None:
    """Run all until one ends, and cancel the others; raises its exception."""
    tasks = [asyncio.ensure_future(one) for one in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def to_its_end(
    work: Coroutine[Any, Any, T], *, cancel: Callable[[], object] | None = None
) -> T:
    """Await `work` to its end even if cancelled meanwhile; the cancellation is raised then.

    For work in threads, which cannot be stopped: left alone, it would overlap with later work.
    `cancel` notifies the work that its result is no longer needed.
    """
    running = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
            if cancel is not None:
                cancel()
    if cancelled is None:
        return running.result()
    if not running.cancelled():
        running.exception()
    raise cancelled
