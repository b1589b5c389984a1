"""What a shim runs, whatever it is: the protocol of `forked.py` and `contained.py`.

For type checkers alone: a shim does not load it, since `typing` would be in memory once for each replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodeagent.shim.watch import Excess

Outcome = tuple[int | None, int | None, tuple[str, str] | None]
"""Exit code, signal and, where these do not say it, `why` it ended with a message."""


class Program(Protocol):
    """What a shim runs; none of it raises but `start`.

    Its end, and every change that the shim should look at, comes as SIGCHLD. `pid` is its first
    process on this machine, 0 before there is one. `cpu_s` is user and system time in seconds;
    it and `max_rss_bytes` are of what is gone. `memory_peak_bytes`: the most that was in use at
    one time; 0 where it is not known.
    """

    pid: int
    cpu_s: list[float]
    max_rss_bytes: int
    memory_peak_bytes: int

    def start(self) -> None:
        """Start it, or have it started, once; waits for nobody. Raises OSError."""
        ...

    def is_running(self) -> bool:
        """Whether the program itself was started, or is being, and has not ended."""
        ...

    def terminate(self) -> None:
        """Ask it to end."""
        ...

    def kill(self) -> None:
        """End everything of it; to be repeated until it is gone."""
        ...

    def is_gone(self) -> bool:
        """Whether nothing of it is left on this machine."""
        ...

    def outcome(self) -> Outcome:
        """How it ended, once it is gone."""
        ...

    def release(self) -> None:
        """Leave nothing behind; its end is written down."""
        ...

    def processes(self) -> Sequence[int]:
        """Its processes on this machine, as far as they can be seen."""
        ...

    def exceeded(self) -> Excess | None:
        """Which limit something of it was ended for by who keeps its limits, until it is gone."""
        ...

    def admit(self) -> None:
        """Let in somebody whom the agent has asked for (`visitor.py`). Raises OSError."""
        ...

    def remark(self) -> str:
        """What its user should know of a bad end beside how it ended; mostly empty."""
        ...
