"""The rooms of all nodes, those in equal states together: mutable, indexed, private to the scheduler."""

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
"""Of nodes; `NodeIndex.set` hides the type of that name from what follows it there."""
_MOST_UNTOLD = 10_000
"""Changes after which followers are told, whether they ask or not."""


class NodeIndex:
    """The rooms of all nodes, and for each request that is asked about where it fits.

    Attributes:
        revision: grows with every change of a room that is offered to everybody, or was before it.
        changed: which state rooms came from, and into which, for those that keep up with them.
        lost: how many entries of `changed` were forgotten: those kept lead from there to `revision`.
        scores: what makes of equal rooms some better; None before enough requests were seen.
        gpus: of all nodes, also of those that take no sessions.
        edits: grows with every change of a room, also of one that stays as good as it was.
        withdrawn_edits: grows when something else is free in a room that takes sessions, but is held or kept.
        era: grows when states were dropped in which no room was: a room that comes into one is in another tie.
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
        """Those that take sessions, tightest first."""
        taking = (room for room in self._by_name.values() if room.is_open)
        return iter(sorted(taking, key=lambda room: room.tightness))

    def __len__(self) -> int:
        return len(self._by_name)

    def known(self) -> Iterable[NodeCapacity]:
        """The rooms of all nodes, also of those that take no sessions."""
        return self._by_name.values()

    def get(self, node: str) -> NodeCapacity | None:
        """The room of a node."""
        return self._by_name.get(node)

    def set(self, node: Node, allocation: Allocation, *, is_silent: bool) -> None:
        """Take what a node is, what it is to run, and whether it was heard."""
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
        """A node was taken out of the cluster."""
        room = self._by_name.pop(node, None)
        if room is not None:
            self._own(room.node, -1)
            self.gpus -= len(room.node.devices)
            room.is_open = False
            self.note(room)

    def change(self, allocation: Allocation) -> None:
        """What a node is to run changed; `settle` has to follow, once for many of them."""
        room = self._by_name.get(allocation.node)
        if room is not None:
            self._untold.append(room.name)
            if room.change(allocation):
                self._unnoted[room.name] = room

    def settle(self) -> None:
        """All changes that belong together were told: each room that differs is looked at once."""
        for room in self._unnoted.values():
            self.note(room)
        self._unnoted.clear()
        if len(self._untold) > _MOST_UNTOLD:
            self.tell()

    def put(self, placed: ReplicaPlacement, session_id: str) -> None:
        """Take for a session once more what was given back."""
        room = self._by_name.get(placed.node)
        if room is not None:
            room.put(placed, session_id)
            self.note(room)

    def drop(self, node: str, session_id: str) -> None:
        """Give back what was taken for a session there and was not committed."""
        room = self._by_name.get(node)
        if room is not None and room.drop(session_id):
            self.note(room)

    def score(self, scores: Fragmentation | None) -> None:
        """Rate rooms in another way from now on: what was ordered by the former is stale."""
        self.scores = scores
        self.revision += 1
        self.lost = self.revision
        self.changed.clear()

    def keep(self, node: str, session_id: str) -> None:
        """Offer a room to nobody but this session; "": to everybody again."""
        room = self._by_name.get(node)
        if room is not None and room.keeper != session_id:
            room.keeper = session_id
            self.note(room)

    def promise(self, node: str, session_id: str) -> None:
        """Offer a room to those alone who do not delay this session; "": to everybody again."""
        room = self._by_name.get(node)
        if room is not None and room.promised != session_id:
            room.promised = session_id
            self.note(room)

    def ties(self) -> Iterable[Tie]:
        """The states in which rooms are."""
        return [tie for tie in self._ties.values() if tie.rooms]

    def follow(self) -> Names:
        """A set to which `tell` adds each node whose room changes, or what is to run there; its holder empties it."""
        followed = Names()
        self._followers.append(followed)
        return followed

    def tell(self) -> None:
        """Let those that follow know of what has changed."""
        for names in self._followers:
            names.update(self._untold)
        self._untold.clear()

    def note(self, room: NodeCapacity, tie: Tie | None = None) -> None:
        """A room is another one than before; `tie` is where it is now, if that is known."""
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
        """A room that is held or kept is in no state that others look at; but whom it is for may fit now."""
        state = room.state
        if self._withdrawn.get(room.name) != state:
            self._withdrawn[room.name] = state
            self.withdrawn_edits += 1

    def _forget(self) -> None:
        """Begin anew with what changed, and drop the states in which no room is any more."""
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
        """The request without what makes no difference here: who asks, where no node looks at that."""
        return request if request.owner in self._owners else request._replace(owner=_ANYBODY)

    @property
    def owners(self) -> frozenset[str]:
        """Those whose sessions alone some node takes."""
        return frozenset(self._owners)

    def _own(self, node: Node, count: int) -> None:
        if owner_words(node):
            self._owners[node.owner] += count
            if not self._owners[node.owner]:
                del self._owners[node.owner]

    def _kind_of(self, node: Node) -> int:
        """The number of all that placing does not change; equal for nodes that differ in name alone."""
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
"""No user: no node is theirs."""


def is_torn_now(ties: Iterable[Tie], request: Request) -> bool:
    """Whether the gang would fit now if some of its replicas might run in containers and others not."""
    held = Counter[tuple[str, str]]()
    for tie in ties:
        model, network, _ = tie.first().alike_for(request)
        held[model, network] += tie.first().holds(request) * len(tie.rooms)
    return max(held.values(), default=0) >= request.replica_count


def most_together(ties: Iterable[Tie], request: Request) -> int:
    """Replicas that one gang could have now."""
    held = Counter[Alike]()
    for tie in ties:
        held[tie.first().alike_for(request)] += tie.first().holds(request) * len(tie.rooms)
    return max(held.values(), default=0)
