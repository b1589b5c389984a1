"""Executes the program that reads the stacks of a process, with the minimum of rights.

Standard library only; a process of its own, started by the agent. That program (py-spy) reads memory controlled by
a user's program. So it runs as that user, with limited resources. If the process
is in a user namespace of its own, it enters that, too: its right to inspect processes (CAP_SYS_PTRACE) is useless
outside of the session. Otherwise that right covers the node. An agent without root has none to pass on: it reads what the
kernel allows.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

from nodeagent.shim import namespaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_MEMORY_BYTES = 4 << 30
"""Of address space: the files of a program are mapped to find its interpreter."""
_OUTPUT_BYTES = 8 << 20
_CPU_S = 10


def main() -> NoReturn:
    """Arguments after the folder: the process, its user and group, the program, and its arguments. Raises OSError."""
    pid, uid, gid, program, *arguments = sys.argv[2:]
    # the user may have no access to its folder
    descriptor = os.open(program, os.O_RDONLY | os.O_CLOEXEC)
    for kind, most in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_CPU, _CPU_S),
        (resource.RLIMIT_FSIZE, _OUTPUT_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    # ignored by this interpreter; its default ends a program over its limit
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if os.geteuid() == 0:
        _enter_users(f"/proc/{pid}/ns/user")
        namespaces.keep_capability(namespaces.CAP_SYS_PTRACE, int(uid), int(gid))
    namespaces.prctl(namespaces.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execve(descriptor, [program, *arguments], {"NO_COLOR": "1"})  # noqa: S606


def _enter_users(path: str) -> None:
    """Enter a user namespace, if it is not this process's. Raises OSError."""
    users = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if not os.path.samestat(os.fstat(users), os.stat("/proc/self/ns/user")):
        namespaces.enter_users(users)
    os.close(users)
