"""One computation for all who ask at the same time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class SharedCall(Generic[T]):
    """Shares results among concurrent callers.

    Calls made while it runs share the next run, since the running one may not see what they wait for.

    Args:
        make: computes the result; runs once at a time.
    """

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """Return the result of a run that began after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._run(), name="shared_call")
        # The others go on when this caller leaves.
        return await asyncio.shield(self._next)

    async def _run(self) -> T:
        async with self._turn:
            self._next = None
            return await self._make()
