"""An event loop whose time passes only when nobody has anything to do.

`asyncio.sleep(3600)` takes no real time, and two runs with one seed take the same steps.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

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
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Stalled("every task waits for another and no timer is set")
        self.now += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The event loop of one simulation. Threads are refused: they would race."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

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
