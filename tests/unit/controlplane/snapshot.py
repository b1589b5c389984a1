"""ClusterSnapshot: a cluster as one plain immutable value, kept up by changes. What the index must agree with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from controlplane.domain.changes import (
    AllocationChanged,
    Change,
    ContactChanged,
    NodeChanged,
    NodeRemoved,
    PastChanged,
    ProjectChanged,
    ProjectRemoved,
    SessionChanged,
    SessionRemoved,
    StockChanged,
    TeamQuotaChanged,
    TeamQuotaRemoved,
    UsedChanged,
)
from controlplane.domain.free_resources import FreeResources, free_resources_of
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.plan import Plan
from controlplane.domain.values import (
    WHOLE_DEVICE,
    Allocation,
    Node,
    Project,
    Session,
    Stock,
    TeamQuota,
    Used,
)
from controlplane.scheduler import ClusterIndex, QueueQueries

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """The cluster at one revision.

    `queued` holds the sessions that wait, in order of submission; `allocations` those of nodes that
    are not (or no longer) known, too, so that the order in which changes arrive does not matter.
    `holding` has the sessions that are placed, `projects` and `used` are by name of the project; of a
    project with a budget and nothing in `used` it is not known yet. `lately` is what accounts held before,
    as `PastChanged` has it. `team_quotas` are by id of the competition. `stocks`, by node, is soft: agents tell of it, and no store keeps it.
    """

    revision: int = 0
    nodes: Mapping[str, FreeResources] = field(default_factory=lambda: MappingProxyType({}))
    allocations: Mapping[str, Allocation] = field(default_factory=lambda: MappingProxyType({}))
    silent: frozenset[str] = frozenset()
    stocks: Mapping[str, Stock] = field(default_factory=lambda: MappingProxyType({}))
    queued: Mapping[str, Session] = field(default_factory=lambda: MappingProxyType({}))
    holding: Mapping[str, Session] = field(default_factory=lambda: MappingProxyType({}))
    projects: Mapping[str, Project] = field(default_factory=lambda: MappingProxyType({}))
    used: Mapping[str, Used] = field(default_factory=lambda: MappingProxyType({}))
    team_quotas: Mapping[str, TeamQuota] = field(default_factory=lambda: MappingProxyType({}))
    lately: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    def apply(self, changes: Iterable[Change], *, revision: int = 0) -> ClusterSnapshot:
        """The snapshot after `changes`; itself when nothing in it differs.

        Costs a copy of the maps that change: give many changes at once.
        """
        draft = _Draft(self)
        for change in changes:
            draft.apply(change)
        return draft.finish(max(revision, self.revision))

    def __iter__(self) -> Iterator[Change]:
        """The changes that make it of nothing."""
        for name in self.silent:
            yield ContactChanged(name=name, is_silent=True)
        for allocation in self.allocations.values():
            yield AllocationChanged(allocation=allocation)
        for capacity in self.nodes.values():
            yield NodeChanged(node=capacity.node)
        for name, stock in self.stocks.items():
            yield StockChanged(name=name, stock=stock)
        for project in self.projects.values():
            yield ProjectChanged(project=project)
        for used in self.used.values():
            yield UsedChanged(used=used)
        for quota in self.team_quotas.values():
            yield TeamQuotaChanged(quota=quota)
        yield PastChanged(lately=self.lately)
        for session in (*self.holding.values(), *self.queued.values()):
            yield SessionChanged(session=session)


def schedule(snapshot: ClusterSnapshot, now: float) -> Plan:
    """The decision on a snapshot in one call, with why the others wait."""
    index = ClusterIndex.of(snapshot, revision=snapshot.revision)
    plan = index.plan(now)
    return replace(plan, deferrals=QueueQueries(index).deferrals(now))


def takes_sessions(capacity: FreeResources) -> bool:
    return not (capacity.is_silent or capacity.node.closed_by)


def whole_free_devices(capacity: FreeResources) -> int:
    return sum(1 for free in capacity.free.values() if free == WHOLE_DEVICE)


class _Draft:
    """A snapshot being changed: copies each map once, when it is first written."""

    def __init__(self, base: ClusterSnapshot) -> None:
        self._base = base
        self._nodes: dict[str, Node | None] = {}
        self._allocations: dict[str, Allocation] = {}
        self._silent = base.silent
        self._queued: dict[str, Session] | None = None
        self._touched: set[str] = set()
        self._holding: dict[str, Session | None] = {}
        self._projects: dict[str, Project | None] = {}
        self._used: dict[str, Used] = {}
        self._team_quotas: dict[str, TeamQuota | None] = {}
        self._lately = base.lately
        self._stocks: dict[str, Stock | None] = {}

    def apply(self, change: Change) -> None:
        match change:
            case NodeChanged(node=node):
                self._nodes[node.name] = node
                self._touched.add(node.name)
            case NodeRemoved(name=name):
                self._nodes[name] = None
                self._touched.add(name)
            case ContactChanged(name=name, is_silent=is_silent):
                self._silent = self._silent | {name} if is_silent else self._silent - {name}
                self._touched.add(name)
            case StockChanged(name=name, stock=stock):
                self._stocks[name] = stock if stock.things else None
            case AllocationChanged(allocation=allocation):
                self._allocations[allocation.node] = allocation
                self._touched.add(allocation.node)
            case SessionChanged(session=session):
                self._queue(session)
                self._holding[session.id] = session if session.state.holds_devices else None
            case SessionRemoved(session_id=session_id):
                self._unqueue(session_id)
                self._holding[session_id] = None
            case ProjectChanged() | ProjectRemoved() | UsedChanged():
                self._entitle(change)
            case TeamQuotaChanged(quota=quota):
                self._team_quotas[quota.competition_id] = quota
            case TeamQuotaRemoved(competition_id=competition_id):
                self._team_quotas[competition_id] = None
            case PastChanged(lately=lately):
                self._lately = lately

    def _entitle(self, change: ProjectChanged | ProjectRemoved | UsedChanged) -> None:
        match change:
            case ProjectChanged(project=project):
                self._projects[project.name] = project
            case ProjectRemoved(name=name):
                self._projects[name] = None
            case UsedChanged(used=used):
                self._used[used.project] = used

    def _queue(self, session: Session) -> None:
        if session.state is not SessionState.QUEUED:
            self._unqueue(session.id)
            return
        if self._queued is None:
            self._queued = dict(self._base.queued)
        self._queued[session.id] = session

    def _unqueue(self, session_id: str) -> None:
        if self._queued is None:
            if session_id not in self._base.queued:
                return
            self._queued = dict(self._base.queued)
        self._queued.pop(session_id, None)

    def finish(self, revision: int) -> ClusterSnapshot:
        snapshot = replace(self._base, revision=revision)
        if self._allocations:
            allocations = {**self._base.allocations, **self._allocations}
            allocations = {name: held for name, held in allocations.items() if held.replicas}
            snapshot = replace(snapshot, allocations=MappingProxyType(allocations))
        if self._touched:
            snapshot = replace(
                snapshot, silent=self._silent, nodes=MappingProxyType(self._capacities(snapshot))
            )
        if self._queued is not None:
            ordered = sorted(self._queued.values(), key=lambda s: (s.created_at, s.id))
            snapshot = replace(snapshot, queued=MappingProxyType({s.id: s for s in ordered}))
        return replace(
            snapshot,
            holding=_changed(snapshot.holding, self._holding),
            stocks=_changed(snapshot.stocks, self._stocks),
            projects=_changed(snapshot.projects, self._projects),
            used=_changed(snapshot.used, self._used),
            team_quotas=_changed(snapshot.team_quotas, self._team_quotas),
            lately=self._lately,
        )

    def _capacities(self, snapshot: ClusterSnapshot) -> dict[str, FreeResources]:
        capacities = dict(self._base.nodes)
        for name in sorted(self._touched):
            known = capacities.get(name)
            node = self._nodes.get(name, known.node if known else None)
            if node is None:
                capacities.pop(name, None)
                continue
            allocation = snapshot.allocations.get(name, Allocation(node=name))
            capacities[name] = free_resources_of(node, allocation, is_silent=name in self._silent)
        return capacities


def _changed(known: Mapping[str, T], changes: Mapping[str, T | None]) -> Mapping[str, T]:
    """A map after changes, of which None takes a key out; the same map when nothing differs."""
    if all(known.get(key) is value for key, value in changes.items()):
        return known
    return MappingProxyType(
        {key: one for key, one in {**known, **changes}.items() if one is not None}
    )
