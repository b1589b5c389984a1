"""Conversions for several services: visibility, priority, capacity, devices and their samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.codec import codec, encoder
from controlplane.domain.errors import InvalidRequest
from controlplane.domain.values import (
    Device,
    Isolation,
    Keeping,
    KeptLimits,
    Network,
    Priority,
    Resources,
    Visibility,
)
from controlplane.history.values import DeviceSample
from nsml.v1 import resources_pb2, sessions_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

# The contract's names of our values, by value; messages accept them directly.
VISIBILITIES: Final = {one: f"VISIBILITY_{one.name}" for one in Visibility}
PRIORITIES: Final = {one: f"PRIORITY_{one.name}" for one in Priority}
_ISOLATIONS: Final = {level: f"ISOLATION_{level.value}" for level in Isolation}
_ISOLATIONS_BACK: Final = {
    resources_pb2.Isolation.Value(_ISOLATIONS[one]): one for one in Isolation
}
_NETWORKS_BACK: Final = {resources_pb2.Network.Value(f"NETWORK_{one.name}"): one for one in Network}
_KEEPINGS_BACK: Final = {
    resources_pb2.Keeping.Value(f"KEEPING_{keeping.value}"): keeping for keeping in Keeping
}


def to_visibility(number: int) -> Visibility | None:
    """Return a visibility; None if unspecified."""
    if number == resources_pb2.VISIBILITY_UNSPECIFIED:
        return None
    try:
        return Visibility(number)
    except ValueError:
        raise InvalidRequest(f"there is no visibility {number}") from None


def to_priority(number: int) -> Priority:
    """Return a priority of the contract; unspecified is normal."""
    if number not in sessions_pb2.Priority.values():
        raise InvalidRequest(f"there is no priority {number}")
    return Priority(number or Priority.NORMAL)


_RESOURCES: Final = codec(Resources, resources_pb2.Resources)
resources_message: Final = _RESOURCES.to_message
to_resources: Final = _RESOURCES.from_message

_DEVICE: Final = codec(Device, resources_pb2.Device)
device_message: Final = _DEVICE.to_message
to_device: Final = _DEVICE.from_message


def isolation_name(level: Isolation) -> str:
    """Return the contract's name of an isolation level."""
    return _ISOLATIONS[level]


def to_isolation(number: int) -> Isolation:
    """An isolation level."""
    try:
        return _ISOLATIONS_BACK[number]
    except KeyError:
        raise InvalidRequest(f"there is no isolation {number}") from None


def network_name(network: Network | None) -> str:
    """Return the contract's name of a network; None: any."""
    return f"NETWORK_{'UNSPECIFIED' if network is None else network.name}"


def to_network(number: int) -> Network | None:
    """Return a requested network; None: any."""
    if number not in resources_pb2.Network.values():
        raise InvalidRequest(f"there is no network {number}")
    return _NETWORKS_BACK.get(number)


def to_networks(numbers: Iterable[int]) -> tuple[Network, ...]:
    """Return the networks that a node offers, each once; those of newer versions are left out."""
    known = {_NETWORKS_BACK.get(number) for number in numbers}
    return tuple(one for one in Network if one in known)


kept_message: Final = encoder(KeptLimits, resources_pb2.KeptLimits).to_message


def to_kept(message: resources_pb2.KeptLimits, *, most_note_chars: int) -> KeptLimits:
    """Return how a node enforces limits; ways of newer versions become UNSPECIFIED."""
    return KeptLimits(
        memory=_KEEPINGS_BACK.get(message.memory, Keeping.UNSPECIFIED),
        cpus=_KEEPINGS_BACK.get(message.cpus, Keeping.UNSPECIFIED),
        processes=_KEEPINGS_BACK.get(message.processes, Keeping.UNSPECIFIED),
        disk=_KEEPINGS_BACK.get(message.disk, Keeping.UNSPECIFIED),
        note=message.note[:most_note_chars],
    )


sample_message: Final = encoder(DeviceSample, resources_pb2.DeviceSample).to_message
