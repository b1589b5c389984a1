"""GPUs that are not there: for machines without one, and always called simulated."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodeagent.probes.interface import Device, Devices, DeviceSample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsml.clock import Clock

MODEL = "Simulated GPU"
MEMORY_BYTES = 16 << 30

_IDLE_WATTS, _FULL_WATTS = 25.0, 250.0
_IDLE_CELSIUS, _FULL_CELSIUS = 32.0, 74.0
_WARMING_S = 60.0
_IDLE_MEMORY = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLoad:
    """What sessions have of one device: a share from 0 to 1, since a monotonic instant."""

    share: float
    since: float


class SimulatedProbe:
    """`DeviceProbe` of `count` simulated devices of the node named `node`.

    Uuids depend on node and index alone. Telemetry is a function of `loads()` (by uuid; devices
    that it leaves out are idle) and the clock: the same again for the same instant.
    """

    def __init__(
        self,
        node: str,
        count: int,
        clock: Clock,
        loads: Callable[[], Mapping[str, SimulatedLoad]] = dict,
        *,
        model: str = MODEL,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._clock = clock
        self._loads = loads
        self._devices = tuple(
            Device(
                index=index,
                uuid=_uuid(node, index),
                model=model,
                memory_bytes=memory_bytes,
                minor=None,
                simulated=True,
            )
            for index in range(count)
        )

    def devices(self) -> Devices:
        """See `DeviceProbe.devices`."""
        return Devices(devices=self._devices)

    def sample(self) -> Sequence[DeviceSample]:
        """See `DeviceProbe.sample`."""
        now = self._clock.monotonic()
        loads = self._loads()
        return tuple(_reading(device, loads.get(device.uuid), now) for device in self._devices)


def _uuid(node: str, index: int) -> str:
    digest = hashlib.blake2b(f"{node}/{index}".encode(), digest_size=16).hexdigest()
    return f"SIM-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"


def _reading(device: Device, load: SimulatedLoad | None, now: float) -> DeviceSample:
    """A training loop's look: busy with a slow swing, memory by share, heat that lags behind."""
    if load is None or load.share <= 0:
        return DeviceSample(
            uuid=device.uuid,
            utilization_percent=0.0,
            memory_used_bytes=min(_IDLE_MEMORY, device.memory_bytes),
            power_watts=_IDLE_WATTS,
            temperature_celsius=_IDLE_CELSIUS,
        )
    share = min(load.share, 1.0)
    swing = 0.06 * math.sin(now / 7.0 + device.index) + 0.03 * math.sin(now / 1.3 + device.index)
    busy = share * (0.88 + swing)
    warmth = 1.0 - math.exp(-max(now - load.since, 0.0) / _WARMING_S)
    free = device.memory_bytes - _IDLE_MEMORY
    return DeviceSample(
        uuid=device.uuid,
        utilization_percent=round(100.0 * busy, 1),
        memory_used_bytes=min(_IDLE_MEMORY + int(0.7 * share * free), device.memory_bytes),
        power_watts=round(_IDLE_WATTS + busy * (_FULL_WATTS - _IDLE_WATTS), 1),
        temperature_celsius=round(
            _IDLE_CELSIUS + busy * warmth * (_FULL_CELSIUS - _IDLE_CELSIUS), 1
        ),
    )
