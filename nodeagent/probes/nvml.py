"""NVIDIA devices through NVML: the only file that imports pynvml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import pynvml

from nodeagent.probes.interface import Device, DeviceProcess, Devices, DeviceSample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


class NvmlProbe:
    """`DeviceProbe` over the driver's library, which is looked for again until it answers."""

    def __init__(self) -> None:
        self._ready = False

    def devices(self) -> Devices:
        """See `DeviceProbe.devices`."""
        reason = self._begin()
        if reason:
            return Devices(reason=reason)
        found, missing = [], []
        for index in range(_ask(pynvml.nvmlDeviceGetCount) or 0):
            device = _device(index)
            if device is None:
                missing.append(str(index))
            else:
                found.append(device)
        reason = f"no answer from device {', '.join(missing)}" if missing else ""
        if not found and not missing:
            reason = "the driver knows no devices"
        return Devices(devices=tuple(found), reason=reason)

    def sample(self) -> Sequence[DeviceSample]:
        """See `DeviceProbe.sample`."""
        if self._begin():
            return ()
        count = _ask(pynvml.nvmlDeviceGetCount) or 0
        samples = (_sample(index) for index in range(count))
        return tuple(sample for sample in samples if sample is not None)

    def _begin(self) -> str:
        """Load the library; the reason why that failed, or ""."""
        if not self._ready:
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError as error:
                return f"no NVIDIA driver: {error}"
            self._ready = True
        return ""


def _ask(question: Callable[..., T], *arguments: Any) -> T | None:
    """The driver's answer; None when it has none."""
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None


def _device(index: int) -> Device | None:
    handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
    uuid = _ask(pynvml.nvmlDeviceGetUUID, handle) if handle else None
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle) if handle else None
    if uuid is None or memory is None:
        return None
    return Device(
        index=index,
        uuid=_text(uuid),
        model=_text(_ask(pynvml.nvmlDeviceGetName, handle) or "unknown"),
        memory_bytes=int(memory.total),
        minor=_ask(pynvml.nvmlDeviceGetMinorNumber, handle),
        simulated=False,
    )


def _sample(index: int) -> DeviceSample | None:
    handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
    uuid = _ask(pynvml.nvmlDeviceGetUUID, handle) if handle else None
    if uuid is None:
        return None
    rates = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    milliwatts = _ask(pynvml.nvmlDeviceGetPowerUsage, handle)
    celsius = _ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
    processes = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    return DeviceSample(
        uuid=_text(uuid),
        utilization_percent=None if rates is None else float(rates.gpu),
        memory_used_bytes=None if memory is None else int(memory.used),
        power_watts=None if milliwatts is None else milliwatts / 1000,
        temperature_celsius=None if celsius is None else float(celsius),
        processes=tuple(
            DeviceProcess(pid=int(process.pid), memory_bytes=process.usedGpuMemory)
            for process in processes
        ),
    )


def _text(value: str | bytes) -> str:
    """Older versions of the library answer with bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
