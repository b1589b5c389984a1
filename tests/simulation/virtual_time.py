"""An event loop whose time passes only when nobody has anything to do.

`asyncio.sleep(3600)` takes no real time, and two runs with one seed take the same steps: tasks and
futures are numbered, so that sets of them, which asyncio keeps, have one order in every process.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import selectors
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

T = TypeVar("T")

EPOCH = 1_700_000_000.0
"""Wall clock of the simulation's first instant, Unix seconds."""


class Stalled(Exception):
    """Everybody waits and no timer is set: a deadlock of the code under test."""


class _VirtualSelector(selectors.SelectSelector):
    """Instead of waiting for time to pass, lets it pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            # Nothing comes from outside: asking the system would be most of a simulation's time.
            return []
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise Stalled("every task waits for another and no timer is set")
        self.now += timeout
        return ready


class _NumberedTask(asyncio.Task[Any]):
    """A task whose hash does not depend on where it lies in memory."""

    def __new__(cls, coro: Any, *, loop: VirtualLoop, **_: Any) -> Self:
        # Here and not in __init__: that one already puts the task into a set.
        self = super().__new__(cls)
        self.number = next(loop.numbers)
        return self

    number: int

    def __hash__(self) -> int:
        return self.number


class _NumberedFuture(asyncio.Future[Any]):
    """The same for futures."""

    def __init__(self, *, loop: VirtualLoop) -> None:
        super().__init__(loop=loop)
        self._number = next(loop.numbers)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.SelectorEventLoop):
    """The event loop of one simulation. Threads are refused: they would race."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        self.numbers = itertools.count()
        super().__init__(self._virtual)
        self.set_task_factory(lambda loop, coro, **named: _NumberedTask(coro, loop=loop, **named))

    def time(self) -> float:
        return self._virtual.now

    def create_future(self) -> asyncio.Future[Any]:
        return _NumberedFuture(loop=self)

    def run_in_executor(self, *_: Any) -> Any:  # type: ignore[override]
        raise AssertionError("a thread was started in the simulation: pass `inline` as offload")


class VirtualClock:
    """nsml.clock.Clock on a VirtualLoop; `skew_s` shifts the wall clock alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, skew_s: float = 0.0) -> None:
        self._loop = loop
        self.skew_s = skew_s

    def time(self) -> float:
        return EPOCH + self._loop.time() + self.skew_s

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a fresh virtual loop to its end; what it leaves running is cancelled."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    with _no_collection():
        try:
            return loop.run_until_complete(main)
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            asyncio.set_event_loop(None)
            loop.close()


@contextmanager
def _no_collection() -> Iterator[None]:
    """What is left to the garbage collector ends when memory fills, which nothing virtual decides."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
