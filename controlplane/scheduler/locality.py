"""Data locality: among equally good rooms, prefer the one with the least to fetch.

The 2018 paper (3.2.1) prefers nodes that hold the data. Here locality only breaks ties: it compares rooms that are
equal in their GPUs for best fit, by seconds: missing bytes over the node's measured bandwidth. There is no search
for a session whose data no node has, and few nodes are examined for any other.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from typing import TYPE_CHECKING, Final

from controlplane.domain.values import Stock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from controlplane.domain.values import SessionSpec
    from controlplane.scheduler.eligibility import Choice, Eligibility
    from controlplane.scheduler.fit import Request
    from controlplane.scheduler.node_capacity import NodeCapacity
    from controlplane.scheduler.node_index import NodeIndex

ASSUMED_BYTES_PER_S: Final = 100e6
"""Rate of a node that has fetched nothing yet: most of 1 Gbit/s."""
MOST_LOOKED_AT: Final = 32
"""Maximum number of nodes with a thing that are examined for one replica."""
_NOTHING: Final = Stock()


class Locality:
    """Cached things of nodes, as reported by their agents.

    Args:
        rooms: of all nodes.
    """

    def __init__(self, rooms: NodeIndex) -> None:
        self.rooms = rooms
        self._stocks: dict[str, Stock] = {}
        self._holders: dict[str, Holders] = {}

    def __bool__(self) -> bool:
        return bool(self._stocks)

    def set(self, node: str, stock: Stock) -> None:
        """Replace the things of a node."""
        before = self._stocks.pop(node, _NOTHING).things
        if stock.things:
            self._stocks[node] = stock
        for thing, size in before.items():
            if stock.things.get(thing) != size:
                self._holders[thing].remove(node, size)
                if not self._holders[thing].nodes:
                    del self._holders[thing]
        for thing, size in stock.things.items():
            if before.get(thing) != size:
                self._holders.setdefault(thing, Holders()).add(node, size)

    def nearest_to(self, spec: SessionSpec) -> Near | None:
        """Return the locations of a session's data; None if no node has any."""
        needs = [one.digest for one in spec.datasets if not one.streamed]
        if spec.image:
            needs.append(whole_reference(spec.image))
        wanted = {one: known for one in needs if (known := self._holders.get(one))}
        return Near(self, wanted) if wanted else None

    def seconds(self, node: str, wanted: Mapping[str, Holders]) -> float:
        """Return how long a node would fetch the missing ones of these things."""
        stock = self._stocks.get(node, _NOTHING)
        missing = sum(known.size for thing, known in wanted.items() if thing not in stock.things)
        return missing / (stock.bytes_per_s or ASSUMED_BYTES_PER_S)


class Near:
    """The locations of a session's data, used while its rooms are chosen."""

    __slots__ = ("_locality", "_wanted")

    def __init__(self, locality: Locality, wanted: Mapping[str, Holders]) -> None:
        self._locality = locality
        self._wanted = wanted

    def room(self, room: NodeCapacity, request: Request, suits: Eligibility) -> NodeCapacity:
        """Return the room with the least to fetch among those as good as `room`; itself if no other has less.

        Deterministic for equal rooms and stocks.
        """
        locality, wanted = self._locality, self._wanted
        best, least, whole = room, locality.seconds(room.name, wanted), room.tie.whole
        for name in self._with_some(room.name) if least else ():
            other = locality.rooms.get(name)
            # The cheapest test first: most rooms differ in this.
            if other is None or other.tie.whole != whole:
                continue
            if not _is_as_good(other, room, request, suits):
                continue
            if (seconds := locality.seconds(name, wanted)) < least:
                best, least = other, seconds
                if not least:
                    break
        return best

    def rooms(
        self, chosen: Iterable[Choice], request: Request, suits: Eligibility
    ) -> Iterator[Choice]:
        """Do the same for each room of a gang."""
        for room, count, _ in chosen:
            best = self.room(room, request, suits)
            yield best, count, best is not room

    def _with_some(self, since: str) -> Iterator[str]:
        """Yield nodes with some of it: by name from `since` on, the order in which rooms of one state are taken."""
        for known in self._wanted.values():
            at = bisect_left(known.nodes, since)
            ahead = known.nodes[at : at + MOST_LOOKED_AT]
            yield from ahead
            yield from known.nodes[: min(at, MOST_LOOKED_AT - len(ahead))]


class Holders:
    """The nodes that cache one thing.

    Attributes:
        nodes: their names, in order.
    """

    __slots__ = ("_sizes", "nodes")

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self._sizes: Counter[int] = Counter()

    def add(self, node: str, size: int) -> None:
        """Add a node with the size that it reports."""
        insort(self.nodes, node)
        self._sizes[size] += 1

    def remove(self, node: str, size: int) -> None:
        """Remove a node that no longer has it, or reports another size."""
        del self.nodes[bisect_left(self.nodes, node)]
        self._sizes[size] -= 1
        if not self._sizes[size]:
            del self._sizes[size]

    @property
    def size(self) -> int:
        """Bytes, as most nodes report; in a tie the largest."""
        return max(self._sizes, key=lambda size: (self._sizes[size], size))


def whole_reference(image: str) -> str:
    """Return the reference of an image with its tag, by default "latest"."""
    is_whole = "@" in image or ":" in image.rpartition("/")[2]
    return image if is_whole else f"{image}:latest"


def _is_as_good(
    other: NodeCapacity, room: NodeCapacity, request: Request, suits: Eligibility
) -> bool:
    """Return whether a room differs from the best one only in cores, memory, and the node itself.

    Score and free GPUs are equal, device by device; for a gang also the pod and the number of replicas,
    so that it gets no more nodes or pods.
    """
    mine, others = room.tie, other.tie
    if mine is others:
        return True
    if mine.state.gpus != others.state.gpus:
        return False
    if room.alike_for(request) != other.alike_for(request):
        return False
    (mine_holds, rank), (others_hold, other_rank) = suits.of(mine), suits.of(others)
    if not others_hold or rank[:-2] != other_rank[:-2]:
        return False
    is_alone = request.replica_count == 1
    return is_alone or (mine_holds == others_hold and _pod_of(room) == _pod_of(other))


def _pod_of(room: NodeCapacity) -> str:
    return room.node.pod
