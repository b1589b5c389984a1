"""Tasks that outlive the calls waiting for them; a later call for the same task joins it.

A call has half a minute, reading a large manifest takes minutes. Callers retry, and get the result
once it is there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import structlog

from controlplane.domain.errors import (
    InvalidRequest,
    NsmlError,
    StillWorking,
    TooLarge,
    Unavailable,
)
from controlplane.state.lru import LruDict

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

K = TypeVar("K", bound="Hashable")
T = TypeVar("T")

ANSWER_WITHIN_S: Final = 10.0
"""After this, a call fails with a retry: well before its own deadline, which may have to cover two such waits."""
ASK_AGAIN_AFTER_S: Final = 5.0

UNHEARD: Final = 4_096
"""Max errors kept for the next caller."""
_LASTING: Final = (InvalidRequest, TooLarge)
"""Errors that are kept: a retry would take as long to fail."""

_log = structlog.get_logger()


class SharedTasks(Generic[K, T]):
    """Tasks by key. Tasks cache their own results.

    Args:
        what: description of the work, for error messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._tasks: dict[K, asyncio.Task[T]] = {}
        self._waiting: Counter[K] = Counter()
        self._unheard: LruDict[K, NsmlError] = LruDict(UNHEARD)

    async def result(
        self, key: K, work: Callable[[], Coroutine[Any, Any, T]], *, within_s: float | None
    ) -> T:
        """Wait for the task of this key, started from `work` if there is none; raises its errors.

        InvalidRequest and TooLarge are kept for the next caller if no caller was waiting.

        Raises:
            StillWorking: not done after `within_s`; None: no timeout.
        """
        if (refusal := self._unheard.get(key)) is not None:
            self._unheard.forget(key)
            raise refusal
        if (task := self._tasks.get(key)) is None:
            task = self._tasks[key] = asyncio.create_task(work(), name=f"content: {self._what}")
            task.add_done_callback(partial(self._ended, key))
        self._waiting[key] += 1
        try:
            await asyncio.wait([task], timeout=within_s)
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
        if not task.done():
            raise StillWorking(
                self._what,
                why="that takes some minutes for a large one",
                attempt="the same again: it goes on meanwhile",
                retry_after_s=ASK_AGAIN_AFTER_S,
            )
        if task.cancelled():
            raise Unavailable("this control plane stops")
        return task.result()

    def _ended(self, key: K, task: asyncio.Task[T]) -> None:
        del self._tasks[key]
        if task.cancelled() or (error := task.exception()) is None or key in self._waiting:
            return
        if isinstance(error, _LASTING):
            self._unheard.keep(key, error)
        else:
            _log.warning("content.work_failed", work=self._what, error=repr(error))

    async def run(self) -> None:
        """Wait until cancelled, then cancel all tasks."""
        try:
            await asyncio.Event().wait()
        finally:
            tasks = tuple(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
