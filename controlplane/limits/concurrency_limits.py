"""Turns: expensive work is done for a few callers at a time, however much one of them requests."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import LimitReached

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MOST_WAITING: Final = 64
"""Waiting calls per caller."""


class Turns:
    """A fair semaphore: each waiting caller gets it before one gets it again.

    Args:
        what: the work to wait for, as named in errors.
        slots: number of concurrent holders.
        each: of these, per caller, even while nobody else waits.
        most_waiting: waiting calls per caller.
    """

    def __init__(
        self, what: str, *, slots: int = 1, each: int = 1, most_waiting: int = MOST_WAITING
    ) -> None:
        self._what = what
        self._free = slots
        self._each = each
        self._most_waiting = most_waiting
        self._held: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[None]:
        """Hold it for a caller. Raises LimitReached if too many calls of the caller wait."""
        await self.take(who)
        try:
            yield
        finally:
            self.give_back(who)

    async def take(self, who: str) -> None:
        """Hold it until `give_back`; like `turn`, but almost free of cost."""
        if not self.take_at_once(who):
            await self._wait(who)

    def take_at_once(self, who: str) -> bool:
        """Hold it if that needs no wait; return whether it is held."""
        if who not in self._queues and self._free and self._held[who] < self._each:
            self._take(who)
            return True
        return False

    async def _wait(self, who: str) -> None:
        queue = self._queues.setdefault(who, deque())
        if len(queue) >= self._most_waiting:
            raise LimitReached(
                f"{len(queue)} of your calls wait {self._what} already",
                attempt="the same once some of them have ended",
            )
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.give_back(who)  # granted at the same moment
            raise

    def _take(self, who: str) -> None:
        self._free -= 1
        self._held[who] += 1

    def give_back(self, who: str) -> None:
        """Release a turn of `take`."""
        self._free += 1
        self._held[who] -= 1
        if not self._held[who]:
            del self._held[who]
        for waiting in tuple(self._queues):
            if not self._free:
                return
            queue = self._queues[waiting]
            while queue and self._held[waiting] < self._each and self._free:
                turn = queue.popleft()
                if turn.done():
                    continue  # its call has ended
                self._take(waiting)
                turn.set_result(None)
                break
            del self._queues[waiting]
            if queue:
                self._queues[waiting] = queue  # behind the others
