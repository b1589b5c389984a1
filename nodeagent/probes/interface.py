"""What a device probe tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU. `minor` numbers its node `/dev/nvidia<minor>`; simulated ones have none."""

    index: int
    uuid: str
    model: str
    memory_bytes: int
    minor: int | None
    simulated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process that computes on a device; `memory_bytes` is None where the driver hides it."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One reading of one device; None where it does not tell.

    `utilization_percent` is 0 to 100, the share of the last period in which a kernel ran.
    """

    uuid: str
    utilization_percent: float | None
    memory_used_bytes: int | None
    power_watts: float | None
    temperature_celsius: float | None
    processes: Sequence[DeviceProcess] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """What was found. `reason` says why there are none, or fewer than there should be; or ""."""

    devices: Sequence[Device] = ()
    reason: str = ""


class DeviceProbe(Protocol):
    """Reads the devices of one machine.

    Blocking, and never raises: a driver that is missing or broken is a `reason`, a device that
    stopped answering is missing from the samples. A call may hang as long as the driver does, so
    it belongs in a thread with a deadline around it. One caller at a time.
    """

    def devices(self) -> Devices:
        """The devices in order of index. The same ones, by uuid, on every call that finds them."""
        ...

    def sample(self) -> Sequence[DeviceSample]:
        """One reading of each device that answers, in order of index."""
        ...
