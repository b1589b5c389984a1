"""Why something waits: counts for each shortage, and one dominant reason for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from controlplane.domain.closed import closed_words
from controlplane.domain.plan import Explanation, Shortage
from controlplane.domain.values import WHOLE_DEVICE
from controlplane.scheduler.fit import NO_CONTAINERS, NO_GANGS, OWNERS_ONLY, refusal
from controlplane.scheduler.rooms import (
    can_ever_fit,
    is_torn_ever,
    is_torn_now,
    keep_to_owners,
    most_together,
    runs_nowhere,
    without_network,
)

if TYPE_CHECKING:
    from controlplane.domain.snapshot import ClusterSnapshot
    from controlplane.domain.values import Node
    from controlplane.scheduler.fit import Request
    from controlplane.scheduler.rooms import Room, Rooms

_GIB = 2**30
_WHOLE_CORE = 1000
_WITHHELD_NAMED = 2
_MOST_NAMED = 2
_DEFAULT_SHARE = "a share of a node's cores"
_CONTAINED_SHARE = "a node that runs containers, and a share of its cores"
_NEVER_TORN = "since a gang runs either in containers or without, all of it"
_FITS_SOME = "fit some replicas"
_OF_ONE_AND_OF_SEVERAL = {
    NO_CONTAINERS: (NO_CONTAINERS, "run no containers"),
    NO_GANGS: (NO_GANGS, "give gangs no network"),
    OWNERS_ONLY: (OWNERS_ONLY, "take their owners' sessions only"),
    _FITS_SOME: ("fits some replicas", _FITS_SOME),
}
"""What counts say of nodes; all else is a word for their state."""


def explain(snapshot: ClusterSnapshot, rooms: Rooms, request: Request) -> Explanation:
    """Why a session with this request does not fit now."""
    if not snapshot.nodes:
        return Explanation(reason="no node has registered yet")
    counts = Counter[str]()
    for capacity in snapshot.nodes.values():
        if capacity.is_silent:
            counts["silent"] += 1
        elif capacity.node.closed_by:
            counts[capacity.node.closed_by] += 1
    closed = [one.node for one in snapshot.nodes.values() if one.node.closed_by]
    open_rooms = list(rooms)
    for room in open_rooms:
        counts[room.shortage(request) or _FITS_SOME] += 1
    shortages = tuple(Shortage(what=what, nodes=count) for what, count in counts.most_common())
    nodes = [entry.node for entry in snapshot.nodes.values()]
    if not can_ever_fit(nodes, request):
        short = _never(nodes, request)
        reason = f"needs {describe(request)}; {short}"
        return Explanation(reason=reason, shortages=shortages, can_ever_fit=False)
    reason = _reason(open_rooms, request, counts) + _withheld(open_rooms, request)
    reason = "; ".join([reason, *_named(closed)])
    return Explanation(reason=reason, shortages=shortages)


def _never(nodes: list[Node], request: Request) -> str:
    """Why it would not fit if nothing else ran."""
    devices = [device for node in nodes for device in node.devices]
    if owners := keep_to_owners(nodes, request):
        return owners
    if runs_nowhere(nodes, request):
        return "no node runs containers"
    if shut := without_network(nodes, request):
        return f"{'no node gives' if len(shut) == len(nodes) else 'too few nodes give'} gangs a network"
    if request.replica_count > 1 and (unlike := _never_alike(nodes, request)):
        return unlike
    if request.whole_devices > 1 and any(device.parent_uuid for device in devices):
        return "no node is large enough, of MIG instances a replica has one at most"
    return "no node is large enough"


def _never_alike(nodes: list[Node], request: Request) -> str:
    """Which likeness of nodes keeps a gang out; "" where it is not that."""
    if is_torn_ever(nodes, request):
        return f"too few nodes are alike, {_NEVER_TORN}"
    return "no nodes of one GPU model are large enough" if request.gpu_thousandths else ""


def describe(request: Request) -> str:
    """What is asked for, in words: "4 GPUs on one node", "3 x 1 GPU"."""
    one = _one_replica(request)
    if request.replica_count == 1 and not one:
        return _CONTAINED_SHARE if request.in_container else _DEFAULT_SHARE
    one = one or _DEFAULT_SHARE
    if request.in_container:
        one = f"{one} in a container"
    return f"{request.replica_count} x {one}" if request.replica_count > 1 else f"{one} on one node"


def _named(closed: list[Node]) -> list[str]:
    """Why nodes are closed: of the first few, and how many more there are."""
    more = len(closed) - _MOST_NAMED
    return [
        *map(closed_words, closed[:_MOST_NAMED]),
        *([f"and {more} more {'node' if more == 1 else 'nodes'}"] if more > 0 else []),
    ]


def _one_replica(request: Request) -> str:
    parts = []
    if request.gpu_thousandths:
        count = request.gpu_thousandths / WHOLE_DEVICE
        parts.append(f"{count:g} {'GPU' if count <= 1 else 'GPUs'}")
    if request.cpu_thousandths:
        parts.append(cores_text(request.cpu_thousandths))
    if request.memory_bytes:
        parts.append(f"{_gib(request.memory_bytes)} of memory")
    return ", ".join(parts)


def cores_text(thousandths: int) -> str:
    """So many cores in words: `1 core`, `0.5 cores`, `4 cores`."""
    return f"{thousandths / 1000:g} {'core' if thousandths == _WHOLE_CORE else 'cores'}"


def _gib(count: int) -> str:
    size = count / _GIB
    return f"{size:,.0f} GiB" if size >= 100 else f"{size:.3g} GiB"


def _reason(rooms: list[Room], request: Request, counts: Counter[str]) -> str:
    needs = f"needs {describe(request)}"
    if not rooms:
        return f"{needs}; no node takes sessions now ({_listed(counts)})"
    if request.replica_count > 1:
        torn = f", {_NEVER_TORN}" if is_torn_now(rooms, request) else ""
        return f"{needs}, all at once; there is room for {most_together(rooms, request)} now{torn}"
    short = {what: counts[what] for what in ("GPUs", "cores", "memory") if counts[what]}
    if not short:
        return f"{needs}; {_listed(counts)}"
    dominant = max(short, key=lambda what: short[what])
    open_to_it = [room for room in rooms if not refusal(room.node, request)]
    if dominant == "GPUs" and (scarce := _beside_free_gpus(open_to_it, request, counts)):
        return f"{needs}; where GPUs are free, {scarce}"
    return f"{needs}; {_largest(open_to_it, request, dominant)}"


def _beside_free_gpus(rooms: list[Room], request: Request, counts: Counter[str]) -> str:
    """What is short on nodes that have the GPUs, though more nodes lack these; "" without any."""
    scarce = max(("cores", "memory"), key=lambda what: counts[what])
    if not counts[scarce]:
        return ""
    return _largest([room for room in rooms if room.shortage(request) == scarce], request, scarce)


def _largest(rooms: list[Room], request: Request, what: str) -> str:
    if what == "GPUs" and request.is_share:
        return f"no device has {request.gpu_thousandths / WHOLE_DEVICE:g} of it free"
    if what == "GPUs":
        widest = max(rooms, key=lambda room: (room.hole, room.node.name))
        return f"the largest free hole is {widest.hole} (node {widest.node.name})"
    if what == "cores":
        widest = max(rooms, key=lambda room: (room.cpu, room.node.name))
        verb = "is" if widest.cpu == _WHOLE_CORE else "are"
        return f"at most {cores_text(widest.cpu)} {verb} free (node {widest.node.name})"
    widest = max(rooms, key=lambda room: (room.memory, room.node.name))
    return f"at most {_gib(widest.memory)} of memory are free (node {widest.node.name})"


def _withheld(rooms: list[Room], request: Request) -> str:
    """The devices that would count were they well; "" where that is not what is short."""
    # Few nodes withhold any, and this is asked for each kind of request in each plan.
    unwell = [room for room in rooms if room.withheld and not refusal(room.node, request)]
    if not unwell or not request.gpu_thousandths:
        return ""
    if not any(room.shortage(request) == "GPUs" for room in rooms):
        return ""
    reasons = [
        f"GPU {device.index} of node {room.node.name} ({device.withheld})"
        for room in sorted(unwell, key=lambda room: room.node.name)
        for device in room.withheld
    ]
    count = "1 device is" if len(reasons) == 1 else f"{len(reasons)} devices are"
    rest = ", ..." if len(reasons) > _WITHHELD_NAMED else ""
    return f"; {count} withheld: {', '.join(reasons[:_WITHHELD_NAMED])}{rest}"


def _listed(counts: Counter[str]) -> str:
    """What keeps how many nodes from it: "2 nodes run no containers, 1 is drained"."""
    told: list[str] = []
    for what, count in counts.most_common():
        one, several = _OF_ONE_AND_OF_SEVERAL.get(what, (f"is {what}", f"are {what}"))
        nodes = "" if told else " node" if count == 1 else " nodes"
        told.append(f"{count}{nodes} {one if count == 1 else several}")
    return ", ".join(told)
