"""A scripted probe for tests: devices come, go and fall silent as told."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent.probes.interface import Device, Devices, DeviceSample

if TYPE_CHECKING:
    from collections.abc import Sequence


class FakeProbe:
    """`DeviceProbe` that tells what its attributes hold; tests change them at any time.

    `silent` holds the uuids of devices that have stopped answering. While `answers` is cleared the
    driver hangs; `readings` counts the calls that it answered.
    """

    def __init__(self, devices: Sequence[Device] = (), reason: str = "") -> None:
        self.found = Devices(devices=tuple(devices), reason=reason)
        self.samples: dict[str, DeviceSample] = {}
        self.silent: set[str] = set()
        self.answers = threading.Event()
        self.answers.set()
        self.readings = 0

    def put(self, *devices: Device, reason: str = "") -> None:
        """From now on these are the devices."""
        self.found = Devices(devices=devices, reason=reason)

    def devices(self) -> Devices:
        """See `DeviceProbe.devices`."""
        self.answers.wait()
        self.readings += 1
        return Devices(
            devices=tuple(
                replace(one, trouble="no answer") if one.uuid in self.silent else one
                for one in self.found.devices
            ),
            reason=self.found.reason,
        )

    def sample(self) -> Sequence[DeviceSample]:
        """See `DeviceProbe.sample`."""
        self.answers.wait()
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
