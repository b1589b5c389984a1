"""asyncio's task group, without the hole that it has before Python 3.13."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType


class TaskGroup(asyncio.TaskGroup):
    """A task group that loses no cancellation of the task that waits for it.

    When one of its tasks fails while it is being cancelled from outside, asyncio's raises the
    failure and forgets the cancellation: a loop that outlives failures would then run for ever and
    whoever waits for its end with it. Here the failure is raised as well, and the cancellation
    comes back at the next `await`.
    """

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """As asyncio's."""
        try:
            await super().__aexit__(kind, error, trace)
        except BaseExceptionGroup:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                task.uncancel()
                task.cancel()
            raise


@asynccontextmanager
async def beside_each_other() -> AsyncIterator[TaskGroup]:
    """A task group that fails with what failed first in it, not with a group of that."""
    try:
        async with TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
