"""A session's use of its devices, in words and raw values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nsml.common.units import duration_text, memory_text, moment, short_moment
from nsml.v1 import sessions_pb2
from nsml.view.enums import enum_name, enum_word
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.v1.sessions_pb2 import Episode, Replica, SessionUsage

IDLE_S = 600.0
"""A session idle for this long is marked in lists."""


def usage_text(usage: SessionUsage) -> str:
    """`GPU utilization mean 71%, peak 99%, memory peak 12.0 GiB, 1.24 kWh`."""
    parts = []
    if usage.HasField("utilization_percent"):
        parts += [f"GPU utilization mean {usage.utilization_percent:.0f}%"]
        parts += [f"peak {usage.utilization_peak_percent:.0f}%"]
    parts += [f"memory peak {memory_text(usage.memory_peak_bytes)}"]
    if usage.watt_hours:
        parts += [energy_text(usage.watt_hours)]
    if usage.forgotten_attempts:
        attempts = "attempt" if usage.forgotten_attempts == 1 else "attempts"
        parts += [f"without {usage.forgotten_attempts} older {attempts}, whose GPUs are forgotten"]
    return ", ".join(parts)


def taken_text(replicas: Sequence[Replica]) -> str:
    """Return the current use of all replicas: `3.9 cores, 12.4 GiB of memory, 9 processes`; "" if none is known.

    If some replicas of a gang are missing it adds `(of 3 replicas of 4)`.
    """
    told = [one.use for one in replicas if one.HasField("use")]
    if not told:
        return ""
    cores = math.fsum(one.cpu_cores for one in told)
    count = sum(one.process_count for one in told)
    memory = memory_text(sum(one.memory_used_bytes for one in told))
    processes = "process" if count == 1 else "processes"
    text = f"{cores:.1f} cores, {memory} of memory, {count} {processes}"
    if len(told) == len(replicas):
        return text
    known = "replica" if len(told) == 1 else "replicas"
    return f"{text} (of {len(told)} {known} of {len(replicas)})"


def use_record(replica: Replica) -> dict[str, Any] | None:
    """Return the current use of a replica's processes in raw values; None if unknown."""
    if not replica.HasField("use"):
        return None
    return {
        "cpu_cores": round(replica.use.cpu_cores, 3),
        "memory_used_bytes": replica.use.memory_used_bytes,
        "process_count": replica.use.process_count,
    }


def energy_text(watt_hours: float) -> str:
    """`0.3 Wh`, `840 Wh`, `1.24 kWh`."""
    if watt_hours >= 1000:
        return f"{watt_hours / 1000:.2f} kWh"
    return f"{watt_hours:.1f} Wh" if watt_hours < 10 else f"{watt_hours:.0f} Wh"


def waste_text(episodes: Sequence[Episode], now: float) -> str:
    """Return the current waste: `idle 1h4m`, `zombie 12m`; "" if there is none."""
    if not episodes or episodes[-1].HasField("until"):
        return ""
    last = episodes[-1]
    word = enum_word(sessions_pb2.EpisodeKind, last.kind, "EPISODE_KIND_")
    return f"{word} {duration_text(max(now - seconds_of(last.since), 0.0))}"


def episode_lines(episodes: Sequence[Episode], now: float) -> list[str]:
    """Describe each episode in a line, the newest first, current and past."""
    lines = []
    for one in reversed(episodes):
        word = enum_word(sessions_pb2.EpisodeKind, one.kind, "EPISODE_KIND_")
        since = seconds_of(one.since)
        until = seconds_of(one.until) if one.HasField("until") else now
        lasted = duration_text(max(until - since, 0.0))
        begun = short_moment(since, now)
        told = f"{word} for {lasted}, since {begun}"
        if one.HasField("until"):
            told = f"was {word} for {lasted}, from {begun} on"
        lines.append(f"{told}: {one.reason}")
    return lines


def episode_records(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """Return episodes in raw values, oldest first."""
    return [
        {
            "kind": enum_name(sessions_pb2.EpisodeKind, one.kind, "EPISODE_KIND_"),
            "since": moment(seconds_of(one.since)),
            "until": moment(seconds_of(one.until)) if one.HasField("until") else None,
            "reason": one.reason,
        }
        for one in episodes
    ]


def idle_text(usage: SessionUsage, now: float) -> str:
    """Return `idle 1h4m` if the devices have been idle for at least `IDLE_S`; else ""."""
    if not usage.HasField("idle_since"):
        return ""
    idle_s = now - _idle_since(usage)
    return f"idle {duration_text(idle_s)}" if idle_s >= IDLE_S else ""


def usage_record(usage: SessionUsage) -> dict[str, Any]:
    """Return the measured use in raw values."""
    has_load = usage.HasField("utilization_percent")
    return {
        "device_seconds": round(usage.device_seconds, 3),
        "utilization_percent": round(usage.utilization_percent, 3) if has_load else None,
        "utilization_peak_percent": round(usage.utilization_peak_percent, 3),
        "memory_peak_bytes": usage.memory_peak_bytes,
        "watt_hours": round(usage.watt_hours, 4),
        "forgotten_attempts": usage.forgotten_attempts,
        "idle_since": moment(_idle_since(usage)) if usage.HasField("idle_since") else None,
    }


def efficiency_text(usage: SessionUsage) -> str:
    """Return the mean utilization of its devices: `71%`; "-" if not measured."""
    return f"{usage.utilization_percent:.0f}%" if usage.HasField("utilization_percent") else "-"


def _idle_since(usage: SessionUsage) -> float:
    return seconds_of(usage.idle_since)
