"""The agent's side of the process that forks ssh servers with imports done (`nodeagent/shim/ssh_zygote.py`)."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import TYPE_CHECKING

import structlog

from nodeagent.runtimes.launcher import reap_at_end, start_ssh_zygote
from nsml.common.concurrency import to_its_end

if TYPE_CHECKING:
    import subprocess

log = structlog.get_logger()


class SshZygote:
    """Started at the first request, and again if it has ended."""

    def __init__(self) -> None:
        self._requests: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    async def stand_in(self) -> socket.socket:
        """Return a socket to a new stand-in for a visitor; closed at once if there is none. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                if not self._is_asked(theirs):
                    await self._start()
                    self._is_asked(theirs)
        except OSError as error:  # the visitor becomes a server itself
            log.warning("ssh_zygote.failed", reason=str(error))
        return ours

    def _is_asked(self, theirs: socket.socket) -> bool:
        if self._requests is None:
            return False
        try:
            socket.send_fds(self._requests, [b"!"], [theirs.fileno()])
        except (BrokenPipeError, ConnectionResetError):  # it was long idle, or has died
            self.close()
            return False
        return True

    async def _start(self) -> None:
        """Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = json.dumps([one for one in sys.path if one.startswith("/")])
        with theirs:
            try:
                # uninterrupted: the descriptor must not be reused meanwhile
                process = await to_its_end(
                    asyncio.to_thread(start_ssh_zygote, path, theirs.fileno())
                )
            except BaseException:
                ours.close()
                raise
        reap_at_end(process)
        self.close()  # that of a concurrent caller: it still serves its clients
        ours.setblocking(False)  # noqa: FBT003
        self._requests, self._process = ours, process

    def kill(self) -> None:
        """Kill it: it does not answer."""
        if self._process is not None:
            self._process.kill()
        self.close()

    def close(self) -> None:
        """Let it end; its forks continue."""
        if self._requests is not None:
            self._requests.close()
        self._requests = self._process = None
