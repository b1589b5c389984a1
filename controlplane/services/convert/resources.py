"""What several services speak about: visibility, capacity, devices and their readings."""

from __future__ import annotations

from typing import Final

from controlplane.domain.errors import InvalidRequest
from controlplane.domain.values import Device, Isolation, Resources, Visibility
from controlplane.history.values import DeviceSample
from nsml.v1 import resources_pb2

# The contract's names of our values, by value; messages take them as they are.
VISIBILITIES: Final = {one: f"VISIBILITY_{one.name}" for one in Visibility}
_ISOLATIONS: Final = {level: f"ISOLATION_{level.value}" for level in Isolation}
_ISOLATIONS_BACK: Final = {
    resources_pb2.Isolation.Value(_ISOLATIONS[one]): one for one in Isolation
}


def to_visibility(number: int) -> Visibility | None:
    """A visibility; None when it is left open."""
    if number == resources_pb2.VISIBILITY_UNSPECIFIED:
        return None
    try:
        return Visibility(number)
    except ValueError:
        raise InvalidRequest(f"there is no visibility {number}") from None


def resources_message(resources: Resources) -> resources_pb2.Resources:
    """Capacity asked for or held."""
    return resources_pb2.Resources(
        gpu_thousandths=resources.gpu_thousandths,
        cpu_thousandths=resources.cpu_thousandths,
        memory_bytes=resources.memory_bytes,
    )


def to_resources(message: resources_pb2.Resources) -> Resources:
    """Capacity asked for."""
    return Resources(
        gpu_thousandths=message.gpu_thousandths,
        cpu_thousandths=message.cpu_thousandths,
        memory_bytes=message.memory_bytes,
    )


def device_message(device: Device) -> resources_pb2.Device:
    """One GPU."""
    return resources_pb2.Device(
        uuid=device.uuid,
        index=device.index,
        model=device.model,
        memory_bytes=device.memory_bytes,
        simulated=device.simulated,
    )


def isolation_name(level: Isolation) -> str:
    """The contract's name of an isolation level."""
    return _ISOLATIONS[level]


def to_isolation(number: int) -> Isolation:
    """An isolation level."""
    try:
        return _ISOLATIONS_BACK[number]
    except KeyError:
        raise InvalidRequest(f"there is no isolation {number}") from None


def sample_message(sample: DeviceSample) -> resources_pb2.DeviceSample:
    """One reading of a device."""
    return resources_pb2.DeviceSample(
        uuid=sample.uuid,
        utilization_percent=sample.utilization_percent,
        memory_used_bytes=sample.memory_used_bytes,
        power_watts=sample.power_watts,
        temperature_celsius=sample.temperature_celsius,
    )
