"""The process runtime: programs of the machine, with or without namespaces."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

import structlog

from nodeagent.folders import ReplicaId
from nodeagent.runtimes.account_names import machines_names, write_hosts, write_names
from nodeagent.runtimes.interface import Isolation, NodeRefused, StartRefused
from nodeagent.runtimes.launch import has_own_network, shim_spec
from nodeagent.runtimes.shims import ShimDriver, refuse_unsound
from nodeagent.shim.cgroups import Group, names_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.folders import ReplicaFolder, ReplicaFolders
    from nodeagent.network.session_network import Networks
    from nodeagent.runtimes.interface import ReplicaSpec
    from nodeagent.runtimes.launch import Machine
    from nodeagent.runtimes.launcher import Launcher
    from nsml.common.clock import Clock, Offload


_SHM = "/dev/shm"  # noqa: S108 - the machine's, whose size is asked for
_PLAIN_SHM_BYTES = 1 << 30
"""The default: no session that sees the machine's is refused for that."""

log = structlog.get_logger()


class ProcessDriver(ShimDriver):
    """`RuntimeDriver` over shims that fork.

    `levels` are the tested isolation levels that work here (`isolation.py`). `network` creates those
    of sessions with a root of their own and no shared one (`ReplicaSpec.gang`); without, all use the machine's.
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
        network: Networks | None = None,
    ) -> None:
        super().__init__(
            folders,
            machine=machine,
            launcher=launcher,
            clock=clock,
            run=run,
            run_long=run_long,
        )
        self._levels = levels
        self._network = network

    async def __aenter__(self) -> Self:
        """Open it, and clean up ended replicas of earlier agents."""
        await super().__aenter__()
        await self._run(self._sweep)
        return self

    async def _refuse_unless_possible(self, spec: ReplicaSpec) -> None:
        if spec.isolation not in self._levels:
            raise NodeRefused(f"isolation {spec.isolation.value!r} is not available on this node")
        if spec.without_network and spec.isolation is not Isolation.NAMESPACE:
            raise NodeRefused(
                f"isolation {spec.isolation.value!r} cannot keep a program from the network"
            )
        sees_machines = spec.isolation in {Isolation.NONE, Isolation.USER}
        if sees_machines and spec.shm_bytes > max(_PLAIN_SHM_BYTES, _shm_size()):
            raise StartRefused(
                f"{spec.shm_bytes} bytes of shared memory: without isolation there is the machine's"
                f" /dev/shm, of {_shm_size()} bytes"
            )
        refuse_unsound(spec)

    def _content(self, spec: ReplicaSpec, folder: ReplicaFolder) -> Mapping[str, Any]:
        names = None
        if spec.isolation is Isolation.NAMESPACE and spec.uid is not None and spec.gid is not None:
            names = write_names(folder, machines_names(), spec.uid, spec.gid)
        if spec.without_network:
            files = write_hosts(folder)
            return shim_spec(spec, folder, self._machine, network_files=files, names=names)
        if self._network is None or not has_own_network(spec):
            return shim_spec(spec, folder, self._machine, names=names)
        files = self._network.files()
        content = shim_spec(spec, folder, self._machine, network_files=files, names=names)
        return {**content, "pasta": self._network.content()}

    async def _network_of(self, spec: ReplicaSpec) -> int | None:
        if self._network is None or not has_own_network(spec):
            return None
        ready = self._network.ready()
        return await self._run(self._network.namespace) if ready is None else ready

    def _sweep(self) -> None:
        groups = self._machine.limits.groups
        if groups is None:
            return
        for name in names_in(groups):
            replica_id = ReplicaId.parse(name)
            folder = None if replica_id is None else self._folders.of(replica_id)
            if folder is None or folder.exit.exists() or not folder.path.exists():
                group = Group(groups, name)
                group.kill()
                if not group.remove():
                    log.warning("group.not_removed", group=name)


def _shm_size() -> int:
    try:
        space = os.statvfs(_SHM)
    except OSError:
        return 0
    return space.f_blocks * space.f_frsize
