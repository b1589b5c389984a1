"""Which isolation levels work on this machine: tried for real, once, when the agent starts."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodeagent.folders import ReplicaFolder, ReplicaId, write_atomically
from nodeagent.runtimes.interface import ExitWhy, Isolation, ReplicaSpec
from nodeagent.runtimes.launch import shim_spec, this_machine
from nodeagent.runtimes.launcher import start_directly
from nodeagent.runtimes.records import read_exit

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.runtimes.launch import Machine

_TRIAL_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationFacts:
    """What was found: the strongest level, all that work, and why a stronger one does not."""

    level: Isolation
    levels: frozenset[Isolation]
    machine: Machine
    reason: str


def probe_isolation(scratch: Path) -> IsolationFacts:
    """Run a program at the strongest level that the kernel permits; blocks for under a second.

    `scratch` is a folder of the agent for the trial's replica folder. Without a pid namespace
    (nested containers that hide parts of /proc) `namespace` still holds: see the README.
    """
    reasons: list[str] = []
    for with_pid in (True, False):
        machine = this_machine(with_pid=with_pid)
        reason = _try_namespace(scratch, machine)
        if reason is None:
            levels = frozenset({Isolation.NAMESPACE, Isolation.NONE})
            return IsolationFacts(
                level=Isolation.NAMESPACE,
                levels=levels,
                machine=machine,
                reason="; ".join(reasons),
            )
        reasons.append(f"{'with' if with_pid else 'without'} pid namespace: {reason}")
    return IsolationFacts(
        level=Isolation.NONE,
        levels=frozenset({Isolation.NONE}),
        machine=this_machine(with_pid=False),
        reason="; ".join(reasons),
    )


def _try_namespace(scratch: Path, machine: Machine) -> str | None:
    """None when a program ran to its end in a root of its own, else what went wrong."""
    name = "s" + base64.b32encode(os.urandom(10)).decode().lower()
    replica_id = ReplicaId(session_id=name, attempt=1, rank=0)
    folder = ReplicaFolder(scratch / str(replica_id))
    spec = ReplicaSpec(
        replica_id=replica_id,
        argv=["/bin/sh", "-c", "test -w /app && test -w /nsml && test ! -e " + str(folder.spec)],
        time_limit_s=_TRIAL_LIMIT_S,
        grace_s=0.0,
    )
    folder.create()
    try:
        write_atomically(folder.spec, json.dumps(shim_spec(spec, folder, machine)).encode())
        shim = start_directly(folder)
        os.close(shim.pidfd)
        if shim.child is not None:
            shim.child.wait()
        record = read_exit(folder)
    finally:
        folder.remove()
    if record is None:
        return "the shim left no exit record"
    if record.why is ExitWhy.EXITED and record.exit_code == 0:
        return None
    return record.message or f"the trial ended with {record.exit_code}, signal {record.signal}"
