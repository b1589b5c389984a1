"""Time and blocking work as parameters, so that the same code runs on a virtual clock.

asyncio is imported by what uses it: a program that only asks for the time does without.
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


SLEW: Final = 0.02
"""By how much a steady clock goes faster or slower at most, until it is where the wall clock is."""
MOST_APART_S: Final = 3 * 3_600.0
"""A wall clock that was set further than this was wrong altogether (a machine that starts in 1970): it is followed at once."""
_IDLE_S: Final = 5.0
"""How long a thread waits for more work before it ends."""


class SteadyClock:
    """Another clock, whose wall clock is never set: where that jumps, this one follows little by little.

    What is decided by how long ago something was, or how far away, is decided by this one: whatever is
    written by it and measured by it lasts as long as it should, within `SLEW`, however the wall clock is set. An
    hour is caught up with in two days.

    Args:
        clock: the one to follow.
        elapsed: seconds that go by also while the machine sleeps; by default `clock.monotonic`.
    """

    def __init__(self, clock: Clock, elapsed: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._elapsed = elapsed or clock.monotonic
        self._at = self._elapsed()
        self._ahead = clock.time() - self._at

    def time(self) -> float:
        """Unix seconds, without a jump; never goes back, but where it is more than `MOST_APART_S` ahead."""
        at = self._elapsed()
        apart = self._clock.time() - at - self._ahead
        if abs(apart) <= MOST_APART_S:
            most = SLEW * (at - self._at)
            apart = min(max(apart, -most), most)
        self._at, self._ahead = at, self._ahead + apart
        return at + self._ahead

    def reach(self, at: float) -> None:
        """Go on from an instant (Unix seconds) that is known to have been, where we are behind it.

        Without effect when it is more than `MOST_APART_S` away: nothing is known by an instant like that.
        """
        if 0 < at - self._clock.time() <= MOST_APART_S:
            self._ahead += max(at - self.time(), 0.0)

    def monotonic(self) -> float:
        """As of the other clock."""
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """As of the other clock."""
        await self._clock.sleep(seconds)


def elapsed() -> float:
    """Seconds since an arbitrary start, those included for which the machine slept."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


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
    from concurrent.futures import Future
    from functools import partial

    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # once begun it is not cancelled, whoever stops waiting

    def attempt() -> Callable[[], None]:
        try:
            return partial(outcome.set_result, work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            return partial(outcome.set_exception, error)

    _threads.run(attempt)
    return await asyncio.wrap_future(outcome)


class _Threads:
    """As many threads as there is work at one time; one that is done waits a while for more.

    To start one takes several times as long as to wake one, and holds up who does it.
    """

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], Callable[[], None]]]] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._idle.clear)

    def run(self, work: Callable[[], Callable[[], None]]) -> None:
        """Begin `work`, which raises nothing and gives what tells its result."""
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
                    continue  # it was taken at this moment
                return
            tell = work()
            self._idle.append(given)  # first: whoever is told may have more to do
            tell()
            del work, tell  # and what they hold


_threads = _Threads()


async def inline(work: Callable[[], T], /) -> T:
    """Run `work` at once in the caller: tests and the simulation, where threads would race."""
    return work()
