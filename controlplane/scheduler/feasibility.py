"""Where a request fits now, best first: updated incrementally, never by a full scan."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush, nsmallest
from itertools import islice
from typing import TYPE_CHECKING

from controlplane.scheduler.eligibility import Eligibility, Rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from controlplane.domain.plan import ReplicaPlacement
    from controlplane.domain.values import Resources
    from controlplane.scheduler.eligibility import Choice
    from controlplane.scheduler.fit import Request
    from controlplane.scheduler.locality import Near
    from controlplane.scheduler.node_capacity import Alike, NodeCapacity, Order, Tie
    from controlplane.scheduler.node_index import NodeIndex

Entry = tuple[Rank, "Order", "Tie"]

_ACROSS = ""
"""In place of a pod: all similar rooms, in any pod."""


class Ranking:
    """Ties of rooms, best first; ties without rooms are skipped.

    Attributes:
        known: ranked ties, and unsuitable ones.
    """

    __slots__ = ("_heap", "known")

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self.known: set[Tie] = set()

    def add(self, rank: Rank, tie: Tie) -> None:
        """Rank a tie, once."""
        if tie not in self.known:
            self.known.add(tie)
            heappush(self._heap, (rank, tie.order, tie))

    def best(self) -> Tie | None:
        """Return the best tie with rooms."""
        heap = self._heap
        while heap:
            tie = heap[0][2]
            if tie.rooms:
                return tie
            heappop(heap)
            self.known.discard(tie)
        return None


class FeasibleNodes:
    """Rooms with space for one replica of a request."""

    def __init__(self, rooms: NodeIndex, request: Request) -> None:
        self._rooms = rooms
        self._request = request
        self._seen = -1
        self._least = request.whole_devices
        # The number of whole devices, for a request of any model.
        self._whole = 0 if request.avoids else request.whole_devices
        self._era = -1
        self.suits = Eligibility(rooms, request)
        self._clear()

    def _clear(self) -> None:
        self._ranking = Ranking()
        self._steps: dict[Tie, tuple[Tie, Resources]] = {}
        """By tie: a room's next tie after one replica, and the replica's resources."""

    def place(
        self, wanted: int, session_id: str, near: Near | None = None
    ) -> tuple[ReplicaPlacement, ...]:
        """Take one replica from the tightest room that holds it, of equal ones the nearest; () if none does."""
        rooms = self._rooms
        tie = self._best() if wanted == 1 else None
        if tie is None:
            return ()
        if self._era != rooms.era:
            self._era = rooms.era
            self._steps.clear()
        room = tie.first()
        if near is None and self._whole and not tie.is_mixed:
            step = self._steps.get(tie)
            after, resources = step or (None, self.suits.wanted(room))
            placed = room.take_whole(self._whole, resources, 0, session_id)
            rooms.note(room, after)
            if step is None:
                self._steps[tie] = room.tie, resources
        else:
            first = room
            if near is not None:
                room = near.room(first, self._request, self.suits)
            placed = self.suits.take(room, 0, session_id)
            rooms.note(room)
            if room is not first:
                placed = placed._replace(is_near_data=True)
        after = room.tie
        if self._era == rooms.era:
            # Nothing else has changed since the search for the best one.
            if after not in self._ranking.known:
                self._look(after)
            self._seen = rooms.revision
        return (placed,)

    def holding(self, most: int) -> Iterator[NodeCapacity]:
        """Yield only the best room that holds a replica; more are not needed."""
        tie = self._best() if most else None
        return iter(() if tie is None else (tie.first(),))

    def fits(self, wanted: int = 1) -> bool:
        """Return whether there is room for one."""
        return wanted == 1 and self._best() is not None

    def _best(self) -> Tie | None:
        rooms = self._rooms
        if self._seen != rooms.revision:
            if self._seen < rooms.lost:
                self._clear()
                for tie in rooms.ties():
                    self._look(tie)
            else:
                known, least = self._ranking.known, self._least
                for _, tie in rooms.changed[self._seen - rooms.lost :]:
                    # Mostly it is already known.
                    if tie.whole >= least and tie not in known:
                        self._look(tie)
            self._seen = rooms.revision
        return self._ranking.best()

    def _look(self, tie: Tie) -> None:
        """Rank a tie that got rooms."""
        ranking = self._ranking
        if tie in ranking.known or tie.whole < self._least or not tie.rooms:
            return
        count, rank = self.suits.of(tie)
        if count:
            ranking.add(rank, tie)
        else:
            ranking.known.add(tie)


class Group:
    """Rooms that one gang may combine, by how many replicas each holds."""

    __slots__ = ("alike", "by_count", "pod", "total")

    def __init__(self, pod: str, alike: Alike) -> None:
        self.pod = pod
        self.alike = alike
        self.total = 0
        self.by_count: dict[int, Ranking] = {}

    def fewest(self, wanted: int) -> Iterator[Choice]:
        """Choose the widest rooms first, and for the rest the tightest that holds it; the caller must take each."""
        while wanted:
            best = {count: tie for count, one in self.by_count.items() if (tie := one.best())}
            enough = [count for count in best if count >= wanted]
            count = min(enough) if enough else max(best)
            yield best[count].first(), min(count, wanted), False
            wanted -= min(count, wanted)


class FeasibleGangs:
    """Where several replicas fit together: inside one pod, else across pods."""

    def __init__(self, rooms: NodeIndex, request: Request) -> None:
        self._rooms = rooms
        self._request = request
        self._seen = -1
        self._least = request.whole_devices
        self.suits = Eligibility(rooms, request)
        self._clear()

    def _clear(self) -> None:
        self._held: dict[Tie, tuple[int, Rank, tuple[Group, ...]]] = {}
        self._groups: dict[tuple[str, Alike], Group] = {}
        self._pods: dict[int, dict[Group, None]] = {}
        self._across: list[Group] = []

    def place(
        self, wanted: int, session_id: str, near: Near | None = None
    ) -> tuple[ReplicaPlacement, ...]:
        """Take all replicas, or none if they do not fit together.

        From the smallest pod that holds them, so that large ones stay free; across pods if none does.
        """
        group = self._smallest(wanted)
        chosen: Iterable[Choice] = () if group is None else group.fewest(wanted)
        if near is not None:
            chosen = near.rooms(chosen, self._request, self.suits)
        return _take(self._rooms, self.suits, chosen, session_id)

    def fits(self, wanted: int) -> bool:
        """Whether there is room for so many replicas."""
        return self._smallest(wanted) is not None

    def holding(self, most: int) -> Iterator[NodeCapacity]:
        """Yield up to `most` rooms that hold a replica, widest first."""
        self._keep_up()
        held = [(-held[0], tie.order, tie) for tie, held in self._held.items() if held[0]]
        rooms = (
            tie.rooms[name] for _, _, tie in sorted(held) for name in nsmallest(most, tie.rooms)
        )
        return islice(rooms, most)

    def _smallest(self, wanted: int) -> Group | None:
        self._keep_up()
        totals = [total for total in self._pods if total >= wanted]
        groups: Iterable[Group] = self._pods[min(totals)] if totals else self._across
        enough = (group for group in groups if group.total >= wanted)
        return min(enough, key=lambda one: (one.total, one.pod, one.alike), default=None)

    def _keep_up(self) -> None:
        rooms = self._rooms
        if self._seen == rooms.revision:
            return
        moved: Counter[Tie] = Counter()
        if self._seen < rooms.lost:
            self._clear()
            for tie in rooms.ties():
                if tie.whole >= self._least:
                    moved[tie] = len(tie.rooms)
        else:
            least = self._least
            for before, after in rooms.changed[self._seen - rooms.lost :]:
                if before.whole >= least:
                    moved[before] -= 1
                if after.whole >= least:
                    moved[after] += 1
        for tie, count in moved.items():
            # A tie that rooms left and came back to may have been skipped meanwhile.
            if count or tie.rooms:
                self._add(tie, count)
        self._seen = rooms.revision

    def _add(self, tie: Tie, rooms: int) -> None:
        """Add `rooms`, which may be negative, to the number of rooms in a tie."""
        held = self._held.get(tie)
        if held is None:
            # If a room left a tie that was never seen, it also entered it since: both cancel out.
            count, rank = self.suits.of(tie)
            held = (count, rank, self._groups_of(tie.first()) if count else ())
            self._held[tie] = held
        count, rank, groups = held
        for group in groups:
            if group.pod == _ACROSS:
                group.total += rooms * count
            else:
                self._resize(group, group.total + rooms * count)
            if tie.rooms:
                group.by_count.setdefault(count, Ranking()).add(rank, tie)

    def _resize(self, pod: Group, total: int) -> None:
        level = self._pods.get(pod.total, {})
        level.pop(pod, None)
        if not level:
            self._pods.pop(pod.total, None)
        pod.total = total
        if total:
            self._pods.setdefault(total, {})[pod] = None

    def _groups_of(self, room: NodeCapacity) -> tuple[Group, Group]:
        alike = room.alike_for(self._request)
        return self._group(room.tie.state.near, alike), self._group(_ACROSS, alike)

    def _group(self, pod: str, alike: Alike) -> Group:
        group = self._groups.get((pod, alike))
        if group is None:
            group = self._groups[pod, alike] = Group(pod, alike)
            if pod == _ACROSS:
                self._across.append(group)
        return group


class FeasibleAvoiding:
    """The same for sessions that avoid nodes or devices: few, so each room is examined."""

    def __init__(self, rooms: NodeIndex, request: Request) -> None:
        self._rooms = rooms
        self._request = request
        self.suits = Eligibility(rooms, request)

    def place(
        self, wanted: int, session_id: str, near: Near | None = None
    ) -> tuple[ReplicaPlacement, ...]:
        """Take all replicas, or none, as `FeasibleGangs`; data locality is ignored."""
        del near
        return _take(self._rooms, self.suits, self._choose(wanted), session_id)

    def _choose(self, wanted: int) -> Iterator[Choice]:
        groups: dict[tuple[str, Alike], list[tuple[int, NodeCapacity]]] = {}
        for room in self._rooms:
            count = room.holds(self._request) if room.is_offered else 0
            if count:
                alike = room.alike_for(self._request)
                for near in (room.tie.state.near, _ACROSS):
                    groups.setdefault((near, alike), []).append((count, room))
        enough = [
            (near == _ACROSS, total, near, alike)
            for (near, alike), held in groups.items()
            if (total := sum(count for count, _ in held)) >= wanted
        ]
        if enough:
            *_, near, alike = min(enough)
            yield from self._fewest(groups[near, alike], wanted)

    def holding(self, most: int) -> Iterator[NodeCapacity]:
        """Yield up to `most` rooms that hold a replica."""
        return islice((room for room in self._rooms if room.holds(self._request)), most)

    def _fewest(self, held: list[tuple[int, NodeCapacity]], wanted: int) -> Iterator[Choice]:
        left = sorted(held, key=lambda one: -one[0])
        while wanted:
            # The rooms are tightest first, and sorting is stable.
            enough = [one for one in left if one[0] >= wanted]
            chosen = min(enough, key=lambda one: one[0]) if enough else left[0]
            left.remove(chosen)
            count, room = chosen
            yield room, min(count, wanted), False
            wanted -= min(count, wanted)

    def fits(self, wanted: int) -> bool:
        """Whether there is room for so many replicas."""
        return next(self._choose(wanted), None) is not None


def _take(
    rooms: NodeIndex, suits: Eligibility, chosen: Iterable[Choice], session_id: str
) -> tuple[ReplicaPlacement, ...]:
    """Take the replicas room by room, so that each choice sees the remaining capacity."""
    placed: list[ReplicaPlacement] = []
    for room, count, is_near_data in chosen:
        for _ in range(count):
            taken = suits.take(room, len(placed), session_id)
            placed.append(taken._replace(is_near_data=True) if is_near_data else taken)
        rooms.note(room)
    return tuple(placed)


AnyFeasible = FeasibleNodes | FeasibleGangs | FeasibleAvoiding


def fits_of(rooms: NodeIndex, request: Request) -> AnyFeasible:
    """Return the cheapest index for a request."""
    if request.avoids:
        return FeasibleAvoiding(rooms, request)
    return (
        FeasibleNodes(rooms, request)
        if request.replica_count == 1
        else FeasibleGangs(rooms, request)
    )
