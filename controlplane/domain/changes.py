"""Changes in a cluster, one type each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.domain.values import (
    Allocation,
    Node,
    Project,
    Session,
    Stock,
    TeamQuota,
    Used,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanged:
    """A node registered, or its record changed."""

    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRemoved:
    """A node was removed from the cluster."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactChanged:
    """A node fell silent, or reported again."""

    name: str
    is_silent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StockChanged:
    """A node's cached dataset versions or images changed; empty once its agent is disconnected."""

    name: str
    stock: Stock


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationChanged:
    """The allocation of a node changed."""

    allocation: Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChanged:
    """A session is new or changed."""

    session: Session


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRemoved:
    """A session was removed: it ended and was exported."""

    session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectChanged:
    """A project is new or changed, or the next period of its budget began."""

    project: Project


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRemoved:
    """A project was removed."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamQuotaChanged:
    """The quota of a competition's teams is new or changed, or teams merged."""

    quota: TeamQuota


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamQuotaRemoved:
    """A competition is over: its teams have no quota any more."""

    competition_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedChanged:
    """A project's use of its budget changed."""

    used: Used


@dataclass(frozen=True, slots=True, kw_only=True)
class PastChanged:
    """Recent use of accounts: GPUs on average, as of one instant; 0 for accounts not listed."""

    lately: Mapping[str, float]


Change = (
    NodeChanged
    | NodeRemoved
    | ContactChanged
    | StockChanged
    | AllocationChanged
    | SessionChanged
    | SessionRemoved
    | ProjectChanged
    | ProjectRemoved
    | TeamQuotaChanged
    | TeamQuotaRemoved
    | UsedChanged
    | PastChanged
)
