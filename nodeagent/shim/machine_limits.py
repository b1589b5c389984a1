"""Resources of the kernel shared by all programs of the machine, without limits or counts in control groups.

Standard library only: it runs in the shim. A replica that holds much of a scarce one is ended. Asynchronous
requests are those of `io_setup`: `fs.aio-max-nr` is for all programs together. File locks take memory that is
charged to nobody.
"""

from __future__ import annotations

import contextlib
import os
import time

from nodeagent.shim.files import content_of
from nodeagent.shim.unlinked import FILES, distinct, threads_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    T = TypeVar("T")

PAUSE_S = 5.0
"""Interval of looks."""
_CROWDED_SHARE = 0.75
"""Share of all asynchronous requests in use before a replica is ended for it."""
_REQUEST_BYTES = 64
"""Memory that the kernel maps into a process for each request."""
_RING = b"/[aio]"
_MOST_LOCKS = 50_000
"""Locks that a replica may hold while the kernel uses much memory: some 10 MB."""
_MUCH_MEMORY = 256 << 20
"""How much more memory the kernel may use for itself before locks are counted."""
_LOCK = b"\nlock:"
_PIECE = 1 << 20
_COUNT_S = 0.1
"""Limit of one count of locks, which starts anywhere."""


class Scarce:
    """Checks whether one replica holds much of a scarce resource; call `look` at `next_at`."""

    def __init__(self, proc: str = "/proc") -> None:
        self.next_at = 0.0
        self._proc = proc
        self._kernel_bytes: int | None = None

    def look(self, processes: Callable[[], Sequence[int]]) -> str:
        """Return why the replica of these processes has to end, or ""."""
        self.next_at = time.monotonic() + PAUSE_S
        return self._look_at_requests(processes) or self._look_at_locks(processes)

    def _look_at_requests(self, processes: Callable[[], Sequence[int]]) -> str:
        most, taken = self._number("sys/fs/aio-max-nr"), self._number("sys/fs/aio-nr")
        if taken <= most * _CROWDED_SHARE:
            return ""
        held = sum(map(requests_of, processes()))
        if held <= max(most - taken, 0):
            return ""
        return (
            "ended to protect other sessions: it holds about"
            f" {held:,} of the machine's {most:,} asynchronous requests (io_setup, fs.aio-max-nr)"
        )

    def _look_at_locks(self, processes: Callable[[], Sequence[int]]) -> str:
        used = self._kernel_memory()
        if self._kernel_bytes is None or used < self._kernel_bytes:
            self._kernel_bytes = used
        if used - self._kernel_bytes < _MUCH_MEMORY:
            return ""
        pids = processes()
        until = time.monotonic() + _COUNT_S
        held = 0
        for pid in _from_anywhere(pids):
            held += locks_of(pid, until)
            if held > _MOST_LOCKS:
                return (
                    "ended to protect other sessions: the machine's memory is taken by locks of files, of which"
                    f" it holds over {_MOST_LOCKS:,}"
                )
            if time.monotonic() >= until:
                break
        return ""

    def _number(self, name: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int(content_of(f"{self._proc}/{name}"))
        return 0

    def _kernel_memory(self) -> int:
        """Return the kernel's unreclaimable slab memory in bytes."""
        with contextlib.suppress(OSError, ValueError):
            for line in content_of(f"{self._proc}/meminfo").splitlines():
                if line.startswith(b"SUnreclaim:"):
                    return int(line.split()[1]) * 1024
        return 0


def requests_of(pid: int) -> int:
    """Estimate the most asynchronous requests of a process, from its memory for them."""
    size = 0
    for thread in threads_of(pid):
        content = b""
        with contextlib.suppress(OSError):
            content = content_of(f"/proc/{thread}/maps")
        for line in content.splitlines() if _RING in content else ():
            if _RING in line:
                first, _, last = line.split(maxsplit=1)[0].partition(b"-")
                size += int(last, 16) - int(first, 16)
        if content:
            break
    return size // _REQUEST_BYTES


def locks_of(pid: int, until: float) -> int:
    """Return how many locks a process holds on its open files, as far as counted until then."""
    count = 0
    for thread in distinct(threads_of(pid), FILES):
        with contextlib.suppress(OSError):
            for name in _from_anywhere(os.listdir(f"/proc/{thread}/fdinfo")):
                count += _locks_in(f"/proc/{thread}/fdinfo/{name}", until)
                if count > _MOST_LOCKS or time.monotonic() >= until:
                    return count
    return count


def _locks_in(path: str, until: float) -> int:
    count = 0
    with contextlib.suppress(OSError), open(path, "rb") as file:
        while piece := file.read(_PIECE):
            count += piece.count(_LOCK)
            if count > _MOST_LOCKS or time.monotonic() >= until:
                break
    return count


def _from_anywhere(things: Sequence[T]) -> Sequence[T]:
    """Return all, from an unpredictable one on: those not reached this time are reached another time."""
    first = time.monotonic_ns() // 1000 % max(len(things), 1)
    return [*things[first:], *things[:first]]
