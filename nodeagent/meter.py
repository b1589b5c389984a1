"""Readings of the node in the contract's words."""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.probes.host import HostProbe
from nodeagent.probes.interface import DeviceProbe, DeviceSample
from nodeagent.probes.simulated import SimulatedLoad
from nsml.clock import Clock
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import resources_pb2 as resources


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
    """Reads devices and host; blocking, and it may hang as long as the driver does."""

    def __init__(self, probe: DeviceProbe, host: HostProbe, held: HeldDevices) -> None:
        self._probe = probe
        self._host = host
        self._held = held

    def sample(self, shares: Mapping[str, float]) -> pb.NodeSample:
        """One reading; `shares` is what sessions hold of each device."""
        self._held.update(shares)
        host = self._host.sample()
        return pb.NodeSample(
            devices=[_message(reading) for reading in self._probe.sample()],
            cpu_percent=host.cpu_percent,
            memory_used_bytes=host.memory_used_bytes,
        )


def _message(reading: DeviceSample) -> resources.DeviceSample:
    return resources.DeviceSample(
        uuid=reading.uuid,
        utilization_percent=reading.utilization_percent or 0.0,
        memory_used_bytes=reading.memory_used_bytes or 0,
        power_watts=reading.power_watts or 0.0,
        temperature_celsius=reading.temperature_celsius or 0.0,
    )
