"""Readings of the node in the contract's words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nodeagent.pressure import shortage
from nodeagent.probes.host import HostProbe
from nodeagent.probes.simulated import SimulatedLoad
from nsml.clock import Clock
from nsml.v1 import agents_pb2 as pb


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
