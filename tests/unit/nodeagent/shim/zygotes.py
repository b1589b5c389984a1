"""Zygotes that tests ask by hand, as the agent does."""

from __future__ import annotations

import socket
import subprocess
import time
from typing import TYPE_CHECKING

from nodeagent.runtimes.launcher import shim_command

if TYPE_CHECKING:
    from collections.abc import Callable

WITHIN_S = 60.0


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class AskedZygote:
    """One that is the module `name` of the shim, with these arguments; `requests` is where it is asked."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            command = shim_command(name, *arguments, str(number))
            self.process = subprocess.Popen(command, env={}, pass_fds=(number,))
