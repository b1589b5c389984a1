"""Readings of the node, and of the replicas that run on it, in the contract's words."""

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
"""Of which readings are sent; more are not kept of a node."""
_SHARE = 0.0005
"""Most of its time that the agent spends on looking at one replica: what takes longer is looked at less often,
and its last reading is told meanwhile."""
_LONGEST_PAUSE_S = 9.0


class HeldDevices:
    """What sessions hold of each device and since when: what simulated devices pretend to do."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loads: dict[str, SimulatedLoad] = {}

    def update(self, shares: Mapping[str, float]) -> None:
        """Shares from 0 to 1 by device; devices that are left out are idle."""
        now = self._clock.monotonic()
        self._loads = {
            uuid: SimulatedLoad(
                share=share, since=self._loads[uuid].since if uuid in self._loads else now
            )
            for uuid, share in shares.items()
        }

    def loads(self) -> Mapping[str, SimulatedLoad]:
        """What was told last."""
        return self._loads


class NodeMeter:
    """Reads the host and the disk of `data`; blocking."""

    def __init__(self, host: HostProbe, data: Path) -> None:
        self._host = host
        self._data = data

    def sample(self) -> pb.NodeSample:
        """One reading."""
        host = self._host.sample()
        return pb.NodeSample(
            cpu_percent=host.cpu_percent,
            memory_used_bytes=host.memory_used_bytes,
            disk_note=shortage(self._data),
        )


@dataclass(slots=True)
class _Metered:
    """What is known of one replica; `base_s` is the processor time from which it is counted, at `base_at`."""

    enclosure: Enclosure
    base_s: float
    base_at: float
    look_at: float = 0.0
    fell: bool = False
    sample: pb.ReplicaSample | None = None


class ReplicaMeter:
    """Reads what the processes of each replica take; blocking, one caller at a time.

    Args:
        boot_id: of this boot: claims of another are of nobody.
        cores: more than these no replica takes, whatever is read.
        find, use: where the processes of a replica are, and what they take.
        spent: processor time of the calling thread, seconds: what a look costs.
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
        """A reading of each of these that was read before; what is left out is forgotten."""
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
        """Processor time a second since the last reading.

        What has just ended may be with nobody for a moment: what falls is believed the second time.
        """
        if cpu_s < known.base_s and not known.fell:
            known.fell = True
            return 0.0
        cores = (cpu_s - known.base_s) / (now - known.base_at) if now > known.base_at else 0.0
        known.base_s, known.base_at, known.fell = cpu_s, now, False
        return max(cores, 0.0)
