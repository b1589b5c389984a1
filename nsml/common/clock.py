"""Time and blocking work as parameters, so that the same code runs on a virtual clock.

asyncio is imported only when needed: programs that only read the time do not load it.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from queue import SimpleQueue

T = TypeVar("T")


class Clock(Protocol):
    """Source of time for loops and the agent.

    `time` is the wall clock in Unix seconds: for display and stamps only. `monotonic`, in seconds, never
    goes back: use it for leases, deadlines and charges.
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


SLEW: Final = 0.02
"""Largest relative change of a steady clock's speed until it agrees with the wall clock."""
MOST_APART_S: Final = 3 * 3_600.0
"""A larger step of the wall clock was an altogether wrong clock (a machine that starts in 1970): it is followed at once."""
_IDLE_S: Final = 5.0
"""Idle time until a thread ends."""


class SteadyClock:
    """A clock whose wall clock never jumps: it follows that of another one gradually.

    Use it for decisions by age or by remaining time: an interval written and measured by it has the right
    length, within `SLEW`, however the wall clock is set. A step of an hour is caught up with in two days.

    Args:
        clock: the clock to follow.
        elapsed: seconds, including the machine's sleep; by default `clock.monotonic`.
    """

    def __init__(self, clock: Clock, elapsed: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._elapsed = elapsed or clock.monotonic
        self._at = self._elapsed()
        self._ahead = clock.time() - self._at

    def time(self) -> float:
        """Unix seconds, without jumps; goes back only if it is more than `MOST_APART_S` ahead."""
        at = self._elapsed()
        apart = self._clock.time() - at - self._ahead
        if abs(apart) <= MOST_APART_S:
            most = SLEW * (at - self._at)
            apart = min(max(apart, -most), most)
        self._at, self._ahead = at, self._ahead + apart
        return at + self._ahead

    def reach(self, at: float) -> None:
        """Advance to an instant (Unix seconds) that is known to have passed, if this clock is behind it.

        Ignored if it is more than `MOST_APART_S` ahead: such an instant is unreliable.
        """
        if at - self._clock.time() <= MOST_APART_S:
            self._ahead += max(at - self.time(), 0.0)

    def monotonic(self) -> float:
        """The followed clock's."""
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """The followed clock's."""
        await self._clock.sleep(seconds)


def elapsed() -> float:
    """Seconds since an arbitrary start, including the machine's sleep."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Offload(Protocol):
    """Runs blocking work and returns its result; `in_thread`, `in_own_thread` or `inline`."""

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Return `work()`; its exceptions pass through."""
        ...


async def in_thread(work: Callable[[], T], /) -> T:
    """Run `work` in a thread of the loop's pool: production."""
    import asyncio

    return await asyncio.to_thread(work)


async def in_own_thread(work: Callable[[], T], /) -> T:
    """Run `work` in a thread of its own: work that others can prolong must not occupy the pool's few threads.

    It does not delay the end of the process either, which aborts it.
    """
    import asyncio
    from concurrent.futures import Future
    from functools import partial

    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # once started it is not cancelled, even if the caller is

    def attempt() -> Callable[[], None]:
        try:
            return partial(outcome.set_result, work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            return partial(outcome.set_exception, error)

    _threads.run(attempt)
    return await asyncio.wrap_future(outcome)


class _Threads:
    """A thread for each piece of concurrent work; an idle thread waits a while for more.

    Starting a thread takes several times as long as waking one, and blocks the caller.
    """

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], Callable[[], None]]]] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._idle.clear)

    def run(self, work: Callable[[], Callable[[], None]]) -> None:
        """Start `work`, which raises nothing and returns a function that sets its result."""
        import threading
        from queue import SimpleQueue

        try:
            given = self._idle.pop()
        except IndexError:
            given = SimpleQueue()
            threading.Thread(target=self._serve, args=(given,), daemon=True).start()
        given.put(work)

    def _serve(self, given: SimpleQueue[Callable[[], Callable[[], None]]]) -> None:
        from queue import Empty

        while True:
            try:
                work = given.get(timeout=_IDLE_S)
            except Empty:
                try:
                    self._idle.remove(given)
                except ValueError:
                    continue  # it was claimed at this moment
                return
            tell = work()
            self._idle.append(given)  # first: the result's receiver may have more work
            tell()
            del work, tell  # and their references


_threads = _Threads()


async def inline(work: Callable[[], T], /) -> T:
    """Run `work` at once in the caller: tests and the simulation, where threads would race."""
    return work()
