"""NVIDIA devices through NVML: the only file that imports pynvml.

Reasons why a device is unusable, and their sources:

- NVML's own report: an error such as "GPU is lost" instead of its identity, or a requested recovery
  action (reset, reboot).
- Memory: uncorrectable ECC errors since the driver was loaded, pages that wait for a reset
  to be retired, rows that could not be remapped (NVIDIA, "GPU Memory Error Management").
- XID events that require a reset or a reboot by NVIDIA's catalogue ("Analyzing
  Xid Errors with the Xid Catalog"). Errors of programs (13, 31, 43, 45, ...) do not.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pynvml

from nodeagent.probes.interface import Device, DeviceProcess, Devices, DeviceSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

UNUSABLE_AFTER_XID: Final = {
    46: "the GPU stopped processing",
    48: "double bit ECC error",
    62: "internal microcontroller halt",
    64: "a row or page could not be taken out of use",
    79: "the GPU has fallen off the bus",
    95: "uncontained memory error",
    110: "security fault",
    119: "the GSP does not answer",
    120: "the GSP failed",
    136: "event alignment failed",
    140: "unrecovered ECC error",
    143: "the GPU could not be initialized",
    155: "an NVLink failed",
    156: "resource retirement",
    158: "fatal timeout",
}

_RECOVERY = {
    1: "the driver asks for a reset of the GPU",
    2: "the driver asks for a reboot of the machine",
    4: "the driver asks for a reset of the GPU",
    6: "the driver asks for a reset of the bus",
    7: "the driver asks for a restart of the machine",
}
"""By NVML's nvmlDeviceGpuRecoveryAction_t; other values leave the device usable."""

_THROTTLES = {0x04: "power cap", 0x08: "hardware slowdown", 0x60: "heat", 0x80: "power brake"}
_MOST_EVENTS = 256
_EVENT_WAIT_MS = 1
_NO_INSTANCE = 0xFFFFFFFF
_NO_INSTANCES = "MIG mode is on, and it has no instances"

Xids = dict[tuple[str, int | None], int]
"""The newest XID by the uuid of a GPU and its instance; None: the whole GPU."""


