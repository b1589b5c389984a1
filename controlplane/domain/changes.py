"""What may change in a cluster, as one change after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.domain.values import (
    Allocation,
    Node,
    Project,
    Session,
    Stock,
    Used,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanged:
    """A node registered, or changed what it is."""

    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRemoved:
    """A node was taken out of the cluster."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactChanged:
    """A node fell silent, or was heard again."""

    name: str
    is_silent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StockChanged:
    """A node has other dataset versions or images than before; nothing once its agent is not connected."""

    name: str
    stock: Stock


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationChanged:
    """What a node is to run changed."""

    allocation: Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChanged:
    """A session is new or changed."""

    session: Session


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRemoved:
    """A session left: it ended and was exported."""

    session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectChanged:
    """A project is new or changed, or a further period of its budget began."""

    project: Project


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRemoved:
    """A project is no more."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedChanged:
    """What a project has used of its budget."""

    used: Used


@dataclass(frozen=True, slots=True, kw_only=True)
class PastChanged:
    """What accounts held lately: GPUs on average, as of one instant; of those left out nothing."""

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
    | UsedChanged
    | PastChanged
)
