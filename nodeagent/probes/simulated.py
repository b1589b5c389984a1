"""Simulated GPUs, for machines without one; they are always labelled as simulated.

Events of real ones can be simulated: a file has one line for each device, by its
number, and is read again at each reading. Other lines are ignored.

```
0 failed the fan stands still     it is withheld, with this text
1 gone                            the driver no longer lists it
2 cut 3                           MIG mode is on, with 3 instances
3 idle                            it is idle, also in use
```
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nodeagent.probes.interface import Device, Devices, DeviceSample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from nsml.common.clock import Clock

MODEL = "Simulated GPU"
MEMORY_BYTES = 16 << 30

_IDLE_WATTS, _FULL_WATTS = 25.0, 250.0
_IDLE_CELSIUS, _FULL_CELSIUS = 32.0, 74.0
_WARMING_S = 60.0
_IDLE_MEMORY = 1 << 28
_MOST_INSTANCES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLoad:
    """Sessions' share of one device from 0 to 1, since a monotonic instant."""

    share: float
    since: float


class SimulatedProbe:
    """`DeviceProbe` of `count` simulated devices of the node named `node`.

    Uuids depend on node and index alone. Telemetry is a function of `loads()` (by uuid; missing devices
    are idle) and the clock: the same for the same instant.
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
        events: Path | None = None,
    ) -> None:
        self._clock = clock
        self._loads = loads
        self._events = events
        self._whole = tuple(
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
        events = self._read()
        found = [one for whole in self._whole for one in _after(events.get(whole.index, []), whole)]
        return Devices(
            devices=tuple(replace(one, index=index) for index, one in enumerate(found)),
            reason="" if found else "every simulated device is gone",
        )

    def sample(self) -> Sequence[DeviceSample]:
        """See `DeviceProbe.sample`."""
        now = self._clock.monotonic()
        loads, events = self._loads(), self._read()
        idle = {one.uuid for one in self._whole if events.get(one.index) == ["idle"]}
        return tuple(
            _reading(device, None if device.uuid in idle else loads.get(device.uuid), now)
            for device in self.devices().devices
        )

    def _read(self) -> dict[int, list[str]]:
        """Return the words of each line by the number before them."""
        if self._events is None:
            return {}
        try:
            lines = self._events.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return {}
        words = [line.split() for line in lines]
        return {int(one[0]): one[1:] for one in words if len(one) > 1 and one[0].isdecimal()}


def _after(event: Sequence[str], whole: Device) -> Iterator[Device]:
    """Yield what is left of a device after an event."""
    match event:
        case ["gone"]:
            pass
        case ["failed", *words]:
            yield replace(whole, trouble=" ".join(words) or "it failed")
        case ["cut", count] if count.isdecimal() and 1 <= int(count) <= _MOST_INSTANCES:
            for number in range(int(count)):
                yield replace(
                    whole,
                    uuid=f"{whole.uuid}-{number}",
                    model=f"{whole.model} MIG 1/{count}",
                    memory_bytes=whole.memory_bytes // int(count),
                    parent_uuid=whole.uuid,
                )
        case _:
            yield whole


def _uuid(node: str, index: int) -> str:
    digest = hashlib.blake2b(f"{node}/{index}".encode(), digest_size=16).hexdigest()
    return f"SIM-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"


def _reading(device: Device, load: SimulatedLoad | None, now: float) -> DeviceSample:
    """Simulate a training loop: busy with a slow swing, memory by share, temperature with a delay."""
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