class NvmlProbe:
    """`DeviceProbe` over the driver's library, which is retried until it answers.

    Args:
        driver: the driver's folder of boards and capabilities.
    """

    def __init__(self, driver: Path = Path("/proc/driver")) -> None:
        self._driver = driver
        self._ready = False
        self._boards: frozenset[str] = frozenset()
        self._events: Any = None
        self._watched: set[str] = set()
        self._known: dict[int, list[Device]] = {}
        self._last_xid: Xids = {}
        self._bad_xid: Xids = {}

    def devices(self) -> Devices:
        """See `DeviceProbe.devices`."""
        reason = self._begin()
        if reason:
            return Devices(reason=reason)
        try:
            count = int(_call("nvmlDeviceGetCount"))
        except _NoAnswer as error:
            self._end()
            # it may be reloaded, which resets the devices
            self._last_xid.clear()
            self._bad_xid.clear()
            return Devices(reason=f"the driver does not tell its devices: {error}")
        self._hear()
        driver, cuda = _versions()
        found: dict[str, Device] = {}
        notes = []
        minors = self._capability_minors()
        position = 0
        for index in range(count):
            parts, note = self._at(index, minors)
            notes += [note] if note else []
            for device in parts:
                known = replace(device, index=position, driver_version=driver, cuda_version=cuda)
                found.setdefault(device.uuid, known)
                position += 1
            position += not parts
        if not count:
            notes.append("the driver knows no devices")
        self._forget_xids(found.values())
        return Devices(devices=tuple(found.values()), reason="; ".join(notes))

    def sample(self) -> Sequence[DeviceSample]:
        """See `DeviceProbe.sample`."""
        if self._begin():
            return ()
        samples: dict[str, DeviceSample] = {}
        for index in range(_ask("nvmlDeviceGetCount") or 0):
            handle = _ask("nvmlDeviceGetHandleByIndex", index)
            parts = list(_instances(handle)) if handle and _is_cut(handle) else []
            for one in parts or [handle]:
                sample = self._sample(one, handle) if one else None
                if sample is not None:
                    samples.setdefault(sample.uuid, sample)
        return tuple(samples.values())

    def _begin(self) -> str:
        """Load the library; return the reason of a failure, or "".

        It counts boards only once, so it is reloaded when they change.
        """
        boards = self._listed_boards()
        if self._ready and boards != self._boards:
            self._end()
        if not self._ready:
            try:
                _call("nvmlInit")
            except _NoAnswer as error:
                return f"no NVIDIA driver: {error}"
            self._ready, self._boards = True, boards
            self._events = _ask("nvmlEventSetCreate")
        return ""

    def _end(self) -> None:
        """Close the library."""
        if self._events is not None:
            _ask("nvmlEventSetFree", self._events)
        _ask("nvmlShutdown")
        self._ready, self._events = False, None
        self._watched.clear()
        self._known.clear()

    def _listed_boards(self) -> frozenset[str]:
        try:
            return frozenset(one.name for one in (self._driver / "nvidia" / "gpus").iterdir())
        except OSError:
            return frozenset()

    def _at(self, index: int, minors: Mapping[str, int]) -> tuple[list[Device], str]:
        """Return the devices at one index of the driver, and why there are none."""
        try:
            handle = _call("nvmlDeviceGetHandleByIndex", index)
            uuid = _text(_call("nvmlDeviceGetUUID", handle))
            parts = self._answering(index, handle, uuid, minors)
        except _NoAnswer as error:
            known = [replace(device, trouble=str(error)) for device in self._known.get(index, [])]
            return known, "" if known else f"no answer from device {index}: {error}"
        self._watch(handle, uuid)
        self._known[index] = parts
        return parts, ""

    def _answering(
        self, index: int, handle: Any, uuid: str, minors: Mapping[str, int]
    ) -> list[Device]:
        minor = _ask("nvmlDeviceGetMinorNumber", handle)
        trouble = _trouble(handle) or self._trouble_of_events(uuid, None)
        whole = Device(
            index=index,
            uuid=uuid,
            model=_text(_ask("nvmlDeviceGetName", handle) or "unknown"),
            memory_bytes=int(_call("nvmlDeviceGetMemoryInfo", handle).total),
            minor=minor,
            simulated=False,
            trouble=trouble,
        )
        if not _is_cut(handle):
            return [whole]
        parts = [self._instance(one, whole, minors) for one in _instances(handle)]
        return [one for one in parts if one is not None] or [
            replace(whole, trouble=trouble or _NO_INSTANCES)
        ]

    def _instance(self, handle: Any, whole: Device, minors: Mapping[str, int]) -> Device | None:
        """Return a MIG instance; None for one that is just being created or destroyed."""
        uuid = _ask("nvmlDeviceGetUUID", handle)
        memory = _ask("nvmlDeviceGetMemoryInfo", handle)
        gi, ci = _instance_ids(handle)
        if uuid is None or memory is None or gi is None or ci is None:
            return None
        place = f"gpu{whole.minor}/gi{gi}"
        numbers = [minors.get(f"{place}/access"), minors.get(f"{place}/ci{ci}/access")]
        return replace(
            whole,
            uuid=_text(uuid),
            model=_text(_ask("nvmlDeviceGetName", handle) or f"{whole.model} MIG"),
            memory_bytes=int(memory.total),
            parent_uuid=whole.uuid,
            nodes=tuple(f"/dev/nvidia-caps/nvidia-cap{one}" for one in numbers if one is not None),
            trouble=whole.trouble or self._trouble_of_events(whole.uuid, gi),
        )

    def _capability_minors(self) -> dict[str, int]:
        """Return minor numbers of the nodes that open MIG instances: lines such as `gpu0/gi1/access 12`."""
        try:
            text = (self._driver / "nvidia-caps" / "mig-minors").read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return {}
        lines = (line.split() for line in text.splitlines())
        return {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdigit()}

    def _watch(self, handle: Any, uuid: str) -> None:
        """Receive the device's XIDs from now on; some devices report none."""
        if self._events is not None and uuid not in self._watched:
            _ask(
                "nvmlDeviceRegisterEvents",
                handle,
                pynvml.nvmlEventTypeXidCriticalError,
                self._events,
            )
            self._watched.add(uuid)

    def _hear(self) -> None:
        """Process the events since the last time."""
        for _ in range(_MOST_EVENTS if self._events is not None else 0):
            event = _ask("nvmlEventSetWait_v2", self._events, _EVENT_WAIT_MS)
            if event is None:
                return
            uuid = _ask("nvmlDeviceGetUUID", event.device)
            if uuid is None:
                continue  # a lost device reports that itself
            gi = int(event.gpuInstanceId)
            place = _text(uuid), None if gi == _NO_INSTANCE else gi
            self._last_xid[place] = int(event.eventData)
            if event.eventData in UNUSABLE_AFTER_XID:
                self._bad_xid[place] = int(event.eventData)

    def _forget_xids(self, listed: Iterable[Device]) -> None:
        """Forget XIDs of unlisted devices: when they return they were reset, or replaced."""
        kept = {device.parent_uuid or device.uuid for device in listed}
        for xids in (self._last_xid, self._bad_xid):
            for place in [place for place in xids if place[0] not in kept]:
                del xids[place]

    def _trouble_of_events(self, uuid: str, gi: int | None) -> str:
        xid = self._bad_xid.get((uuid, gi))
        return "" if xid is None else f"XID {xid}: {UNUSABLE_AFTER_XID[xid]}"

    def _sample(self, handle: Any, whole: Any) -> DeviceSample | None:
        """Return the reading of `handle`; an instance shares temperature and errors with `whole`."""
        uuid = _ask("nvmlDeviceGetUUID", handle)
        if uuid is None:
            return None
        rates = _ask("nvmlDeviceGetUtilizationRates", handle)
        milliwatts = _ask("nvmlDeviceGetPowerUsage", handle)
        celsius = _ask("nvmlDeviceGetTemperature", whole, pynvml.NVML_TEMPERATURE_GPU)
        return DeviceSample(
            uuid=_text(uuid),
            utilization_percent=None if rates is None else float(rates.gpu),
            memory_used_bytes=_memory_used(handle),
            power_watts=None if milliwatts is None else milliwatts / 1000,
            temperature_celsius=None if celsius is None else float(celsius),
            processes=_processes(handle),
            clock_mhz=_ask("nvmlDeviceGetClockInfo", whole, pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=_ask("nvmlDeviceGetClockInfo", whole, pynvml.NVML_CLOCK_MEM),
            ecc_corrected=_ecc_errors(whole, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ecc_uncorrected=_ecc_errors(whole, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            last_xid=self._xid_of(handle, whole),
            throttled=_throttled(whole),
        )

    def _xid_of(self, handle: Any, whole: Any) -> int | None:
        uuid = _text(_ask("nvmlDeviceGetUUID", whole) or "")
        gi = None if handle is whole else _instance_ids(handle)[0]
        return self._last_xid.get((uuid, gi)) or self._last_xid.get((uuid, None))


class _NoAnswer(Exception):
    """The driver has no answer; the text is its reason."""


def _call(question: str, *arguments: Any) -> Any:
    """Return the driver's answer; raises _NoAnswer."""
    try:
        return getattr(pynvml, question)(*arguments)
    except pynvml.NVMLError as error:
        raise _NoAnswer(str(error)) from error
    except Exception as error:
        # a library older or newer than its driver may raise anything
        raise _NoAnswer(f"{question}: {error}") from error


def _ask(question: str, *arguments: Any) -> Any:
    """Return the driver's answer, or None."""
    with contextlib.suppress(_NoAnswer):
        return _call(question, *arguments)
    return None


def _versions() -> tuple[str, str]:
    """Return the versions of the driver and of the newest CUDA that it supports; "" if unknown."""
    driver = _ask("nvmlSystemGetDriverVersion")
    cuda = _ask("nvmlSystemGetCudaDriverVersion_v2")
    return _text(driver or ""), f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""


def _trouble(handle: Any) -> str:
    """Return why the device must not be used, by its state."""
    action = _recovery_action(handle)
    if action in _RECOVERY:
        return _RECOVERY[action]
    errors = _ecc_errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    if errors:
        what = "1 memory error was" if errors == 1 else f"{errors} memory errors were"
        return f"{what} not corrected since the driver was loaded"
    if _ask("nvmlDeviceGetRetiredPagesPendingStatus", handle):
        return "memory pages wait for a reset to be retired"
    rows = _ask("nvmlDeviceGetRemappedRows", handle)
    if rows and rows[-1]:
        return "a row of its memory could not be remapped"
    return ""


def _recovery_action(handle: Any) -> int | None:
    """Return a nvmlDeviceGpuRecoveryAction_t; None from drivers without it."""
    field = getattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    values = _ask("nvmlDeviceGetFieldValues", handle, [field]) if field is not None else None
    if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def _ecc_errors(handle: Any, kind: int) -> int | None:
    count = _ask("nvmlDeviceGetTotalEccErrors", handle, kind, pynvml.NVML_VOLATILE_ECC)
    return None if count is None else int(count)


def _memory_used(handle: Any) -> int | None:
    """Return bytes used by programs; only drivers before 510 include their own reserved memory."""
    memory = _ask("nvmlDeviceGetMemoryInfo", handle, getattr(pynvml, "nvmlMemory_v2", None))
    memory = memory or _ask("nvmlDeviceGetMemoryInfo", handle)
    return None if memory is None else int(memory.used)


def _throttled(handle: Any) -> str:
    bits = _ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:
        bits = _ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return ", ".join(words for bit, words in _THROTTLES.items() if (bits or 0) & bit)


def _processes(handle: Any) -> tuple[DeviceProcess, ...]:
    """Return the computing processes, including clients of MPS."""
    found: dict[int, DeviceProcess] = {}
    for question in ("ComputeRunningProcesses", "MPSComputeRunningProcesses"):
        for one in _ask(f"nvmlDeviceGet{question}", handle) or []:
            process = DeviceProcess(pid=int(one.pid), memory_bytes=one.usedGpuMemory)
            found.setdefault(process.pid, process)
    return tuple(found.values())


def _is_cut(handle: Any) -> bool:
    """Whether MIG mode is on: then its instances are the devices."""
    mode = _ask("nvmlDeviceGetMigMode", handle)
    return bool(mode) and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _instances(handle: Any) -> Iterator[Any]:
    for number in range(_ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        instance = _ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        if instance is not None:
            yield instance


def _instance_ids(handle: Any) -> tuple[int | None, int | None]:
    return (
        _ask("nvmlDeviceGetGpuInstanceId", handle),
        _ask("nvmlDeviceGetComputeInstanceId", handle),
    )


def _text(value: str | bytes) -> str:
    """Decode a text: older versions of the library return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
