"""A scripted probe for tests: devices come, go and fall silent as told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.probes.interface import Device, Devices, DeviceSample

if TYPE_CHECKING:
    from collections.abc import Sequence


class FakeProbe:
    """`DeviceProbe` that tells what its attributes hold; tests change them at any time.

    `silent` holds the uuids of devices that have stopped answering.
    """

    def __init__(self, devices: Sequence[Device] = (), reason: str = "") -> None:
        self.found = Devices(devices=tuple(devices), reason=reason)
        self.samples: dict[str, DeviceSample] = {}
        self.silent: set[str] = set()

    def devices(self) -> Devices:
        """See `DeviceProbe.devices`."""
        return self.found

    def sample(self) -> Sequence[DeviceSample]:
        """See `DeviceProbe.sample`."""
        return tuple(
            self.samples.get(device.uuid, _at_rest(device))
            for device in self.found.devices
            if device.uuid not in self.silent
        )


def fake_device(index: int, *, memory_bytes: int = 8 << 30) -> Device:
    """A device that looks real."""
    return Device(
        index=index,
        uuid=f"GPU-fake-{index}",
        model="Fake GPU",
        memory_bytes=memory_bytes,
        minor=index,
        simulated=False,
    )


def _at_rest(device: Device) -> DeviceSample:
    return DeviceSample(
        uuid=device.uuid,
        utilization_percent=0.0,
        memory_used_bytes=0,
        power_watts=None,
        temperature_celsius=None,
    )
