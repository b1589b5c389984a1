"""Tests which isolation levels work on this machine: by trials, once, at the agent's start."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.folders import ReplicaFolder, ReplicaId, write_atomically
from nodeagent.machine.accounts import barrier
from nodeagent.runtimes.interface import (
    ExitRecord,
    ExitWhy,
    Isolation,
    PythonEnvironment,
    ReplicaSpec,
)
from nodeagent.runtimes.launch import shim_spec, this_machine
from nodeagent.runtimes.launcher import start_directly
from nodeagent.runtimes.records import read_exit

if TYPE_CHECKING:
    from collections.abc import Collection

    from nodeagent.runtimes.launch import Machine

_TRIAL_LIMIT_S = 20.0
_STRONGEST_FIRST = (Isolation.NAMESPACE, Isolation.USER, Isolation.NONE)
_IN_A_ROOT = "test -w /app && test -w /nsml && test ! -e {spec}"
_AS_A_USER = "test -w . && test ! -r {spec} && ! ls {above} 2>/dev/null && test $(id -u) = {uid}"
_LEAVES = ' && umask 077 && : > "$NSML_RUN_DIR/spool/left"'
_RUNS_PYTHON = " && exec {python} -I -S -c pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationFacts:
    """Results: the strongest level, all working ones, and why a stronger one fails.

    `with_accounts` are the levels at which programs can run as users of their own. `user_reason` is
    why `user` failed, if it was tried: relevant only without a stronger level.
    `unmet` is a setting that this machine does not support. `joined_reason` is why programs at level `namespace`
    cannot be kept from the machine's network, or from seeing the processes of other users' sessions; "" if they can.
    """

    level: Isolation
    levels: frozenset[Isolation]
    with_accounts: frozenset[Isolation]
    machine: Machine
    reason: str
    user_reason: str = ""
    unmet: str = ""
    joined_reason: str = ""


def probe_isolation(
    scratch: Path, *, trial_id: int | None = None, python: Path | None = None
) -> IsolationFacts:
    """Run programs at each level to see what the kernel permits; blocks for about a second at most.

    `scratch` is a folder of the agent for the trials' replica folders. `trial_id` is the uid and gid
    to try with, if the agent is root: without one every program runs as the agent's own user.
    `python` is the prefix of the sessions' interpreter, which others must be able to run.
    Without a pid namespace (nested containers that hide parts of /proc) `namespace` still holds: see
    the README.
    """
    found = {Isolation.NONE}
    with_accounts: set[Isolation] = set()
    reasons: list[str] = []
    joined_reason = ""
    user_reason = ""
    machine = this_machine(with_pid=False)
    for account in dict.fromkeys((trial_id, None)):
        for with_pid in (True, False):
            tried = this_machine(with_pid=with_pid)
            reason = _tried(scratch, tried, Isolation.NAMESPACE, account, python)
            if reason is None:
                machine = tried
                found.add(Isolation.NAMESPACE)
                break
            named = f"{'with' if with_pid else 'without'} pid namespace"
            whose = "" if account is None else f" as uid {account}"
            reasons.append(f"{named}{whose}: {reason}")
        if Isolation.NAMESPACE in found:
            if account is not None:
                with_accounts.add(Isolation.NAMESPACE)
            cut_off = _tried(
                scratch, machine, Isolation.NAMESPACE, account, python, without_network=True
            )
            joined_reason = cut_off or ""
            if account is not None and not machine.with_pid:
                # A program can write into its command line, which all others of the machine read.
                joined_reason = f"they see other sessions' processes: {reasons[-1]}"
            break
    if trial_id is not None:
        reason = _tried_as_user(scratch, machine, trial_id, python)
        if reason is None:
            found.add(Isolation.USER)
            with_accounts.add(Isolation.USER)
        else:
            user_reason = reason
    return IsolationFacts(
        level=_strongest(with_accounts or found),
        levels=frozenset(found),
        with_accounts=frozenset(with_accounts),
        machine=machine,
        reason="; ".join(reasons),
        user_reason=user_reason,
        joined_reason=joined_reason,
    )


def strongest(found: IsolationFacts) -> Isolation:
    """Return the strongest level that works without an engine, whatever was chosen."""
    return _strongest(found.with_accounts or found.levels)


def _strongest(levels: Collection[Isolation]) -> Isolation:
    return next(level for level in _STRONGEST_FIRST if level in levels)


def with_containers(found: IsolationFacts, *, trial_id: int | None) -> IsolationFacts:
    """Return the results plus an engine's containers, the strongest level of all.

    `trial_id` as for `probe_containers`: if set, users have ids of their own in containers,
    independent of the other levels.
    """
    levels = frozenset({Isolation.CONTAINER})
    return replace(
        found,
        level=Isolation.CONTAINER,
        levels=found.levels | levels,
        with_accounts=found.with_accounts | levels if trial_id is not None else frozenset(),
        reason="",
    )


def _tried_as_user(
    scratch: Path, machine: Machine, account: int, python: Path | None
) -> str | None:
    """As `_tried`, at level `user`: programs see the machine's files, so folders above must be passable."""
    data = scratch.parent  # the agent's own to open
    for place, way in ((data, data.parent), (python, python)):
        wall = way and barrier(way)
        if wall:
            return f"{wall} on the way to {place} lets no other user pass (chmod o+x {wall})"
    with _passable(data, scratch):
        return _tried(scratch, machine, Isolation.USER, account, python)


