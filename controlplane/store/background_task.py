"""A task with the lifetime of a block of code; its failure fails the block."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType


class Companion:
    """Runs `work` beside the body of an `async with`.

    If `work` raises, the body is cancelled and the block raises what `work` raised, unwrapped: a
    TaskGroup would put the body's own errors into groups too, and callers of a store or of an
    election should not see how many tasks it has. When the body ends, `work` is cancelled and
    awaited. `work` may return early; the body then goes on.
    """

    def __init__(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        self._work = work
        self._name = name
        self._task: asyncio.Task[None] | None = None
        self._body: asyncio.Task[Any] | None = None
        self._cancels_before = 0
        self._interrupted = False
        self._closing = False

    async def __aenter__(self) -> Self:
        self._body = asyncio.current_task()
        if self._body is not None:
            self._cancels_before = self._body.cancelling()
        self._task = asyncio.create_task(self._work, name=self._name)
        self._task.add_done_callback(self._ended)
        return self

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._closing or task.cancelled() or task.exception() is None:
            return
        self._interrupted = True
        if self._body is not None:
            self._body.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing = True
        task = self._task
        if task is None:
            return
        from_outside = False
        if self._interrupted and self._body is not None:
            from_outside = self._body.uncancel() > self._cancels_before
        task.cancel()
        await asyncio.wait([task])
        failure = None if task.cancelled() else task.exception()
        if self._interrupted:
            if error is None or (isinstance(error, asyncio.CancelledError) and not from_outside):
                assert failure is not None  # noqa: S101 - `_ended` saw it
                raise failure from None
        elif failure is not None and error is None:
            raise failure
