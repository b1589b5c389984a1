"""The JSON files of a replica folder as values: exit record and shim's claim."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from nodeagent.folders import write_atomically
from nodeagent.runtimes.interface import ExitRecord, ExitWhy
from nodeagent.shim import disk_reserve as reserve

if TYPE_CHECKING:
    from nodeagent.folders import ReplicaFolder

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimClaim:
    """Identity of a folder's shim: a pid is unique only with its start and the boot.

    It may have waited for its folder: `claimed_ticks` is when it got it. Both in clock ticks since the boot.
    """

    pid: int
    start_ticks: int
    claimed_ticks: int
    boot_id: str
    child: int | None
    admits: frozenset[str] = frozenset()
    """Kinds of its visitors; shims of earlier versions have none, and end at the signal for a visit."""


def read_claim(folder: ReplicaFolder) -> ShimClaim | None:
    """Return the claim in `shim.json`; None before a shim made one."""
    try:
        content = json.loads(folder.shim.read_bytes())
        admits = content.get("admits")
        return ShimClaim(
            pid=int(content["pid"]),
            start_ticks=int(content["start_ticks"]),
            # shims of earlier versions did not wait
            claimed_ticks=int(content.get("claimed_ticks", content["start_ticks"])),
            boot_id=str(content["boot_id"]),
            child=content.get("child"),
            admits=frozenset(admits if isinstance(admits, list) else ()),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        # truncated by a power loss, and so of another boot
        return ShimClaim(
            pid=0,
            start_ticks=0,
            claimed_ticks=0,
            boot_id="",
            child=None,
        )


def read_exit(folder: ReplicaFolder) -> ExitRecord | None:
    """Return the exit record in `exit.json`; None if missing or unreadable."""
    try:
        return _exit_in(json.loads(folder.exit.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        # one replica's damaged file must not stop the agent
        log.warning("replica.exit_unreadable", replica=folder.path.name, error=str(error))
        return None


def _exit_in(content: Any) -> ExitRecord:
    duration_s = content["ended_monotonic"] - content["started_monotonic"]
    return ExitRecord(
        why=ExitWhy(content["why"]),
        exit_code=content["exit_code"],
        signal=content["signal"],
        message=content["message"],
        started_at=content["started_at"],
        ended_at=content["ended_at"],
        duration_s=max(duration_s, 0.0),
        user_s=content["user_s"],
        system_s=content["system_s"],
        max_rss_bytes=content["max_rss_bytes"],
        memory_peak_bytes=content.get("memory_peak_bytes", 0),
        output_bytes=content["output_bytes"],
    )


def write_exit(folder: ReplicaFolder, record: ExitRecord, *, is_durable: bool = True) -> None:
    """Write `exit.json` for a replica whose shim cannot. Raises OSError."""
    content = {
        "version": 1,
        "why": record.why.value,
        "exit_code": record.exit_code,
        "signal": record.signal,
        "message": record.message,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "started_monotonic": 0.0,
        "ended_monotonic": record.duration_s,
        "user_s": record.user_s,
        "system_s": record.system_s,
        "max_rss_bytes": record.max_rss_bytes,
        "memory_peak_bytes": record.memory_peak_bytes,
        "output_bytes": record.output_bytes,
    }
    try:
        write_atomically(folder.exit, json.dumps(content).encode(), is_durable=is_durable)
    except OSError:
        reserve.spend(str(folder.path), folder.exit.name, content)


def write_stop(
    folder: ReplicaFolder, *, reason: str, grace_s: float, notice_s: float = 0.0
) -> None:
    """Write the stop order that a signalled shim reads.

    If an earlier order is unread, its reason is kept, and the shorter grace and notice of both
    apply.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        earlier = json.loads(folder.stop.read_bytes())
        notice_s = min(float(earlier.get("notice_s", 0.0)), notice_s)
        reason, grace_s = str(earlier["reason"]), min(float(earlier["grace_s"]), grace_s)
    order = {"reason": reason, "grace_s": grace_s, "notice_s": notice_s}
    write_atomically(folder.stop, json.dumps(order).encode())
