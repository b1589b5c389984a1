"""What a session made of the devices that it held, in words and raw values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsml.view.units import duration_text, memory_text, moment

if TYPE_CHECKING:
    from nsml.v1.sessions_pb2 import SessionUsage

IDLE_S = 600.0
"""A session that does nothing for so long is marked in lists."""


def usage_text(usage: SessionUsage) -> str:
    """`71% of what it holds, peak 99%, memory peak 12.0 GiB, 1.24 kWh`."""
    parts = []
    if usage.HasField("utilization_percent"):
        parts += [f"{usage.utilization_percent:.0f}% of what it held was in use"]
        parts += [f"peak {usage.utilization_peak_percent:.0f}%"]
    parts += [f"memory peak {memory_text(usage.memory_peak_bytes)}"]
    if usage.watt_hours:
        parts += [energy_text(usage.watt_hours)]
    return ", ".join(parts)


def energy_text(watt_hours: float) -> str:
    """`0.3 Wh`, `840 Wh`, `1.24 kWh`."""
    if watt_hours >= 1000:
        return f"{watt_hours / 1000:.2f} kWh"
    return f"{watt_hours:.1f} Wh" if watt_hours < 10 else f"{watt_hours:.0f} Wh"


def idle_text(usage: SessionUsage, now: float) -> str:
    """`idle 1h4m`: how long nothing was done with what is held; "" where something is, or for a moment only."""
    if not usage.HasField("idle_since"):
        return ""
    idle_s = now - _idle_since(usage)
    return f"idle {duration_text(idle_s)}" if idle_s >= IDLE_S else ""


def usage_record(usage: SessionUsage) -> dict[str, Any]:
    """What was measured, in raw values."""
    has_load = usage.HasField("utilization_percent")
    return {
        "device_seconds": round(usage.device_seconds, 3),
        "utilization_percent": round(usage.utilization_percent, 3) if has_load else None,
        "utilization_peak_percent": round(usage.utilization_peak_percent, 3),
        "memory_peak_bytes": usage.memory_peak_bytes,
        "watt_hours": round(usage.watt_hours, 4),
        "idle_since": moment(_idle_since(usage)) if usage.HasField("idle_since") else None,
    }


def efficiency_text(usage: SessionUsage) -> str:
    """`71%`: the mean utilisation of what it held; "-" where nobody measured it."""
    return f"{usage.utilization_percent:.0f}%" if usage.HasField("utilization_percent") else "-"


def _idle_since(usage: SessionUsage) -> float:
    return usage.idle_since.seconds + usage.idle_since.nanos / 1e9
