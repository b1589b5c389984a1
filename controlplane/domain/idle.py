"""When a session makes nothing of the devices that it holds. Pure.

It is idle when none of its devices did more than a little for a while. It is a zombie when nothing can be done: no
process at all is on them any more, as when a program hangs in its last line, or a process is on one of
them that belongs to no session.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from controlplane.domain.values import Episode, EpisodeKind

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_EPISODES: Final = 16
"""Of one session: the newest."""
EMPTY_S: Final = 60.0
"""Between two programs of a session there may be no process for a moment."""
_TOLD_MEMORY: Final = 1 << 30
"""Less may be the driver's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WasteRule:
    """What a platform lets pass.

    Attributes:
        percent: a device whose utilisation is no higher does nothing.
        after_s: seconds for which that may be so; 0: always.
    """

    percent: float = 1.0
    after_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What agents told of a session's devices. Times in Unix seconds, 0: it is not so, or nobody knows.

    Attributes:
        idle_since: since when none of them did more than the rule's percent.
        empty_since: since when no process is on any of them.
        memory_bytes: of them, in use.
        strangers: what is said of each that a process of no session uses.
    """

    idle_since: float = 0.0
    empty_since: float = 0.0
    memory_bytes: int = 0
    strangers: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What is known of a running session just now.

    Attributes:
        is_joined: somebody is connected to it.
        device_percent: utilisation of each device that it holds.
        cpu_cores: that the processes of each replica take.
        is_whole: of all its devices and replicas something is known.
    """

    is_joined: bool = False
    device_percent: Sequence[float] = ()
    cpu_cores: Sequence[float] = ()
    is_whole: bool = True


IDLE_CORES: Final = 0.1
"""Processes that only wait, such as a notebook server, take less."""


def is_active(seen: Activity, rule: WasteRule) -> bool:
    """Whether a session with an idle limit is in use: a connection alone is enough, and so is work; what nobody knows counts as use."""
    return (
        seen.is_joined
        or not seen.is_whole
        or any(percent > rule.percent for percent in seen.device_percent)
        or any(cores > IDLE_CORES for cores in seen.cpu_cores)
    )


def judged(seen: Seen, rule: WasteRule, now: float) -> Episode | None:
    """What stands against a session now; None: nothing, or not for long enough."""
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
    """The episodes of a session once this is found; one that goes on stays as it was."""
    standing = episodes[-1] if episodes and not episodes[-1].until else None
    if standing is not None and found is not None and standing.kind is found.kind:
        return episodes
    if standing is not None:
        episodes = (*episodes[:-1], replace(standing, until=now))
    if found is not None:
        # It begins where the one before it ends: they never overlap.
        since = max(found.since, episodes[-1].until) if episodes else found.since
        episodes = (*episodes, replace(found, since=since))
    return episodes[-MOST_EPISODES:]
