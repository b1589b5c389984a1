"""A child process that serves a listening socket: restarted when it dies, ended with this process."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from nsml.common.clock import Clock

_RESTARTED_AFTER_S: Final = 0.5
_STOPPED_WITHIN_S: Final = 2.0
STEADY_AFTER_S: Final = 60.0
"""A process that ran for this time started successfully, in seconds."""
_FAILS_AFTER: Final = 3
"""Number of consecutive processes that ended sooner, to count as failing."""
_BACKLOG: Final = 512
_INHERITED: Final = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "TEST_RUN_FOLDER")
"""Variables that it inherits; others of ours may have keys of stores."""

_log = structlog.get_logger()


class ServingProcess:
    """Runs `python -m MODULE DESCRIPTOR` on the listener. It receives messages on stdin, and ends when that closes.

    New connections wait in the listener, which we keep open, during a restart.

    Args:
        name: its name in the log.
        address: the listener's address, for the log.
        first: the first input of each new process; a line, or nothing.
    """

    def __init__(
        self,
        module: str,
        listener: socket.socket,
        *,
        name: str,
        address: str,
        clock: Clock,
        first: Callable[[], bytes] = bytes,
    ) -> None:
        self._module = module
        self._listener = listener
        self._name = name
        self._address = address
        self._clock = clock
        self._first = first
        self._process: asyncio.subprocess.Process | None = None
        self._began_at = 0.0
        self._ended_early = 0
        self._end = ""

    @property
    def name(self) -> str:
        """Its name in the log."""
        return self._name

    @property
    def failing(self) -> str:
        """How it last ended, if it repeatedly ended soon after its start; else ""."""
        is_steady = self.pid and self._clock.monotonic() >= self._began_at + STEADY_AFTER_S
        return "" if is_steady or self._ended_early < _FAILS_AFTER else self._end

    @property
    def pid(self) -> int:
        """Process id while it runs, else 0."""
        return self._process.pid if self._process is not None else 0

    def tell(self, line: bytes) -> None:
        """Write a line to its stdin, if it runs."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(line)

    async def run(self) -> None:
        """Run it until cancelled."""
        self._listener.listen(_BACKLOG)
        try:
            while True:
                self._began_at = self._clock.monotonic()
                try:
                    self._end = f"ended with code {await self._live()}"
                except OSError as error:
                    self._end = f"could not be started: {error}"
                is_early = self._clock.monotonic() < self._began_at + STEADY_AFTER_S
                self._ended_early = self._ended_early + 1 if is_early else 0
                _log.error("process.over", name=self._name, end=self._end)
                await self._clock.sleep(_RESTARTED_AFTER_S)
        finally:
            self._listener.close()

    async def _live(self) -> int:
        """Run one process to its end, and return its exit code. Raises OSError."""
        process = self._process = await self._started()
        try:
            self.tell(self._first())
            return await process.wait()
        finally:
            self._process = None
            await _stop(process)

    async def _started(self) -> asyncio.subprocess.Process:
        descriptor = self._listener.fileno()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", self._module, str(descriptor)),
            stdin=asyncio.subprocess.PIPE,
            env={name: os.environ[name] for name in _INHERITED if name in os.environ},
            pass_fds=[descriptor],
            # Linux first shares the CPU among login sessions (autogroup), and applies `nice` only within one: in ours
            # it would use up the control plane's share.
            start_new_session=True,
        )
        _log.info("process.started", name=self._name, pid=process.pid, address=self._address)
        return process


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End it, if it still runs."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(_STOPPED_WITHIN_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
