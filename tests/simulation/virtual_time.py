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
import time
from asyncio import events
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")

LONGEST_S = 100_000.0
"""Nothing takes so long, in virtual seconds, that comes to its end."""

LONGEST_REAL_S = 240.0
"""Nor in real ones, also on a machine that has much else to do."""

LONGEST_END_S = 1_000.0
"""What is left at the end, and cancelled, has so many virtual seconds."""

MOST_STEPS_AT_ONCE = 100_000
"""So many rounds of the event loop without any time passing are no work but a defect."""

EPOCH = 1_700_000_000.0
"""Wall clock of the simulation's first instant, Unix seconds."""


class Stalled(Exception):
    """It does not end: a deadlock, a cancellation that is lost, or a loop without a pause.

    Its notes say what waits for what.
    """


class Process:
    """What one operating system process is: what begins in its context belongs to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_paused = False
        """Whether nothing of it runs."""
        self.is_buried = False
        """Whether it has died: what is left of it unwinds, and nothing that it does has an effect."""
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
        """Let what is left of a process that died, here at the latest, see that it is cancelled."""
        self._is_dead, self.is_buried = False, True
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
        asyncio.get_running_loop().holding[self] = None  # type: ignore[attr-defined]


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
        self.whats_next: Callable[[], str] = str
        self._idle_for = 0
        self.allow(LONGEST_S)

    def allow(self, longest_s: float) -> None:
        """From now on, so many virtual seconds may pass, and LONGEST_REAL_S."""
        self._until = self.now + longest_s
        self._until_real = time.monotonic() + LONGEST_REAL_S

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            # Nothing comes from outside: asking the system would be most of a simulation's time.
            self._idle_for += 1
            if self._idle_for > MOST_STEPS_AT_ONCE:
                self._idle_for = 0  # what is left is cancelled, and may take its steps
                raise Stalled(f"no time passes: {self.whats_next()}")
            if time.monotonic() > self._until_real:
                raise Stalled(f"{LONGEST_REAL_S:g} real seconds have passed: {self.whats_next()}")
            return []
        self._idle_for = 0
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise Stalled("every task waits for another and no timer is set")
        self.now += timeout
        if self.now > self._until:
            raise Stalled(f"{self._until:g} s have passed: {self.whats_next()}")
        return ready


class _NumberedTask(asyncio.Task[Any]):
    """A task whose hash does not depend on where it lies in memory."""

    def __new__(
        cls, coro: Any, *, loop: VirtualLoop, context: Context | None = None, **_: Any
    ) -> Self:
        # Here and not in __init__: that one already puts the task into a set.
        self = super().__new__(cls)
        self.number = next(loop.numbers)
        self.process = current_process() if context is None else context.get(_PROCESS)
        return self

    number: int
    process: Process | None

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
        self.holding: dict[Process, None] = {}
        """Processes that were paused with something to do, at any time."""
        self.allow = self._virtual.allow
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
    """nsml.common.clock.Clock on a VirtualLoop; `skew_s` shifts the wall clock alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, skew_s: float = 0.0) -> None:
        self._loop = loop
        self.skew_s = skew_s

    def time(self) -> float:
        return EPOCH + self._loop.time() + self.skew_s

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run(main: Coroutine[Any, Any, T], *, longest_s: float = LONGEST_S) -> T:
    """Run `main` on a fresh virtual loop to its end; what it leaves running is cancelled.

    Raises:
        Stalled: it has no end within `longest_s`, or what it left has none within LONGEST_END_S.
    """
    loop = VirtualLoop()
    loop.allow(longest_s)
    asyncio.set_event_loop(loop)
    with _no_collection():
        task = loop.create_task(main, name="main")
        try:
            return _run(loop, task)
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _run(loop: VirtualLoop, main: asyncio.Task[T]) -> T:
    try:
        result = loop.run_until_complete(main)
    except BaseException as error:
        if not main.done():
            error.add_note(_waits(loop))
        for note in _end(loop):
            error.add_note(note)
        if main.done() and not main.cancelled() and main.exception() not in (None, error):
            failed = main.exception()
            error.add_note("\n".join((f"it had failed: {failed!r}", *_notes(failed))))
        raise
    left = _end(loop)
    if left:
        raise Stalled("\n".join(left))
    return result


def _end(loop: VirtualLoop) -> list[str]:
    """Cancel what is left; in words, what does not end for all that."""
    loop.allow(LONGEST_END_S)
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    try:
        loop.run_until_complete(_bury(loop.holding))
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    except Stalled as stalled:
        return [f"what was left does not end: {stalled}", _waits(loop)]
    return []


async def _bury(processes: Iterable[Process]) -> None:
    for process in processes:
        process.bury()


def _notes(error: BaseException | None) -> list[str]:
    return getattr(error, "__notes__", [])


_MOST_TOLD = 12


def _waits(loop: VirtualLoop) -> str:
    """The main task and those that are cancelled and have not ended: where each of them is."""
    tasks = sorted(asyncio.all_tasks(loop), key=hash)
    told = [one for one in tasks if one.get_name() == "main"]
    told += [one for one in tasks if one.cancelling() and one not in told]
    lines = [_where(one) for one in told[:_MOST_TOLD]]
    if len(tasks) > len(lines):
        lines.append(f"and {len(tasks) - len(lines)} more tasks")
    return "\n".join(lines)


def _where(task: asyncio.Task[Any]) -> str:
    words = ["cancelled"] * bool(task.cancelling())
    process = getattr(task, "process", None)
    if process is not None:
        words.append(f"of {process.name}" + ", which is paused" * process.is_paused)
    said = f" ({', '.join(words)})" if words else ""
    return f"{task.get_name()}{said}: {' > '.join(_chain(task.get_coro()))}"


def _chain(awaited: Any) -> Iterator[str]:
    """Where a coroutine is, and where what it awaits is, down to what is no coroutine."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
        if frame is not None:
            code = frame.f_code
            yield f"{code.co_qualname} ({Path(code.co_filename).name}:{frame.f_lineno})"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)


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
