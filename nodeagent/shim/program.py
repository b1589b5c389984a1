"""The protocol of a shim's program, implemented by `forked.py` and `contained.py`.

For type checkers alone: a shim does not import it, since `typing` would be in memory once for each replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodeagent.shim.watch import Excess

Outcome = tuple[int | None, int | None, tuple[str, str] | None]
"""Exit code, signal and, if these do not tell it, `why` it ended with a message."""


class Program(Protocol):
    """The program of a shim; only `start` raises.

    SIGCHLD signals its end, and every change to look at. `pid` is its first
    process on this machine, 0 before there is one. `cpu_s` is user and system time in seconds;
    it and `max_rss_bytes` are of ended processes. `memory_peak_bytes`: the peak at
    one time; 0 if unknown.
    """

    pid: int
    cpu_s: list[float]
    max_rss_bytes: int
    memory_peak_bytes: int

    def start(self) -> None:
        """Start it, or order its start, once; does not block. Raises OSError."""
        ...

    def is_running(self) -> bool:
        """Whether the program itself is starting or was started, and has not ended."""
        ...

    def terminate(self) -> None:
        """Request its end."""
        ...

    def kill(self) -> None:
        """End all of its processes; to be repeated until it is gone."""
        ...

    def is_gone(self) -> bool:
        """Whether nothing of it is left on this machine."""
        ...

    def outcome(self) -> Outcome:
        """Return how it ended, once it is gone."""
        ...

    def release(self) -> None:
        """Clean up after its end was recorded."""
        ...

    def processes(self) -> Sequence[int]:
        """Return its visible processes on this machine."""
        ...

    def exceeded(self) -> Excess | None:
        """Return the limit that a process of it was killed for, until it is gone."""
        ...

    def admit(self) -> None:
        """Admit a visitor for the agent (`visitor.py`). Raises OSError."""
        ...

    def remark(self) -> str:
        """Return a hint for its user about a failure; mostly empty."""
        ...
