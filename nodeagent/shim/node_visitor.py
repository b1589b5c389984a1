"""A program on the node itself for a connected administrator: with the agent's own account.

Standard library only, on a bare interpreter with an empty environment: the program gets nothing of the agent but its
account and the rights of that. The visitor is a process beside the agent, with a shared socket whose descriptor is its
last argument (`client_program.py`); before it are the seconds from SIGHUP to SIGKILL, and the node's name.

Nothing outlives the connection. Detached processes are reparented to this one: when the program has
ended, or the agent disconnects, the remaining ones get SIGHUP, and SIGKILL if they continue. Those that became
another user (sudo) cannot be killed by us; they get the hangup of their terminal.
"""

from __future__ import annotations

import os
import pwd
import signal
import socket
import sys
import time

from nodeagent.shim import client_program, namespaces
from nodeagent.shim.forked import descendants, halt_descendants, signal_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PAUSE_S = 0.05
_KILLS_FOR_S = 5.0
"""Processes left after that are not ours to end."""


def main() -> NoReturn:
    """Serve one order."""
    try:
        end = socket.socket(fileno=int(sys.argv[-1]))
        end.set_inheritable(False)
        namespaces.prctl(namespaces.PR_SET_NAME, b"nsml-visitor")
        namespaces.prctl(namespaces.PR_SET_CHILD_SUBREAPER, 1)
        _serve(end, sys.argv[-2], float(sys.argv[-3]))
    finally:
        os._exit(client_program.FAILED_CODE)


def _serve(end: socket.socket, node: str, grace_s: float) -> None:
    try:
        order, streams = client_program.received(end)
        if order is None:
            return
        visitor = os.getpid()

        def become(tell: int) -> NoReturn:
            try:
                namespaces.end_with(visitor)
                os.setsid()
                client_program.take_streams(end, order, streams)
                env = {**_environment(), **order["env"]}
                client_program.settle((env["HOME"], "/"))
                client_program.execute(order["argv"], env, place=node)
            except (OSError, ValueError) as error:
                client_program.tell_failure(tell, error)

        program = client_program.started(end, streams, become)
    except OSError as error:
        client_program.say(end, {"failed": str(error)})
        return
    # orphans of a long-running shell would stay as zombies
    signal.signal(signal.SIGCHLD, lambda *_: _reap(program))
    rest = _Rest(grace_s)
    if client_program.watch(end, program, rest.hang_up):
        while client_program.heard(end):
            pass  # signals after the end, until the agent has sent on its output
        rest.hang_up()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    rest.end()


def _environment() -> dict[str, str]:
    """Return the environment of a login of this account."""
    found = {"PATH": _PATH, "HOME": "/"}
    try:
        account = pwd.getpwuid(os.geteuid())
    except KeyError:  # an id without a name
        return found
    name = account.pw_name
    return {**found, "HOME": account.pw_dir, "USER": name, "LOGNAME": name}


def _reap(but: int = 0) -> bool:
    """Reap ended children, except one; False if there are no children."""
    try:
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == but:
                return True
            os.waitpid(ended.si_pid, 0)
    except ChildProcessError:
        return False
    return True


class _Rest:
    """Processes left when the connection is over: killed `grace_s` after SIGHUP."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._kills_from = 0.0

    def hang_up(self) -> float:
        """Send SIGHUP to all; return how many seconds they have."""
        left = descendants(os.getpid())
        signal_all(left, signal.SIGHUP)
        signal_all(left, signal.SIGCONT)
        self._kills_from = time.monotonic() + self._grace_s
        return self._grace_s

    def end(self) -> None:
        """Wait until none is left, and kill those that do not end in time."""
        while _reap() and (now := time.monotonic()) < self._kills_from + _KILLS_FOR_S:
            if now >= self._kills_from:
                halt_descendants()
                signal_all(descendants(os.getpid()), signal.SIGKILL)
            time.sleep(_PAUSE_S)
