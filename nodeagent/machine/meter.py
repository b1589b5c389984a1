"""Readings of the node, and of its running replicas, as messages of the contract."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nodeagent.folders import ReplicaFolder, ReplicaId
from nodeagent.link.outbox import replica_message
from nodeagent.probes.host import HostProbe
from nodeagent.probes.processes import Enclosure, ReplicaUse, enclosure_of, use_of
from nodeagent.probes.simulated import SimulatedLoad
from nodeagent.storage.eviction import shortage
from nsml.common.clock import Clock
from nsml.v1 import agents_pb2 as pb

MOST_REPLICAS = 128
"""Most replicas with readings; a node's others are dropped."""
_SHARE = 0.0005
"""Most of its time that the agent spends on looks at one replica: slow ones are read less often,
and their last reading is repeated meanwhile."""
_LONGEST_PAUSE_S = 9.0


class HeldDevices:
    """Sessions' shares of each device and their start: the load of simulated devices."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loads: dict[str, SimulatedLoad] = {}

    def update(self, shares: Mapping[str, float]) -> None:
        """Set shares from 0 to 1 by device; missing devices are idle."""
        now = self._clock.monotonic()
        self._loads = {
            uuid: SimulatedLoad(
                share=share, since=self._loads[uuid].since if uuid in self._loads else now
            )
            for uuid, share in shares.items()
        }

    def loads(self) -> Mapping[str, SimulatedLoad]:
        """Return the current loads."""
        return self._loads


class NodeMeter:
    """Reads the host and the disk of `data`; blocking."""

    def __init__(self, host: HostProbe, data: Path) -> None:
        self._host = host
        self._data = data

    def sample(self) -> pb.NodeSample:
        """Return one reading."""
        host = self._host.sample()
        return pb.NodeSample(
            cpu_percent=host.cpu_percent,
            memory_used_bytes=host.memory_used_bytes,
            disk_note=shortage(self._data),
        )


@dataclass(slots=True)
class _Metered:
    """State of one replica; `base_s` is the processor time of the last reading, at `base_at`."""

    enclosure: Enclosure
    base_s: float
    base_at: float
    look_at: float = 0.0
    fell: bool = False
    sample: pb.ReplicaSample | None = None


class ReplicaMeter:
    """Reads the resource usage of each replica's processes; blocking, one caller at a time.

    Args:
        boot_id: of this boot: other claims are void.
        cores: upper limit of a replica's reading.
        find, use: find the processes of a replica, and their usage.
        spent: CPU time of the calling thread, in seconds, for the cost of a look.
    """

    def __init__(
        self,
        clock: Clock,
        boot_id: str,
        *,
        cores: int | None = None,
        find: Callable[[ReplicaFolder, str], Enclosure | None] = enclosure_of,
        use: Callable[[Enclosure], ReplicaUse | None] = use_of,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._spent = spent
        self._clock = clock
        self._boot_id = boot_id
        self._cores = float(cores or os.cpu_count() or 1)
        self._find = find
        self._use = use
        self._known: dict[ReplicaId, _Metered] = {}

    def samples(self, running: Mapping[ReplicaId, ReplicaFolder]) -> list[pb.ReplicaSample]:
        """Return a reading of each replica that was read before; others are forgotten."""
        self._known = {one: known for one, known in self._known.items() if one in running}
        found = []
        for replica_id, folder in islice(running.items(), MOST_REPLICAS):
            sample = self._sample(replica_id, folder)
            if sample is not None:
                found.append(sample)
        return found

    def _sample(self, replica_id: ReplicaId, folder: ReplicaFolder) -> pb.ReplicaSample | None:
        known, now = self._known.get(replica_id), self._clock.monotonic()
        if known is not None and now < known.look_at:
            return known.sample
        spent = self._spent()
        enclosure = known.enclosure if known else self._find(folder, self._boot_id)
        use = self._use(enclosure) if enclosure is not None else None
        if enclosure is None or use is None:
            self._known.pop(replica_id, None)
            return None
        took_s = self._spent() - spent
        if known is None:
            self._known[replica_id] = _Metered(enclosure, use.cpu_s, now)
            return None
        cores = self._cores_since(known, use.cpu_s, now)
        known.look_at = now + min(took_s / _SHARE, _LONGEST_PAUSE_S)
        known.sample = pb.ReplicaSample(
            replica=replica_message(replica_id),
            cpu_cores=min(cores, self._cores),
            memory_used_bytes=use.memory_bytes,
            process_count=use.processes,
        )
        return known.sample

    @staticmethod
    def _cores_since(known: _Metered, cpu_s: float, now: float) -> float:
        """Return CPU time per second since the last reading.

        An ended process may be uncounted for a moment: a decrease is accepted the second time.
        """
        if cpu_s < known.base_s and not known.fell:
            known.fell = True
            return 0.0
        cores = (cpu_s - known.base_s) / (now - known.base_at) if now > known.base_at else 0.0
        known.base_s, known.base_at, known.fell = cpu_s, now, False
        return max(cores, 0.0)
