"""An event loop whose time passes only when nobody has anything to do.

`asyncio.sleep(3600)` takes no real time, and two runs with one seed take the same steps: tasks and
futures are numbered, so that sets of them, which asyncio keeps, have one order in every process.

What runs belongs to a `Process` of the simulated world, which may be paused: then nothing of it runs
until it goes on, with all that it had in flight and all that has come for it meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import itertools
import selectors
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, Self, TypeVar

T = TypeVar("T")

LONGEST_S = 100_000.0
"""No simulation takes so long, in virtual seconds, that comes to its end."""

MOST_STEPS_AT_ONCE = 100_000
"""So many rounds of the event loop without any time passing are no work but a defect."""

EPOCH = 1_700_000_000.0
"""Wall clock of the simulation's first instant, Unix seconds."""


class Stalled(Exception):
    """No time passes any more: a deadlock of the code under test, or a loop without a pause."""


class Process:
    """What one operating system process is: what begins in its context belongs to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_paused = False
        """Whether nothing of it runs."""
        self._is_dead = False
        self._held: list[events.Handle] = []

    def context(self) -> Context:
        """A context in which everything belongs to it."""
        context = copy_context()
        context.run(_PROCESS.set, self)
        return context

    def pause(self) -> None:
        """SIGSTOP: nothing of it runs; time goes on, and so does what others do to it."""
        self.is_paused = True

    def die(self) -> None:
        """SIGKILL, in the middle of whatever it does: nothing of it runs until it is buried."""
        self.is_paused = self._is_dead = True

    def bury(self) -> None:
        """Let what is left of a dead process see that it is cancelled."""
        self._is_dead = False
        self.resume()

    def resume(self, *, timers_last: bool = False) -> None:
        """SIGCONT: everything that has come due runs, in the order in which it did.

        With `timers_last`, as an event loop does it that looks at its sockets first.
        """
        if self._is_dead:
            return
        self.is_paused = False
        held, self._held = self._held, []
        if timers_last:
            held.sort(key=lambda handle: isinstance(handle, _TimerHandle))
        loop = asyncio.get_running_loop()
        for handle in held:
            loop._ready.append(handle)  # type: ignore[attr-defined]

    def hold(self, handle: events.Handle) -> None:
        """Keep something back that would run now."""
        self._held.append(handle)


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def current_process() -> Process | None:
    """Whose code runs now; None outside of all of them."""
    return _PROCESS.get()


class _Handle(events.Handle):
    """A callback that runs only while its process does."""

    __slots__ = ("_process",)

    def __init__(
        self,
        callback: Callable[..., Any],
        args: Any,
        loop: asyncio.AbstractEventLoop,
        context: Context | None = None,
    ) -> None:
        context = copy_context() if context is None else context
        super().__init__(callback, args, loop, context)
        self._process = context.get(_PROCESS)

    def _run(self) -> None:
        if self._process is not None and self._process.is_paused:
            self._process.hold(self)
        else:
            super()._run()


class _TimerHandle(events.TimerHandle):
    """The same for one that has its time."""

    __slots__ = ("_process",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: Any,
        loop: asyncio.AbstractEventLoop,
        context: Context | None = None,
    ) -> None:
        context = copy_context() if context is None else context
        super().__init__(when, callback, args, loop, context)
        self._process = context.get(_PROCESS)

    def _run(self) -> None:
        if self._process is not None and self._process.is_paused:
            self._process.hold(self)
        else:
            super()._run()


class _VirtualSelector(selectors.SelectSelector):
    """Instead of waiting for time to pass, lets it pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._idle_for = 0
        self.whats_next: Callable[[], str] = str

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            # Nothing comes from outside: asking the system would be most of a simulation's time.
            self._idle_for += 1
            if self._idle_for > MOST_STEPS_AT_ONCE:
                self._idle_for = 0  # what is left is cancelled, and may take its steps
                raise Stalled(f"no time passes: {self.whats_next()}")
            return []
        self._idle_for = 0
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise Stalled("every task waits for another and no timer is set")
        self.now += timeout
        if self.now > LONGEST_S:
            raise Stalled(f"{LONGEST_S:g} s have passed: {self.whats_next()}")
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
        self._virtual.whats_next = lambda: str([*self._ready, *self._scheduled][:3])  # type: ignore[attr-defined]
        self.set_task_factory(lambda loop, coro, **named: _NumberedTask(coro, loop=loop, **named))

    def time(self) -> float:
        return self._virtual.now

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

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
