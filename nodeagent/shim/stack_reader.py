"""Becomes the program that reads the stacks of a process, with one right of root and no other.

Standard library only; a process of its own, which the agent starts. What it becomes (py-spy) reads memory that a
program of a user fills as it likes. So it is that user, who has the right to look into any process
(CAP_SYS_PTRACE) and no other, and takes a bounded share of the machine. An agent without root has no such right to
give: it reads what the kernel lets it.
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
    """Arguments behind the folder: user, group, the program, and its own arguments. Raises OSError."""
    uid, gid, program, *arguments = sys.argv[2:]
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
        namespaces.keep_capability(namespaces.CAP_SYS_PTRACE, int(uid), int(gid))
    os.execve(descriptor, [program, *arguments], {"NO_COLOR": "1"})  # noqa: S606