@contextmanager
def _passable(*folders: Path) -> Iterator[None]:
    """Make the folders passable for others for a while; they have no files that others may read."""
    modes = []
    try:
        for folder in folders:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            modes.append((folder, folder.stat().st_mode & 0o777))
            folder.chmod(0o711)
        yield
    finally:
        for folder, mode in modes:
            folder.chmod(mode)


def _tried(
    scratch: Path,
    machine: Machine,
    level: Isolation,
    account: int | None,
    python: Path | None,
    *,
    without_network: bool = False,
) -> str | None:
    """Return None if a program ran to its end at that level, else the failure.

    Its files must also be readable and removable for the agent, which takes rights of its own for
    another user's.
    """
    replica_id = ReplicaId.of_no_session()
    folder = ReplicaFolder(scratch / str(replica_id))
    script = (_IN_A_ROOT if level is Isolation.NAMESPACE else _AS_A_USER) + _LEAVES
    values = {"spec": folder.spec, "above": scratch, "uid": account}
    if python is not None:
        script += _RUNS_PYTHON
        values["python"] = python / "bin" / "python3"
    spec = ReplicaSpec(
        replica_id=replica_id,
        argv=["/bin/sh", "-c", script.format(**values)],
        time_limit_s=_TRIAL_LIMIT_S,
        grace_s=0.0,
        isolation=level,
        uid=account,
        gid=account,
        without_network=without_network,
        python=None if python is None else PythonEnvironment(folder=python, base_prefix=python),
    )
    folder.create()
    try:
        try:
            record = _run(spec, folder, machine)
            if record is not None and record.exit_code == 0:
                (folder.spool / "left").read_bytes()
        finally:
            folder.remove()
    except OSError as error:
        return str(error)
    if record is None:
        return "the shim left no exit record"
    if record.why is ExitWhy.EXITED and record.exit_code == 0:
        return None
    return record.message or f"the trial ended with {record.exit_code}, signal {record.signal}"


def _run(spec: ReplicaSpec, folder: ReplicaFolder, machine: Machine) -> ExitRecord | None:
    if spec.uid is not None and spec.gid is not None:
        folder.give(spec.uid, spec.gid)
    write_atomically(folder.spec, json.dumps(shim_spec(spec, folder, machine)).encode())
    shim = start_directly(folder)
    os.close(shim.pidfd)
    if shim.child is not None:
        shim.child.wait()
    return read_exit(folder)
