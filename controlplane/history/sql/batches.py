"""Transactions shared by concurrent writers (group commit)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from controlplane.history.errors import HistoryUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

T = TypeVar("T")
C = TypeVar("C")


class BatchItem(Generic[C, T]):
    """One caller's work within a transaction."""

    def __init__(
        self, work: Callable[[C], T], touches: Collection[str], notifies: Collection[str]
    ) -> None:
        self.touches = touches
        self.notifies = notifies
        self.error: BaseException | None = None
        self.is_settled = False
        self._work = work
        self._value: T

    @property
    def followed(self) -> list[str]:
        """All names whose followers are notified."""
        return [*self.touches, *self.notifies]

    def attempt(self, connection: C) -> None:
        """Do the work; its exceptions pass through."""
        self._value = self._work(connection)

    def fail(self, error: BaseException) -> None:
        """Settle with an error: rolled back, or outcome unknown."""
        self.error = error
        self.is_settled = True

    def result(self) -> T:
        """Return the value or raise the error."""
        if self.error is not None:
            raise self.error
        return self._value


class Batches(Generic[C]):
    """Collects work that arrives during a transaction for the next one.

    Args:
        settle: settles all its items; unsettled ones fail.
        most: items per transaction.
    """

    def __init__(
        self,
        settle: Callable[[Sequence[BatchItem[C, Any]]], Awaitable[None]],
        *,
        most: int = 1 << 62,
    ) -> None:
        self.turn = asyncio.Lock()
        """Held during a transaction."""
        self._settle = settle
        self._most = most
        self._queue: list[BatchItem[C, Any]] = []

    async def write(
        self, work: Callable[[C], T], touches: Collection[str], notifies: Collection[str]
    ) -> T:
        """Run `work` in one of the next transactions; return its value once settled."""
        part = BatchItem(work, touches, notifies)
        self._queue.append(part)
        try:
            async with self.turn:
                if not part.is_settled:
                    await self._next()
        except asyncio.CancelledError:
            if part in self._queue:
                self._queue.remove(part)
            raise
        return part.result()

    async def _next(self) -> None:
        batch, self._queue = self._queue[: self._most], self._queue[self._most :]
        try:
            await self._settle(batch)
        finally:
            for part in batch:
                if not part.is_settled:
                    part.fail(HistoryUnavailable("the history did not finish a transaction"))
