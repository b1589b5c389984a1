"""Slow or hidden failures: differing settings, clocks, certificates, refused joins.

Each function returns the subjects of one condition with the evidence for each; nothing here waits or writes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from cryptography import x509

from nsml.common.units import counted, duration_text
from nsml.spec.thresholds import CERTIFICATE_WARNING_S, WRONG_CLOCK_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from controlplane.core.serving_process import ServingProcess
    from controlplane.state.members import Member

FILE_WARNING_S: Final = 30 * 86_400.0
"""Certificates of others are renewed by people."""
REFUSED_JOIN_S: Final = 600.0
"""How long refused joins are shown after the last one."""
_NOT_SET: Final = "not set"

Found = dict[str, str]
"""Subjects of a condition, and the evidence for each."""


def differing_settings(members: Iterable[Member]) -> Found:
    """Return settings that differ between control planes, with the value of each."""
    members = tuple(members)
    names = sorted({name for one in members for name in one.settings})
    found: Found = {}
    for name in names:
        values = {one.name: one.settings.get(name, _NOT_SET) for one in members}
        if len(set(values.values())) > 1:
            found[name] = "; ".join(f"{member}: {value}" for member, value in values.items())
    return found


def wrong_clocks(nodes: Mapping[str, float], control_planes: Mapping[str, float]) -> Found:
    """Return machines with wrong clocks, by how far each is ahead of the platform's clock, in seconds."""
    every = [
        *((f"node {name}", off) for name, off in sorted(nodes.items())),
        *((f"control plane {name}", off) for name, off in sorted(control_planes.items())),
    ]
    return {
        subject: f"{duration_text(abs(off))} {'ahead' if off > 0 else 'behind'}"
        for subject, off in every
        if abs(off) > WRONG_CLOCK_S
    }


def failing_processes(programs: Iterable[ServingProcess]) -> Found:
    """Return child processes that end repeatedly, with their last end."""
    return {one.name: one.failing for one in programs if one.failing}


def ending_certificates(
    nodes: Mapping[str, float], others: Mapping[str, float], now: float
) -> Found:
    """Return certificates that end soon or have ended.

    Args:
        nodes: their ends by node, Unix seconds; 0: unknown.
        others: the same for certificates that people renew, by name.
        now: Unix seconds.
    """
    ends = [
        *((f"node {name}", at, CERTIFICATE_WARNING_S) for name, at in nodes.items() if at),
        *((name, at, FILE_WARNING_S) for name, at in others.items()),
    ]
    return {name: _end(at, now) for name, at, early_s in sorted(ends) if at - now < early_s}


def _end(at: float, now: float) -> str:
    day = time.strftime("%Y-%m-%d", time.gmtime(at))
    left_s = at - now
    return f"ends on {day}, in {duration_text(left_s)}" if left_s > 0 else f"ended on {day}"


def refused_joins(count: int, last_at: float, last: str, now: float) -> Found:
    """Return whether joins of machines were refused recently."""
    if not count or now - last_at >= REFUSED_JOIN_S:
        return {}
    return {
        "": f"{counted(count, 'refusal')} since the start of this control plane; the last: {last}"
    }


def file_end(file: Path) -> float:
    """Return the first end among a PEM file's certificates, Unix seconds; OSError, ValueError: not readable."""
    certificates = x509.load_pem_x509_certificates(file.read_bytes())
    return min(one.not_valid_after_utc.timestamp() for one in certificates)
