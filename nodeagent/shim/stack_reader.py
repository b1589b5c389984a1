"""Becomes the program that reads the stacks of a process, with the rights that this takes and no others.

Standard library only; a process of its own, which the agent starts. What it becomes (py-spy) reads memory that a
program of a user fills as it likes. So it is that user, and takes a bounded share of the machine. Where the process
is in a user namespace of its own, it is in that, too: its right to look into processes (CAP_SYS_PTRACE) is of no use
outside of the session. Elsewhere that right is the node's. An agent without root has none to give: it reads what the
kernel lets it.
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
"""Of addresses: the files of a program are mapped to find its interpreter."""
_OUTPUT_BYTES = 8 << 20
_CPU_S = 10


def main() -> NoReturn:
    """Arguments behind the folder: the process, its user and group, the program, and its arguments. Raises OSError."""
    pid, uid, gid, program, *arguments = sys.argv[2:]
    # the user may have no way to where it lies
    descriptor = os.open(program, os.O_RDONLY | os.O_CLOEXEC)
    for kind, most in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_CPU, _CPU_S),
        (resource.RLIMIT_FSIZE, _OUTPUT_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    # ignored by this interpreter; it ends what writes more than it may
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if os.geteuid() == 0:
        _enter_users(f"/proc/{pid}/ns/user")
        namespaces.keep_capability(namespaces.CAP_SYS_PTRACE, int(uid), int(gid))
    namespaces.prctl(namespaces.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execve(descriptor, [program, *arguments], {"NO_COLOR": "1"})  # noqa: S606


def _enter_users(path: str) -> None:
    """Be in a user namespace, if that is another than this process's. Raises OSError."""
    users = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if not os.path.samestat(os.fstat(users), os.stat("/proc/self/ns/user")):
        namespaces.enter_users(users)
    os.close(users)
