"""The interface of device probes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU, or one MIG instance of the GPU `parent_uuid`.

    `index` counts the devices of the machine from 0. `minor` numbers its node `/dev/nvidia<minor>`;
    simulated ones have none. `nodes` are its other paths in /dev. `trouble` says why it
    must not be used, as far as the driver knows; empty: it is healthy. Versions are those of the driver and of the newest
    CUDA that it supports; empty: unknown.
    """

    index: int
    uuid: str
    model: str
    memory_bytes: int
    minor: int | None
    simulated: bool
    parent_uuid: str = ""
    nodes: Sequence[str] = ()
    trouble: str = ""
    driver_version: str = ""
    cuda_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process that computes on a device; `memory_bytes` is None if the driver hides it."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One reading of one device; None for missing values.

    `utilization_percent` is 0 to 100, the share of the last period in which a kernel ran. Clocks are
    of the multiprocessors and of the memory. ECC errors count from the load of the driver on;
    `last_xid` is the newest XID received by this probe. `throttled` is the reason for reduced
    clocks. `processes` are those of its host.
    """

    uuid: str
    utilization_percent: float | None
    memory_used_bytes: int | None
    power_watts: float | None
    temperature_celsius: float | None
    processes: Sequence[DeviceProcess] = ()
    clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    last_xid: int | None = None
    throttled: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """All devices. `reason` explains why there are none, or fewer than there should be; or ""."""

    devices: Sequence[Device] = ()
    reason: str = ""


class DeviceProbe(Protocol):
    """Reads the devices of one machine.

    Blocking, and never raises: for a missing or broken driver there is a `reason`; a device that
    stopped answering has a `trouble` and is missing from the samples. Each query may fail alone:
    the others are still answered. A call may hang as long as the driver does, so it belongs
    in a thread with a deadline around it. One caller at a time.
    """

    def devices(self) -> Devices:
        """Return the devices in order of index, as they are now. A device keeps its uuid.

        A device in MIG mode is replaced by its instances or, without any, has a
        trouble that says so.
        """
        ...

    def sample(self) -> Sequence[DeviceSample]:
        """Return one reading of each device that answers, in order of index."""
        ...
