"""Where tests build environments: as an agent would on this machine."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from nodeagent.environments.build_queue import Turn
from nodeagent.environments.downloads import Downloads
from nodeagent.environments.sandbox import BuildLimits, Sandbox
from nodeagent.environments.virtualenvs import Environments
from nodeagent.machine.accounts import IdRange
from nodeagent.runtimes.interface import Isolation
from nodeagent.runtimes.isolation import IsolationFacts, probe_isolation, strongest

USUAL = IdRange(1_900_000_000, 65_536)


@cache
def isolation_here() -> IsolationFacts:
    """What works on this machine, tried once."""
    with tempfile.TemporaryDirectory(prefix="nsml-trial-") as scratch:
        return probe_isolation(
            Path(scratch) / "trial",
            trial_id=USUAL.trial if os.geteuid() == 0 else None,
            python=Path(sys.base_prefix),
        )


@cache
def _builds() -> Path:
    """One folder for all tests of a process: the installer is copied there once."""
    folder = tempfile.mkdtemp(prefix="nsml-builds-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def sandbox_here(
    *,
    level: Isolation | None = None,
    ids: Sequence[int] | None = None,
    limits: BuildLimits | None = None,
) -> Sandbox:
    """A sandbox of an agent, of the strongest level of this machine or another one."""
    found = isolation_here()
    level = level or strongest(found)
    if ids is None:
        ids = list(USUAL.builds) if level in found.with_accounts else []
    return Sandbox(_builds(), machine=found.machine, level=level, ids=ids, limits=limits)


def whole_turn(sandbox: Sandbox) -> Turn:
    """A turn of a build that has the node to itself."""
    limits = sandbox.limits
    return Turn(owner="kim", memory_bytes=limits.memory_bytes, disk_bytes=limits.disk_bytes)


def environments_in(
    data: Path, *, limits: BuildLimits | None = None, default: Sequence[str] = ()
) -> Environments:
    """The environments of that agent."""
    return Environments(
        data / "environments",
        sandbox_here(limits=limits),
        Downloads(data / "downloads"),
        default=default,
    )
