"""Decides whether a session wastes its devices. Pure.

It is idle if the utilisation of all its devices was low for a while. It is a zombie if it cannot use them: they
have no processes any more, as when a program hangs in its last line, or one of them has a process of no session.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from controlplane.domain.values import Episode, EpisodeKind

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_EPISODES: Final = 16
"""Kept per session: the newest."""
EMPTY_S: Final = 60.0
"""Minimum time without processes, since there may be a gap between two programs of a session."""
_TOLD_MEMORY: Final = 1 << 30
"""Less used memory is not reported: it may be the driver's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WasteRule:
    """The platform's limits of idleness.

    Attributes:
        percent: a device is idle up to this utilisation.
        after_s: permitted seconds of idleness; 0: unlimited.
    """

    percent: float = 1.0
    after_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Agents' reports on a session's devices. Times in Unix seconds, 0: no, or unknown.

    Attributes:
        idle_since: since when the utilisation of all is at most the rule's percent.
        empty_since: since when they have no processes.
        memory_bytes: their used memory.
        strangers: a text for each device used by a process of no session.
    """

    idle_since: float = 0.0
    empty_since: float = 0.0
    memory_bytes: int = 0
    strangers: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Current activity of a running session.

    Attributes:
        is_joined: a user is connected to it.
        device_percent: utilisation of each of its devices.
        cpu_cores: used by the processes of each replica.
        is_whole: all its devices and replicas are covered.
    """

    is_joined: bool = False
    device_percent: Sequence[float] = ()
    cpu_cores: Sequence[float] = ()
    is_whole: bool = True


IDLE_CORES: Final = 0.1
"""Idle processes, such as a notebook server, use less."""


def is_active(seen: Activity, rule: WasteRule) -> bool:
    """Return whether a session with an idle limit is in use: connected, working, or not fully known."""
    return (
        seen.is_joined
        or not seen.is_whole
        or any(percent > rule.percent for percent in seen.device_percent)
        or any(cores > IDLE_CORES for cores in seen.cpu_cores)
    )


def judged(seen: Seen, rule: WasteRule, now: float) -> Episode | None:
    """Return the session's current waste; None: there is none, or not for long enough."""
    if not rule.after_s:
        return None
    if seen.strangers:
        return Episode(kind=EpisodeKind.ZOMBIE, since=now, reason="; ".join(seen.strangers))
    is_idle = 0 < seen.idle_since <= now - rule.after_s
    if is_idle and 0 < seen.empty_since <= now - EMPTY_S:
        taken = ""
        if seen.memory_bytes >= _TOLD_MEMORY:
            taken = f", and {seen.memory_bytes / (1 << 30):.1f} GiB of their memory are in use"
        reason = f"no process is on its GPUs{taken}"
        return Episode(kind=EpisodeKind.ZOMBIE, since=seen.empty_since, reason=reason)
    if is_idle:
        reason = f"none of its GPUs did more than {rule.percent:g} %"
        return Episode(kind=EpisodeKind.IDLE, since=seen.idle_since, reason=reason)
    return None


def following(
    episodes: tuple[Episode, ...], found: Episode | None, now: float
) -> tuple[Episode, ...]:
    """Update the episodes of a session by a finding; an ongoing one of the same kind stays as it was."""
    standing = episodes[-1] if episodes and not episodes[-1].until else None
    if standing is not None and found is not None and standing.kind is found.kind:
        return episodes
    if standing is not None:
        episodes = (*episodes[:-1], replace(standing, until=now))
    if found is not None:
        # It begins no sooner than the previous one ends: they never overlap.
        since = max(found.since, episodes[-1].until) if episodes else found.since
        episodes = (*episodes, replace(found, since=since))
    return episodes[-MOST_EPISODES:]
