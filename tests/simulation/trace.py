"""What happened in a simulation, in order: for comparing two runs and for reading after a failure."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeVar

import structlog

Error = TypeVar("Error", bound=Exception)

_LINES_TOLD = 150
_REMEMBERED_LOG = 4_000


class Trace:
    """Events with their virtual instants.

    Events are part of the digest; lines of the programs' logs are only kept for people, since they
    may name what differs from one process to the next. `defects` are log lines that a sound program
    never writes; those of the events in `tolerated` are what a fault rightly leads to.
    """

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.defects: list[str] = []
        self.tolerated: set[str] = set()
        self._log: deque[str] = deque(maxlen=_REMEMBERED_LOG)

    def note(self, kind: str, *facts: Any) -> None:
        """Something happened now."""
        at = asyncio.get_running_loop().time()
        self.events.append((round(at, 6), kind, *facts))
        self._log.append(f"{at:10.4f} * {kind} {' '.join(map(str, facts))}")

    def digest(self) -> str:
        """The same for two runs that took the same steps."""
        whole = hashlib.blake2b(digest_size=16)
        for event in self.events:
            whole.update(repr(event).encode())
        return whole.hexdigest()

    def tail(self, *about: str) -> str:
        """The last lines, of the log too; with `about` those in which any of it occurs."""
        lines = [line for line in self._log if not about or any(one in line for one in about)]
        return "\n".join(lines[-_LINES_TOLD:])

    def explained(self, error: Error) -> Error:
        """The error with what happened last as a note."""
        error.add_note(self.tail())
        return error

    @contextmanager
    def logging(self) -> Iterator[None]:
        """Take what the programs log."""
        before = structlog.get_config()
        structlog.configure(
            processors=[self._take],
            wrapper_class=structlog.make_filtering_bound_logger(0),
            logger_factory=structlog.ReturnLoggerFactory(),
            cache_logger_on_first_use=False,
        )
        try:
            yield
        finally:
            structlog.configure(**before)

    def _take(self, _: Any, method: str, event: MutableMapping[str, Any]) -> str:
        at = asyncio.get_running_loop().time()
        name = event.pop("event")
        error = event.pop("exc_info", None)
        line = f"{at:10.4f} {method} {name} {dict(event)}"
        if error:
            line += f"\n{structlog.processors.ExceptionRenderer()(_, method, {'exc_info': error})}"
        self._log.append(line)
        if method in {"error", "exception", "critical"} and name not in self.tolerated:
            self.defects.append(line)
        raise structlog.DropEvent
