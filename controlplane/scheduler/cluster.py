"""The scheduler's model of free capacity and queued sessions: updated only by changes of the cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from controlplane.domain.changes import (
    AllocationChanged,
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
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.models import alternatives_of
from controlplane.domain.values import Allocation, Priority
from controlplane.scheduler.entitlement import Entitlements, claim_of, held_by
from controlplane.scheduler.fit import request_of
from controlplane.scheduler.fragmentation import Arrivals, Fragmentation, Shape
from controlplane.scheduler.locality import Locality
from controlplane.scheduler.moves import Moves
from controlplane.scheduler.node_index import NodeIndex
from controlplane.scheduler.preemption_candidates import Yielders
from controlplane.scheduler.preemption_policy import RULES, Rules
from controlplane.scheduler.queue_classes import Queue
from controlplane.scheduler.release_times import Ends
from controlplane.scheduler.reservations import Holding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from controlplane.domain.changes import Change
    from controlplane.domain.values import Node, Session


class Kept(NamedTuple):
    """Nodes that are kept for a session, and the victims that still have to leave them.

    `are_moved`: the victims resume at once elsewhere (see defragmentation.py).
    """

    nodes: tuple[str, ...]
    victims: set[str]
    are_moved: bool = False

    @property
    def words(self) -> str:
        """The explanation for the session."""
        count = len(self.victims)
        if not count:
            return "those that leave already make room for it"
        others = "one session" if count == 1 else f"{count} sessions"
        if self.are_moved:
            return f"{others} will move soon, to make room for it"
        return f"{others} will leave soon, to give way to it"


class Cluster:
    """Records and their indexes, without decisions.

    Attributes:
        rules: of preemption.
        revision: of the newest change.
        edits: counts changes of sessions, nodes, allocations, projects and team quotas.
        rooms: free capacity of each node.
        queue: waiting sessions.
        entitlements: use and limits of accounts.
        locality: cached data of nodes.
        arrivals: the mix of submitted requests.
        yielders: preemption candidates.
        ends: latest ends of running sessions.
        holding: reservations.
        kept: by session, the nodes on which others are preempted for it.
        moves: the places of moving sessions.
        started: sessions in a plan that is being committed.
        come: sessions queued since the last call of `newcomers`.
        unready: sessions that could not start yet, until their next change.
    """

    def __init__(self, rules: Rules = RULES) -> None:
        self.revision = 0
        self.edits = 0
        self.rules = rules
        self.rooms = NodeIndex()
        self.queue = Queue(self.rooms.shape_of)
        self.entitlements = Entitlements()
        self.locality = Locality(self.rooms)
        self.arrivals = Arrivals()
        self.yielders = Yielders(self.rooms, self.entitlements, rules)
        self.ends = Ends(self.rooms, self.entitlements.holder)
        self.holding = Holding(self.rooms, self.ends)
        self.kept: dict[str, Kept] = {}
        self.moves = Moves(self.rooms, self.entitlements)
        self.started: dict[str, Session] = {}
        self.come: list[str] = []
        self.unready: set[str] = set()
        self._highest: dict[str, Priority] = {}
        self._above: dict[str, Session] = {}
        """Sessions that requested a higher class than their project may have by now, as requested."""
        self._allocations: dict[str, Allocation] = {}
        self._silent: set[str] = set()

    def apply(self, changes: Iterable[Change], *, revision: int = 0) -> None:
        """Apply changes."""
        for change in changes:
            # Nearly all are of these two kinds, and an if costs less than a match.
            if isinstance(change, SessionChanged):
                self.take(self._counted(change.session))
            elif isinstance(change, AllocationChanged):
                self._allocate(change.allocation)
            else:
                self._apply(change)
        self.rooms.settle()
        self.revision = max(self.revision, revision)

    def _allocate(self, allocation: Allocation) -> None:
        self.edits += 1
        if allocation.replicas:
            self._allocations[allocation.node] = allocation
        else:
            self._allocations.pop(allocation.node, None)
        self.rooms.change(allocation)

    def _apply(self, change: Change) -> None:
        match change:
            case SessionRemoved(session_id=session_id):
                self._remove(session_id)
            case ProjectChanged() | ProjectRemoved() | UsedChanged() | PastChanged():
                self.entitlements.apply(change)
                # Use is updated all the time; a new period of a budget also changes its project.
                self.edits += isinstance(change, ProjectChanged | ProjectRemoved)
                if isinstance(change, ProjectChanged):
                    self._bound(change.project.name, change.project.most_priority)
                elif isinstance(change, ProjectRemoved):
                    self._bound(change.name, Priority.HIGH)
            case TeamQuotaChanged() | TeamQuotaRemoved():
                self.entitlements.apply(change)
                self.edits += 1
            case NodeChanged() | NodeRemoved() | ContactChanged() | StockChanged():
                self._apply_to_node(change)

    def _apply_to_node(
        self, change: NodeChanged | NodeRemoved | ContactChanged | StockChanged
    ) -> None:
        match change:
            case NodeChanged(node=node):
                self._set_node(node)
            case NodeRemoved(name=name):
                self.edits += 1
                self.rooms.remove(name)
                self.queue.reshape()
            case StockChanged(name=name, stock=stock):
                self.locality.set(name, stock)
            case ContactChanged(name=name, is_silent=is_silent):
                (self._silent.add if is_silent else self._silent.discard)(name)
                room = self.rooms.get(name)
                if room is not None and room.is_silent != is_silent:
                    self._set_node(room.node)

    def _bound(self, name: str, highest: Priority) -> None:
        """Limit the class of a project's sessions; a changed limit costs a pass over the queue."""
        if self._highest.get(name, Priority.HIGH) == highest:
            return
        self._highest[name] = highest
        if highest == Priority.HIGH:
            del self._highest[name]
        here = (*self.queue.sessions(), *self.entitlements.sessions(name))
        for session in {one.id: one for one in here if (one.project or one.owner) == name}.values():
            counted = self._counted(self._above.get(session.id, session))
            if counted != session:
                # Its reservation was for its former class.
                self.holding.drop(session.id)
                self.take(counted)

    def _counted(self, session: Session) -> Session:
        """Return the session in its effective class: the requested one, or its project's highest if that is lower."""
        if not (self._highest or self._above):
            return session
        highest = self._highest.get(session.project or session.owner)
        if highest is None or session.spec.priority <= highest:
            self._above.pop(session.id, None)
            return session
        self._above[session.id] = session
        return replace(session, spec=replace(session.spec, priority=highest))

    def is_lowered(self, session: Session) -> bool:
        """Return whether a session was lowered to the highest class of its project."""
        highest = self._highest.get(session.project or session.owner)
        return session.id in self._above and session.spec.priority == highest

    def take(self, session: Session) -> None:
        """Update a session: it waits, holds devices, or has ended."""
        self.edits += 1
        self.unready.discard(session.id)
        if session.state is SessionState.QUEUED:
            self.ends.heard(session.id)
            planned = self.started.get(session.id)
            if planned is not None and planned.attempt == session.attempt:
                # Its placement is being committed.
                self.started[session.id] = session
            else:
                self.started.pop(session.id, None)
                self.entitlements.release(session.id)
                self._leaves(session.id)
                if session.id not in self.queue:
                    self.come.append(session.id)
                    if not session.attempt:
                        self._learn(session)
                self.queue.add(session)
                self.moves.follow(session)
        elif session.state.holds_devices:
            self.ends.heard(session.id)
            if self.started.pop(session.id, None) is None:
                self.queue.remove(session.id)
            self.moves.follow(session)
            self.entitlements.hold(session, held_by(session))
            self.yielders.put(session)
        else:
            self._remove(session.id)

    def _remove(self, session_id: str) -> None:
        """Remove a session that neither waits nor holds anything."""
        self.edits += 1
        self.ends.heard(session_id)
        self.queue.remove(session_id)
        self.holding.drop(session_id)
        self.moves.release(session_id)
        self.started.pop(session_id, None)
        self._above.pop(session_id, None)
        self.unready.discard(session_id)
        self.entitlements.release(session_id)
        self._leaves(session_id)

    def put_off(self, session_id: str, until: float) -> None:
        """Postpone a queued session that cannot start yet, until Unix seconds `until`; nodes are not held for it."""
        session = self.queue.get(session_id)
        if session is not None:
            self.unready.add(session_id)
            self.queue.add(replace(session, not_before=until))

    def _learn(self, session: Session) -> None:
        """Add a new session to the mix of requests, by which rooms are scored."""
        claim = claim_of(request_of(session.owner, session.spec))
        count = session.spec.replica_count
        shape = Shape(
            session.spec.resources.gpu_thousandths,
            claim.cpu_thousandths // count,
            claim.memory_bytes // count,
            frozenset(alternatives_of(session.spec.gpu_model)) - {""},
        )
        mix = self.arrivals.mix
        self.arrivals.saw(shape, count)
        if self.arrivals.mix is not mix:
            self.rooms.score(Fragmentation(self.arrivals.mix))

    def _leaves(self, session_id: str) -> None:
        """Note that a session holds nothing any more, for sessions that wait for it to leave."""
        self.yielders.drop(session_id)
        for kept in self.kept.values():
            kept.victims.discard(session_id)

    def _set_node(self, node: Node) -> None:
        self.edits += 1
        allocation = self._allocations.get(node.name, Allocation(node=node.name))
        owners = self.rooms.owners
        self.rooms.set(node, allocation, is_silent=node.name in self._silent)
        if owners != self.rooms.owners:
            self.queue.reshape()

    def keep(self, session_id: str, kept: Kept) -> None:
        """Offer nodes to one session only."""
        self.kept[session_id] = kept
        for node in kept.nodes:
            self.rooms.keep(node, session_id)

    def let_go(self, session_id: str) -> None:
        """Offer the nodes kept for a session to all again."""
        for node in self.kept.pop(session_id).nodes:
            self.rooms.keep(node, "")

    def queued(self) -> Iterator[Session]:
        """Iterate over waiting sessions, unordered."""
        return self.queue.sessions()

    def nodes(self) -> list[str]:
        """List the names of all nodes."""
        return [room.node.name for room in self.rooms.known()]

    def projects(self) -> list[str]:
        """List the names of all projects with a record."""
        return self.entitlements.projects()

    def team_quotas(self) -> list[str]:
        """List the ids of competitions with a quota of teams."""
        return self.entitlements.teams.competitions()

    def newcomers(self) -> list[str]:
        """List sessions queued since the last call that still wait."""
        come = list(self.come)
        self.come.clear()
        return [one for one in come if one in self.queue]

    def lacks(self, change: Change) -> bool:
        """Return whether the record in a change differs from the known one."""
        match change:
            case NodeChanged(node=node):
                room = self.rooms.get(node.name)
                return room is None or room.node != node
            case AllocationChanged(allocation=allocation):
                known = self._allocations.get(allocation.node)
                return known != allocation and bool(known or allocation.replicas)
            case SessionChanged(session=session):
                is_here = self.queue.get(session.id) or self.started.get(session.id)
                # The place held for a moving session is charged to it while it waits, too.
                holds = is_here is None and self.entitlements.holds(session.id)
                return (session.state is SessionState.QUEUED, session.state.holds_devices) != (
                    is_here is not None,
                    holds,
                )
            case ProjectChanged() | ProjectRemoved() | TeamQuotaChanged() | TeamQuotaRemoved():
                return self.entitlements.lacks(change)
            case NodeRemoved(name=name):
                return self.rooms.get(name) is not None
        return isinstance(change, SessionRemoved) and change.session_id in self.queue
