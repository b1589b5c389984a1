"""The rooms of all nodes, grouped by equal states: mutable, indexed, private to the scheduler."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from controlplane.domain.node_availability import owner_words
from controlplane.domain.values import Allocation, Node
from controlplane.scheduler.fit import (
    Request,
)
from controlplane.scheduler.fragmentation import Fragmentation
from controlplane.scheduler.node_capacity import (
    CLOSED,
    LEAST_KEPT,
    Alike,
    NodeCapacity,
    RoomState,
    Tie,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from controlplane.domain.plan import ReplicaPlacement


Names = set[str]
"""Names of nodes; an alias, since `NodeIndex.set` hides the type `set` from later methods."""
_MOST_UNTOLD = 10_000
"""Pending changes after which followers are notified without a request."""


class NodeIndex:
    """The rooms of all nodes, by state.

    Attributes:
        revision: grows with every change of a room that is offered to all, or was before it.
        changed: old and new state of changed rooms, for incremental readers.
        lost: number of dropped entries of `changed`: the remaining ones lead from there to `revision`.
        scores: ranks equal rooms; None until enough requests were seen.
        gpus: of all nodes, including those that accept no sessions.
        edits: grows with every change of a room, even if its state stays equal.
        withdrawn_edits: grows when free capacity changes in an open room that is held or kept.
        era: grows when states without rooms were dropped: a room that returns to one is in another tie.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, NodeCapacity] = {}
        self._kinds: dict[tuple[object, ...], int] = {}
        self._kind_orders: list[str] = []
        self._owners: Counter[str] = Counter()
        self._ties: dict[RoomState, Tie] = {}
        self._numbers: dict[RoomState, int] = {}
        self._next_number = 0
        self.revision = 0
        self.changed: list[tuple[Tie, Tie]] = []
        self.lost = 0
        self.edits = 0
        self.withdrawn_edits = 0
        self._withdrawn: dict[str, RoomState] = {}
        self.gpus = 0
        self.era = 0
        self.scores: Fragmentation | None = None
        self._most_changed = LEAST_KEPT
        self._unnoted: dict[str, NodeCapacity] = {}
        self._followers: list[Names] = []
        self._untold: list[str] = []

    def __iter__(self) -> Iterator[NodeCapacity]:
        """Iterate over rooms that accept sessions, tightest first."""
        taking = (room for room in self._by_name.values() if room.is_open)
        return iter(sorted(taking, key=lambda room: room.tightness))

    def __len__(self) -> int:
        return len(self._by_name)

    def known(self) -> Iterable[NodeCapacity]:
        """Return the rooms of all nodes, including those that accept no sessions."""
        return self._by_name.values()

    def get(self, node: str) -> NodeCapacity | None:
        """Return the room of a node, if known."""
        return self._by_name.get(node)

    def set(self, node: Node, allocation: Allocation, *, is_silent: bool) -> None:
        """Update a node's record, allocation and silence."""
        room = self._by_name.get(node.name)
        kind = self._kind_of(node)
        if room is None:
            room = self._by_name[node.name] = NodeCapacity(
                node, allocation, is_silent=is_silent, kind=kind
            )
        else:
            self._own(room.node, -1)
            self.gpus -= len(room.node.devices)
            room.set(node, allocation, is_silent=is_silent, kind=kind)
        self._own(node, 1)
        self.gpus += len(node.devices)
        self.note(room)

    def remove(self, node: str) -> None:
        """Remove a node."""
        room = self._by_name.pop(node, None)
        if room is not None:
            self._own(room.node, -1)
            self.gpus -= len(room.node.devices)
            room.is_open = False
            self.note(room)

    def change(self, allocation: Allocation) -> None:
        """Update a node's allocation; call `settle` after a batch of them."""
        room = self._by_name.get(allocation.node)
        if room is not None:
            self._untold.append(room.name)
            if room.change(allocation):
                self._unnoted[room.name] = room

    def settle(self) -> None:
        """Complete a batch of changes: reindex each changed room once."""
        for room in self._unnoted.values():
            self.note(room)
        self._unnoted.clear()
        if len(self._untold) > _MOST_UNTOLD:
            self.tell()

    def put(self, placed: ReplicaPlacement, session_id: str) -> None:
        """Take a dropped placement for a session again."""
        room = self._by_name.get(placed.node)
        if room is not None:
            room.put(placed, session_id)
            self.note(room)

    def drop(self, node: str, session_id: str) -> None:
        """Release an uncommitted placement of a session on a node."""
        room = self._by_name.get(node)
        if room is not None and room.drop(session_id):
            self.note(room)

    def score(self, scores: Fragmentation | None) -> None:
        """Replace the scores: orders by the former ones become stale."""
        self.scores = scores
        self.revision += 1
        self.lost = self.revision
        self.changed.clear()

    def keep(self, node: str, session_id: str) -> None:
        """Offer a room to this session only; "": to all again."""
        room = self._by_name.get(node)
        if room is not None and room.keeper != session_id:
            room.keeper = session_id
            self.note(room)

    def promise(self, node: str, session_id: str) -> None:
        """Offer a room only to sessions that do not delay this one; "": to all again."""
        room = self._by_name.get(node)
        if room is not None and room.promised != session_id:
            room.promised = session_id
            self.note(room)

    def ties(self) -> Iterable[Tie]:
        """List the states that have rooms."""
        return [tie for tie in self._ties.values() if tie.rooms]

    def follow(self) -> Names:
        """Return a set to which `tell` adds nodes with a changed room or allocation; the caller empties it."""
        followed = Names()
        self._followers.append(followed)
        return followed

    def tell(self) -> None:
        """Notify followers of changed nodes."""
        for names in self._followers:
            names.update(self._untold)
        self._untold.clear()

    def note(self, room: NodeCapacity, tie: Tie | None = None) -> None:
        """Reindex a changed room; `tie`: its new state, if known."""
        self.edits += 1
        name, before = room.name, room.tie
        self._untold.append(name)
        if tie is None:
            tie = self._tie_of(room) if room.is_offered else CLOSED
        if tie is CLOSED and room.is_open:
            self._note_withdrawn(room)
        elif self._withdrawn:
            self._withdrawn.pop(name, None)
        if tie is before:
            return
        before.rooms.pop(name, None)
        room.tie = tie
        if tie is not CLOSED:
            tie.add(name, room)
        self.changed.append((before, tie))
        self.revision = revision = self.revision + 1
        if revision - self.lost > self._most_changed:
            self._forget()

    def _note_withdrawn(self, room: NodeCapacity) -> None:
        """Count a change of a held or kept room: it is in no shared state, but its session may fit now."""
        state = room.state
        if self._withdrawn.get(room.name) != state:
            self._withdrawn[room.name] = state
            self.withdrawn_edits += 1

    def _forget(self) -> None:
        """Clear `changed`, and drop the states without rooms."""
        self.lost = self.revision
        self.changed.clear()
        self._most_changed = 4 * len(self._by_name) + LEAST_KEPT
        self._ties = {state: one for state, one in self._ties.items() if one.rooms}
        left = {one.alike for one in self._ties.values()}
        self._numbers = {state: one for state, one in self._numbers.items() if one in left}
        self.era += 1

    def _tie_of(self, room: NodeCapacity) -> Tie:
        state = room.state
        tie = self._ties.get(state)
        if tie is None:
            order = (self._kind_orders[room.kind], *state[1:])
            tie = self._ties[state] = Tie(state, order, self._number_of(state))
        return tie

    def _number_of(self, state: RoomState) -> int:
        anywhere = state._replace(near="")
        number = self._numbers.get(anywhere)
        if number is None:
            number = self._numbers[anywhere] = self._next_number
            self._next_number += 1
        return number

    def shape_of(self, request: Request) -> Request:
        """Return the request without irrelevant fields: the owner, unless some node depends on it."""
        return request if request.owner in self._owners else request._replace(owner=_ANYBODY)

    @property
    def owners(self) -> frozenset[str]:
        """Users with a node that accepts their sessions only."""
        return frozenset(self._owners)

    def _own(self, node: Node, count: int) -> None:
        if owner_words(node):
            self._owners[node.owner] += count
            if not self._owners[node.owner]:
                del self._owners[node.owner]

    def _kind_of(self, node: Node) -> int:
        """Number a node's properties that placements do not change; equal for nodes that differ only in name."""
        key = (
            tuple((one.model, bool(one.withheld), bool(one.parent_uuid)) for one in node.devices),
            node.capacity,
            node.isolation,
            node.gang_network,
            node.networks,
            node.shared_roots,
            node.builds_conda,
            node.data_bytes,
            node.owner if owner_words(node) else "",
        )
        kind = self._kinds.setdefault(key, len(self._kinds))
        if kind == len(self._kind_orders):
            self._kind_orders.append(repr(key))
        return kind


_ANYBODY = "\0"
"""No user: owns no node."""


def is_torn_now(ties: Iterable[Tie], request: Request) -> bool:
    """Return whether the gang would fit now if only some of its replicas ran in containers."""
    held = Counter[tuple[str, str]]()
    for tie in ties:
        model, network, _ = tie.first().alike_for(request)
        held[model, network] += tie.first().holds(request) * len(tie.rooms)
    return max(held.values(), default=0) >= request.replica_count


def most_together(ties: Iterable[Tie], request: Request) -> int:
    """Return the maximum number of replicas of one gang now."""
    held = Counter[Alike]()
    for tie in ties:
        held[tie.first().alike_for(request)] += tie.first().holds(request) * len(tie.rooms)
    return max(held.values(), default=0)
