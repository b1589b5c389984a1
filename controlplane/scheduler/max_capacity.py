"""Capacity of the empty nodes, and the nearest possible requests for one that exceeds it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.models import is_model, words_of
from controlplane.domain.node_availability import owner_words
from controlplane.domain.values import HOST_NETWORK, NO_NETWORK, WHOLE_DEVICE, Isolation
from controlplane.scheduler.fit import OWNERS_ONLY, Request, refusal
from controlplane.scheduler.node_capacity import Alike, NodeCapacity, empty_room

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from controlplane.domain.values import Node

_MOST_NAMES: Final = 3
"""Number of similar pods and models to try."""
_GB, _MB = 10**9, 10**6
_WHOLE_FROM_BYTES: Final = 100 * _GB


class Kind(NamedTuple):
    """Nodes with equal capacity, and the empty room of the first by name."""

    room: NodeCapacity
    nodes: tuple[Node, ...]


class Together(NamedTuple):
    """Maximum replicas of one gang, and the kinds of nodes that hold them."""

    replicas: int
    kinds: tuple[Kind, ...]


class _Shape(NamedTuple):
    """Whole devices of a node: for replicas with one and with several, and the maximum number of replicas."""

    alike: Alike
    one: int
    several: int
    most: int


class MaxCapacity:
    """All nodes without sessions, including drained and silent ones and withheld devices.

    Nodes that differ only in name are grouped.

    Args:
        apart: nodes, and devices by uuid, that are not to be grouped.
    """

    def __init__(self, nodes: Iterable[Node], *, apart: frozenset[str] = frozenset()) -> None:
        alike: dict[tuple[object, ...], list[Node]] = {}
        for node in nodes:
            is_apart = apart and not apart.isdisjoint({node.name, *(d.uuid for d in node.devices)})
            key = (node.name,) if is_apart else _kind_of(node)
            alike.setdefault(key, []).append(node)
        groups = [tuple(sorted(group, key=lambda node: node.name)) for group in alike.values()]
        self._kinds = [Kind(empty_room(group[0]), group) for group in groups]

    @property
    def nodes(self) -> list[Node]:
        """All nodes, unordered."""
        return [node for kind in self._kinds for node in kind.nodes]

    def fits(self, request: Request) -> bool:
        """Return whether the whole gang would fit: examines only as many nodes as needed."""
        held: dict[Alike, int] = {}
        for room, nodes in self._kinds:
            if replicas := room.holds(request) * len(nodes):
                alike = room.alike_for(request)
                held[alike] = held.get(alike, 0) + replicas
                if held[alike] >= request.replica_count:
                    return True
        return False

    def is_torn(self, request: Request) -> bool:
        """Return whether a gang would fit if only some of its replicas ran in containers."""
        held = Counter[tuple[str, str]]()
        for room, nodes in self._kinds:
            model, network, _ = room.alike_for(request)
            held[model, network] += room.holds(request) * len(nodes)
        return max(held.values(), default=0) >= request.replica_count > 1

    def without_network(self, request: Request) -> list[Node]:
        """Return the nodes without a network for gangs, if this gang would fit with one; else none."""
        shut = [kind for kind in self._kinds if kind.room.node.gang_network == NO_NETWORK]
        if request.replica_count == 1 or not shut or self.fits(request):
            return []
        nodes = [node for kind in shut for node in kind.nodes]
        others = [kind for kind in self._kinds if kind not in shut]
        opened = MaxCapacity(replace(node, gang_network=HOST_NETWORK) for node in nodes)
        opened._kinds += others
        return nodes if opened.fits(request) else []

    def taking(self, request: Request) -> list[Kind]:
        """Return the nodes that accept such sessions, large enough or not."""
        return [kind for kind in self._kinds if not refusal(kind.room.node, request)]

    def refusals(self, request: Request) -> Counter[str]:
        """Count the nodes by refusal; "" is none."""
        counts = Counter[str]()
        for room, nodes in self._kinds:
            counts[refusal(room.node, request)] += len(nodes)
        return counts

    def together(self, request: Request) -> Together:
        """Return the maximum of one gang for this request."""
        held: dict[Alike, int] = {}
        kinds: dict[Alike, list[Kind]] = {}
        for kind in self._kinds:
            if replicas := kind.room.holds(request) * len(kind.nodes):
                alike = kind.room.alike_for(request)
                held[alike] = held.get(alike, 0) + replicas
                kinds.setdefault(alike, []).append(kind)
        if not held:
            return Together(0, ())
        # Among equal ones the first by name, whatever the order of the nodes.
        best = max(held, key=lambda alike: (held[alike], alike))
        return Together(held[best], tuple(kinds[best]))

    def pods(self) -> Counter[str]:
        """Count nodes by pod."""
        counts = Counter[str]()
        for room, nodes in self._kinds:
            if room.node.pod:
                counts[room.node.pod] += len(nodes)
        return counts

    def models(self, pod: str = "") -> Counter[str]:
        """Count nodes by GPU model, in a pod or in all."""
        counts = Counter[str]()
        for room, nodes in self._kinds:
            if pod in ("", room.node.pod):
                counts.update({one: len(nodes) for one in set(room.models.values()) if one})
        return counts

    def nearest(self, request: Request) -> tuple[Request, ...]:
        """Return possible requests in place of an impossible one, nearest first; none if there are none.

        Smaller or fewer replicas in the same place, with the most GPUs in all, and then the largest replicas; and
        the same replicas elsewhere: in another pod, on another model, in any network. If neither is possible,
        smaller ones elsewhere, then any without containers, and last without a GPU.
        """
        here = self._smaller(request)
        elsewhere = [
            next((one for one in loosened if self.fits(one)), None)
            for loosened in self._loosened(request)
        ]
        found = [one for one in (here, *elsewhere) if one is not None]
        if not found:
            found = list(self._last(request))[:1]
        return tuple(dict.fromkeys(found))

    def _last(self, request: Request) -> Iterator[Request]:
        anywhere = request._replace(pod="", gpu_model="", network=None)
        loosened = [one for way in self._loosened(request) for one in way]
        kept = [request, *loosened, anywhere]
        bare = [one._replace(in_container=False) for one in kept if one.in_container]
        without = anywhere._replace(gpu_thousandths=0, in_container=False)
        for one in (*kept, *bare, without):
            if smaller := self._smaller(one):
                yield smaller

    def _loosened(self, request: Request) -> list[list[Request]]:
        """Return the request in other pods, on other models (similar names first, any last), and in any network."""
        ways = []
        if request.pod:
            pods = self.pods()
            del pods[request.pod]
            names = [*_likest(request.pod, pods), ""]
            ways.append([request._replace(pod=name) for name in names])
        if request.gpu_model:
            models = self.models(request.pod)
            for model in [one for one in models if is_model(one, request.gpu_model)]:
                del models[model]
            names = [*_likest(request.gpu_model, models), ""]
            ways.append([request._replace(gpu_model=name) for name in names])
        if request.network:
            ways.append([request._replace(network=None)])
        return ways

    def _smaller(self, request: Request) -> Request | None:
        """Return the largest part of the request that fits in its place: fewer replicas, or smaller ones."""
        found: list[Request | None] = []
        # Nodes without a network for gangs take single replicas.
        for count in dict.fromkeys((request.replica_count, 1)):
            whole = request._replace(replica_count=count)
            found.append(self._most(whole))
            if (whole.cpu_thousandths or whole.memory_bytes) and (cut := self._cut(whole)):
                found.append(self._most(cut))
        return min(filter(None, found), key=lambda one: _distance(request, one), default=None)

    def _most(self, request: Request) -> Request | None:
        """Return the most GPUs of a gang that fit, then the largest replicas, each with its cores and memory.

        None if no replica fits. It examines each node once and tries the sizes at which one more
        replica fits on a node: at most as many as the requested replicas, for each number of devices
        of a node.
        """
        # A session of one replica has another network than a gang: `_smaller` handles it separately.
        least = 2 if request.network and request.replica_count > 1 else 1
        if not request.whole_devices:
            replicas = min(request.replica_count, self.together(request).replicas)
            return request._replace(replica_count=replicas) if replicas >= least else None
        shapes = self._shapes(request)
        sizes = {
            min(shape.several // count, request.whole_devices)
            for shape in shapes
            for count in range(1, request.replica_count + 1)
        }
        found = [(size, _replicas(shapes, size, request)) for size in {*sizes, 1} - {0}]
        possible = [(size * count, size) for size, count in found if count >= least]
        if not possible:
            return None
        gpus, size = max(possible)
        return request._replace(gpu_thousandths=size * WHOLE_DEVICE, replica_count=gpus // size)

    def _shapes(self, request: Request) -> Counter[_Shape]:
        """Count the nodes that accept such replicas, grouped by their capacity for each size."""
        plain = request._replace(gpu_thousandths=0)
        shapes = Counter[_Shape]()
        for room, nodes in self._kinds:
            # By cores and memory; the defaults of these leave room for one replica with each device.
            if most := min(room.holds(plain), request.replica_count):
                one, several = (len(room.wholes_of(count, request)) for count in (1, 2))
                shapes[_Shape(room.alike_for(request), one, several, most)] += len(nodes)
        return shapes

    def _cut(self, request: Request) -> Request | None:
        """Cut one replica to the capacity of some node, changing as few of its sizes as possible."""
        if self.together(request).replicas:
            return request
        cuts = [(_fitted(kind.room, request), kind.room.node.name) for kind in self.taking(request)]
        found = [(_distance(request, one), name, one) for one, name in cuts if one is not None]
        return min(found)[2] if found else None


def _kind_of(node: Node) -> tuple[object, ...]:
    return (
        tuple((one.model, bool(one.parent_uuid)) for one in node.devices),
        node.capacity,
        node.isolation,
        node.gang_network,
        node.networks,
        node.shared_roots,
        node.builds_conda,
        node.data_bytes,
        node.pod,
        node.owner if owner_words(node) else None,
    )


def _fitted(room: NodeCapacity, request: Request) -> Request | None:
    """Cut one replica to the capacity of an empty node; None if nothing of it would be left."""
    capacity = room.node.capacity
    gpu = request.gpu_thousandths
    if gpu:
        gpu = min(gpu, room.hole_for(request.gpu_model) * WHOLE_DEVICE)
    cpu = min(request.cpu_thousandths, capacity.cpu_thousandths)
    memory = request.memory_bytes
    if memory > capacity.memory_bytes:
        memory = _rounded(capacity.memory_bytes)
    is_nothing = (
        (request.gpu_thousandths and not gpu)
        or (request.cpu_thousandths and not cpu)
        or (request.memory_bytes and not memory)
    )
    fitted = request._replace(gpu_thousandths=gpu, cpu_thousandths=cpu, memory_bytes=memory)
    return None if is_nothing or not room.holds(fitted) else fitted


def _rounded(memory_bytes: int) -> int:
    """Round memory down to few digits."""
    step = _GB if memory_bytes >= _WHOLE_FROM_BYTES else _GB // 10 if memory_bytes >= _GB else _MB
    return memory_bytes // step * step


def _replicas(shapes: Counter[_Shape], size: int, request: Request) -> int:
    """Return how many replicas of a gang fit with so many GPUs each, up to the requested number."""
    held = Counter[Alike]()
    for shape, nodes in shapes.items():
        devices = shape.several if size > 1 else shape.one
        held[shape.alike] += min(devices // size, shape.most) * nodes
    return min(max(held.values(), default=0), request.replica_count)


def _distance(request: Request, other: Request) -> tuple[int, int, int, int, int]:
    """Return the distance of two requests: the number of changes, then the lost resources.

    Fewer GPUs by fewer replicas, by smaller ones or by both is one change.
    """
    sized = other._replace(
        gpu_thousandths=request.gpu_thousandths, replica_count=request.replica_count
    )
    changed = sum(mine != theirs for mine, theirs in zip(request, sized, strict=True))
    return (
        changed + (sized != other),
        -other.gpu_thousandths * other.replica_count,
        -other.gpu_thousandths,
        -other.memory_bytes * other.replica_count,
        -other.cpu_thousandths * other.replica_count,
    )


def _likest(name: str, known: Counter[str]) -> list[str]:
    """Return the few most similar names, word by word; among equal ones those of most nodes."""

    def unlikeness(other: str) -> tuple[float, int, str]:
        theirs = sorted(words_of(other))
        alike = [
            max((_likeness(word, one) for one in theirs), default=0.0) for word in words_of(name)
        ]
        return (-sum(alike), -known[other], other)

    return sorted(known, key=unlikeness)[:_MOST_NAMES]


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


def can_ever_fit(nodes: Iterable[Node], request: Request) -> bool:
    """Return whether the gang would fit on suitable nodes if nothing else ran.

    Withheld devices count: they may be offered again.
    """
    held = Counter[Alike]()
    for node in nodes:
        room = empty_room(node)
        kind = room.alike_for(request)
        held[kind] += room.holds(request)
        if held[kind] >= request.replica_count:
            return True
    return False


def runs_nowhere(nodes: Iterable[Node], request: Request) -> bool:
    """Return whether it needs an image and no node runs containers."""
    return request.in_container and all(node.isolation is not Isolation.CONTAINER for node in nodes)


def keep_to_owners(nodes: Iterable[Node], request: Request) -> str:
    """Say why no node accepts sessions of this user; "" if one does."""
    nodes = list(nodes)
    if not nodes or any(refusal(node, request) != OWNERS_ONLY for node in nodes):
        return ""
    first = min(nodes, key=lambda node: node.name)
    more = len(nodes) - 1
    others = f" (and {more} more {'node' if more == 1 else 'nodes'} like it)" if more else ""
    return f"node {first.name} {owner_words(first)}{others}"
