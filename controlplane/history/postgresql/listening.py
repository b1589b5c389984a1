"""Notifies our followers of other control planes' commits (LISTEN/NOTIFY)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

import psycopg
import structlog

from controlplane.domain.errors import NsmlError
from controlplane.history.postgresql.connection import open_line, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from controlplane.history.postgresql.address import Address
    from controlplane.history.postgresql.connection import Line
    from controlplane.history.subscriptions import Changes

CHANNEL: Final = "nsml_history"
MOST_PAYLOAD_BYTES: Final = 7_000
"""PostgreSQL's limit of a notification is just under 8,000."""
_TURN_S: Final = 10.0
"""After this time without a notification we check that the server still answers."""
_AGAIN_S: Final = (0.05, 0.2, 0.5, 1.0)
_ANSWER_S: Final = 5.0


def payloads(touched: Collection[str]) -> Iterator[str]:
    """Yield notifications with all touched names."""
    held: list[str] = []
    size = 0
    for name in sorted(touched):
        length = len(name.encode()) + 1
        if held and size + length > MOST_PAYLOAD_BYTES:
            yield "\n".join(held)
            held, size = [], 0
        if length <= MOST_PAYLOAD_BYTES:
            held.append(name)
            size += length
    if held:
        yield "\n".join(held)


class Listening:
    """Its own connection, and a thread that waits on it; reconnects automatically.

    After each connect every follower is notified once: so commits during an interruption are not
    missed.

    Args:
        ours: whether a server pid is that of our writing connection: followers know its commits.
    """

    def __init__(self, address: Address, changes: Changes, ours: Callable[[int], bool]) -> None:
        self._address = address
        self._changes = changes
        self._ours = ours
        self._loop = asyncio.get_running_loop()
        self._log = structlog.get_logger()
        self._line: Line | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history.listen", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """Stop, and wait for the thread; blocking, for at most one attempt to connect."""
        self._ended.set()
        line = self._line
        if line is not None:
            line.cut()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        failures = 0
        while not self._ended.is_set():
            try:
                with translated(self._address.shown), self._connected() as line:
                    failures = 0
                    self._take(line)
            except (NsmlError, psycopg.Error) as error:
                if self._ended.is_set():
                    return
                if failures == 0:
                    why = getattr(error, "why", "")
                    self._log.warning("history.listening.lost", reason=str(error), why=why)
                self._ended.wait(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)])
                failures += 1

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Line]:
        line = open_line(self._address)
        try:
            self._line = line
            line.run(f"LISTEN {CHANNEL}")
            self._tell(self._changes.tell_all)
            yield line
        finally:
            self._line = None
            line.close()

    def _take(self, line: Line) -> None:
        while not self._ended.is_set():
            for notice in line.notices(_TURN_S):
                if not self._ours(notice.pid):
                    self._tell(partial(self._changes.tell, notice.payload.split("\n")))
            # Otherwise a hanging server would never be noticed.
            watch = threading.Timer(_ANSWER_S, line.cut)
            watch.start()
            try:
                line.run("SELECT 1")
            finally:
                watch.cancel()

    def _tell(self, news: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended before us
            self._loop.call_soon_threadsafe(news)
