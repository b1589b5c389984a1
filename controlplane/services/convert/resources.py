"""What several services speak about: visibility, capacity, devices and their readings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import InvalidRequest
from controlplane.domain.values import (
    Device,
    Isolation,
    Keeping,
    KeptLimits,
    Network,
    Resources,
    Visibility,
)
from controlplane.history.values import DeviceSample
from nsml.v1 import resources_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

# The contract's names of our values, by value; messages take them as they are.
VISIBILITIES: Final = {one: f"VISIBILITY_{one.name}" for one in Visibility}
_ISOLATIONS: Final = {level: f"ISOLATION_{level.value}" for level in Isolation}
_ISOLATIONS_BACK: Final = {
    resources_pb2.Isolation.Value(_ISOLATIONS[one]): one for one in Isolation
}
_NETWORKS_BACK: Final = {resources_pb2.Network.Value(f"NETWORK_{one.name}"): one for one in Network}
_KEEPINGS: Final = {keeping: f"KEEPING_{keeping.value}" for keeping in Keeping}
_KEEPINGS_BACK: Final = {resources_pb2.Keeping.Value(_KEEPINGS[one]): one for one in Keeping}


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
        withheld=device.withheld,
        parent_uuid=device.parent_uuid,
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


def network_name(network: Network | None) -> str:
    """The contract's name of a network; None: any."""
    return f"NETWORK_{'UNSPECIFIED' if network is None else network.name}"


def to_network(number: int) -> Network | None:
    """A network that is asked for; None: any."""
    if number not in resources_pb2.Network.values():
        raise InvalidRequest(f"there is no network {number}")
    return _NETWORKS_BACK.get(number)


def to_networks(numbers: Iterable[int]) -> tuple[Network, ...]:
    """Those that a node lets sessions ask for, each once; one that is newer than we are is one that we do not know."""
    known = {_NETWORKS_BACK.get(number) for number in numbers}
    return tuple(one for one in Network if one in known)


def kept_message(kept: KeptLimits) -> resources_pb2.KeptLimits:
    """How a node keeps limits."""
    return resources_pb2.KeptLimits(
        memory=_KEEPINGS[kept.memory],
        cpus=_KEEPINGS[kept.cpus],
        processes=_KEEPINGS[kept.processes],
        disk=_KEEPINGS[kept.disk],
        note=kept.note,
    )


def to_kept(message: resources_pb2.KeptLimits, *, most_note_chars: int) -> KeptLimits:
    """How a node keeps limits; a way that is newer than we are is one that we do not know."""
    return KeptLimits(
        memory=_KEEPINGS_BACK.get(message.memory, Keeping.UNSPECIFIED),
        cpus=_KEEPINGS_BACK.get(message.cpus, Keeping.UNSPECIFIED),
        processes=_KEEPINGS_BACK.get(message.processes, Keeping.UNSPECIFIED),
        disk=_KEEPINGS_BACK.get(message.disk, Keeping.UNSPECIFIED),
        note=message.note[:most_note_chars],
    )


def sample_message(sample: DeviceSample) -> resources_pb2.DeviceSample:
    """One reading of a device."""
    return resources_pb2.DeviceSample(
        uuid=sample.uuid,
        utilization_percent=sample.utilization_percent,
        memory_used_bytes=sample.memory_used_bytes,
        power_watts=sample.power_watts,
        temperature_celsius=sample.temperature_celsius,
        clock_mhz=sample.clock_mhz,
        memory_clock_mhz=sample.memory_clock_mhz,
        ecc_corrected=sample.ecc_corrected,
        ecc_uncorrected=sample.ecc_uncorrected,
        last_xid=sample.last_xid,
        process_count=sample.process_count,
        throttled=sample.throttled,
    )
