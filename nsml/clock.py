"""Time and blocking work as parameters, so that the same code runs on a virtual clock.

asyncio is imported by what uses it: a program that only asks for the time does without.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Clock(Protocol):
    """Where loops and the agent take the time from.

    `time` is the wall clock in Unix seconds: for display and stamps only. `monotonic` never goes
    back and is what leases, deadlines and charges are measured with, in seconds.
    """

    def time(self) -> float:
        """Wall clock, Unix seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never decreases."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of this clock."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def time(self) -> float:
        """Wall clock, Unix seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since boot."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running event loop."""
        import asyncio

        await asyncio.sleep(seconds)


class Offload(Protocol):
    """Runs blocking work and gives its result; `in_thread`, `in_own_thread` or `inline`."""

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Return `work()`; its exceptions pass through."""
        ...


async def in_thread(work: Callable[[], T], /) -> T:
    """Run `work` in a thread of the loop's pool: production."""
    import asyncio

    return await asyncio.to_thread(work)


async def in_own_thread(work: Callable[[], T], /) -> T:
    """Run `work` in a thread of its own: what others can make last holds none of the pool's few.

    Nor does it hold up the end of the process, which ends it wherever it is.
    """
    import asyncio
    import threading
    from concurrent.futures import Future

    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # once begun it is not cancelled, whoever stops waiting

    def settle() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            outcome.set_exception(error)

    threading.Thread(target=settle, daemon=True).start()
    return await asyncio.wrap_future(outcome)


async def inline(work: Callable[[], T], /) -> T:
    """Run `work` at once in the caller: tests and the simulation, where threads would race."""
    return work()
