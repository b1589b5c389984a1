"""Kernel limits of each process of a replica, beside its control group.

Standard library only: it runs in children of the shim.
"""

from __future__ import annotations

import contextlib
import os
import resource

from nodeagent.shim.files import write_into

_OOM_SCORE = 500


def set_of(spec: dict) -> None:  # type: ignore[type-arg]
    """Set a replica's limits for the calling process and its children."""
    # the kernel should kill user code first when memory runs out
    with contextlib.suppress(OSError):
        write_into("/proc/self/oom_score_adj", str(spec.get("oom_score_adj", _OOM_SCORE)))
    # the agent's own limit is too high for select()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spec["open_files"], most))
    # With 1, and no other number, the kernel starts no handler where core_pattern is a pipe: it would
    # read, as root and outside, files of the program (core(5)).
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    if spec["namespace"]:
        _limit_count(spec)


def _limit_count(spec: dict) -> None:  # type: ignore[type-arg]
    """Without a group that counts its processes, let the kernel count them by user and namespace.

    It does since Linux 5.14, and not for root. The first process is counted, too.
    """
    count = spec["watch"]["process_count"] if "watch" in spec else None
    version = tuple(int(part) for part in os.uname().release.split(".")[:2] if part.isdigit())
    is_root = os.geteuid() == 0 and not spec.get("account")
    if count is not None and not is_root and version >= (5, 14):
        _, most = resource.getrlimit(resource.RLIMIT_NPROC)
        allowed = count + 1 if most < 0 else min(count + 1, most)
        resource.setrlimit(resource.RLIMIT_NPROC, (allowed, allowed))
