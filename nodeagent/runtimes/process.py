"""The process runtime: programs of the machine, in namespaces or as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodeagent.runtimes.interface import Isolation, StartRefused
from nodeagent.runtimes.launch import shim_spec
from nodeagent.runtimes.shims import ShimDriver, refuse_unsound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.folders import ReplicaFolder, ReplicaFolders
    from nodeagent.runtimes.interface import ReplicaSpec
    from nodeagent.runtimes.launch import Machine
    from nodeagent.runtimes.launcher import Launcher
    from nsml.clock import Clock, Offload


class ProcessDriver(ShimDriver):
    """`RuntimeDriver` over shims that fork.

    `levels` are the isolation levels that were tried and work here (`isolation.py`).
    """

    def __init__(
        self,
        folders: ReplicaFolders,
        *,
        machine: Machine,
        levels: frozenset[Isolation],
        launcher: Launcher,
        clock: Clock,
        run: Offload,
        run_long: Offload,
    ) -> None:
        super().__init__(
            folders,
            boot_id=machine.boot_id,
            launcher=launcher,
            clock=clock,
            run=run,
            run_long=run_long,
        )
        self._machine = machine
        self._levels = levels

    async def _refuse_unless_possible(self, spec: ReplicaSpec) -> None:
        if spec.isolation not in self._levels:
            raise StartRefused(f"isolation {spec.isolation.value!r} is not available on this node")
        refuse_unsound(spec)

    def _content(self, spec: ReplicaSpec, folder: ReplicaFolder) -> Mapping[str, Any]:
        return shim_spec(spec, folder, self._machine)
