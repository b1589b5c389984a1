"""What the scheduler proposes: placements, and why the others wait."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.domain.values import DeviceShare, Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlacement:
    """One replica on one node: `devices` sum up to the resources' gpu_thousandths."""

    rank: int
    node: str
    devices: tuple[DeviceShare, ...]
    resources: Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A proposal for one whole gang: all of it is committed, or nothing."""

    session_id: str
    replicas: tuple[ReplicaPlacement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why so many nodes did not do, by the first thing that was short on each."""

    what: str
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a session waits: one dominant reason for people, and the counts behind it.

    `can_ever_fit` is false when no node is large enough even when empty.
    """

    reason: str
    shortages: tuple[Shortage, ...] = ()
    can_ever_fit: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """A session that stays queued, at `place` from 1 among those that do."""

    session_id: str
    place: int
    explanation: Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One decision of the scheduler, made at `revision` of the snapshot."""

    revision: int
    placements: tuple[Placement, ...] = ()
    deferrals: tuple[Deferral, ...] = ()
