"""What a device probe tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU, or one MIG instance of the GPU `parent_uuid`.

    `index` counts the devices of the machine from 0. `minor` numbers its node `/dev/nvidia<minor>`;
    simulated ones have none. `nodes` are what it needs of /dev beside that. `trouble` says why it
    must not be used, as far as the driver knows; empty: it is well. Versions are those of the driver and of the newest
    CUDA that it runs; empty: it does not tell.
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
    """A process that computes on a device; `memory_bytes` is None where the driver hides it."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One reading of one device; None where it does not tell.

    `utilization_percent` is 0 to 100, the share of the last period in which a kernel ran. Clocks are
    of the multiprocessors and of the memory. ECC errors count from the load of the driver on;
    `last_xid` is the newest XID that this probe heard of. `throttled` says what keeps the clocks
    down. `processes` are those of its host.
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
    """What was found. `reason` says why there are none, or fewer than there should be; or ""."""

    devices: Sequence[Device] = ()
    reason: str = ""


class DeviceProbe(Protocol):
    """Reads the devices of one machine.

    Blocking, and never raises: a driver that is missing or broken is a `reason`, a device that
    stopped answering has a `trouble` and is missing from the samples. Each question may fail alone:
    the answers to the others are given. A call may hang as long as the driver does, so it belongs
    in a thread with a deadline around it. One caller at a time.
    """

    def devices(self) -> Devices:
        """The devices in order of index, as they are now. One has the same uuid on every call.

        A device in MIG mode is not there: its instances are, or, where it has none, it with a
        trouble that says so.
        """
        ...

    def sample(self) -> Sequence[DeviceSample]:
        """One reading of each device that answers, in order of index."""
        ...
