"""How this machine enforces limits of replicas: tested once, with the facts that each start needs."""

from __future__ import annotations

import enum
import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodeagent.shim import cgroups
from nodeagent.shim.cgroups import CPU, MEMORY, PIDS, Group

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nodeagent.runtimes.interface import ReplicaSpec
    from nodeagent.shim.cgroups import Base
    from nodeagent.shim.watch import Watched

_FLOOR_SHARE = 0.02
_MOST_FLOOR_BYTES = 2 << 30


class Keeping(enum.StrEnum):
    """How a limit is enforced; see nsml.v1.Keeping."""

    NONE = "none"
    WATCHED = "watched"
    GROUP = "group"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFacts:
    """Results: the base of replicas' control groups (None: none), and why there is none or not for all controllers.

    `disk_floor_bytes` is the space that replicas leave free on the disk of the data folder. `places` are
    possible folders of groups of this data folder's agents, at any level of isolation.
    """

    groups: Base | None = None
    places: tuple[str, ...] = ()
    reason: str = ""
    disk_floor_bytes: int = 0

    def keeping(self, controller: str) -> Keeping:
        """Return how the limit of a controller is enforced. Shims watch those without a group."""
        if self.groups is not None and controller in self.groups["folders"]:
            return Keeping.GROUP
        return Keeping.WATCHED


def probe_limits(
    data: Path, *, disk_floor_bytes: int | None, with_groups: bool, unit: str = ""
) -> LimitFacts:
    """Test what works for the agent of the data folder; blocks for some milliseconds.

    `disk_floor_bytes` None: a share of the disk. Without `with_groups` nothing is tried. `unit` is the
    systemd unit for the groups, if it runs.
    """
    floor = disk_floor_bytes
    if floor is None:
        floor = min(int(shutil.disk_usage(data).total * _FLOOR_SHARE), _MOST_FLOOR_BYTES)
    name = _groups_of(data)
    groups, reason = None, "switched off by the agent's settings"
    if with_groups:
        groups, reason = cgroups.find_base(name, _start_idle, unit=unit)
    places = tuple(cgroups.places_of(name, unit=unit))
    return LimitFacts(groups=groups, places=places, reason=reason, disk_floor_bytes=floor)


def shim_limits(spec: ReplicaSpec, facts: LimitFacts) -> dict[str, Any]:
    """Return the parts `group` and `watch` of `spec.json` for a program that the shim forks."""
    by_group = {MEMORY: spec.memory_bytes, CPU: spec.cpus, PIDS: spec.process_count}
    watched: dict[str, Any] = dict.fromkeys(by_group)
    for controller, limit in list(by_group.items()):
        if facts.keeping(controller) is not Keeping.GROUP:
            watched[controller], by_group[controller] = limit, None
    group = None
    if facts.groups is not None:
        group = {
            "base": facts.groups,
            "name": str(spec.replica_id),
            "memory_bytes": by_group[MEMORY],
            "cpus": by_group[CPU],
            "process_count": by_group[PIDS],
        }
    watch = {
        **disk_watch(spec, facts),
        "memory_bytes": watched[MEMORY],
        "cpus": watched[CPU],
        "process_count": watched[PIDS],
    }
    return {"group": group, "watch": watch}


def disk_watch(spec: ReplicaSpec, facts: LimitFacts) -> Watched:
    """Return the part `watch` of `spec.json` if an engine enforces all but the disk."""
    return {
        "memory_bytes": None,
        "cpus": None,
        "process_count": None,
        "disk_bytes": spec.disk_bytes,
        "disk_floor_bytes": facts.disk_floor_bytes,
    }


def group_of(content: Mapping[str, Any]) -> Group | None:
    """Return the control group named in a `spec.json`, which may be removed; None if it names none."""
    wanted = content.get("group")
    return None if wanted is None else Group(wanted["base"], wanted["name"])


def _groups_of(data: Path) -> str:
    """Return the name of the control groups' folder of the agent with this data folder.

    From the folder itself, not its path: another machine on the same kernel (a container, a chroot) may have
    its data at the same path, and a moved folder keeps its sessions. An agent ends unknown processes in its
    groups.
    """
    facts = data.stat()
    return "nsml-" + hashlib.sha256(f"{facts.st_dev}:{facts.st_ino}".encode()).hexdigest()[:12]


def _start_idle() -> int:
    idle = subprocess.Popen(["sleep", "60"], start_new_session=True)
    idle.returncode = 0  # the caller waits for its end
    return idle.pid
