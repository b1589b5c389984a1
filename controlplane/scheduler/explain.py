"""Why a session waits: counts of each shortage, and one dominant reason for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from controlplane.domain.models import is_model
from controlplane.domain.node_availability import closed_words
from controlplane.domain.plan import Explanation, Shortage
from controlplane.domain.values import WHOLE_DEVICE, Cause, Network
from controlplane.scheduler.fit import (
    AVOIDED,
    IN_REACH,
    NO_CONDA,
    NO_CONTAINERS,
    NO_GANGS,
    NO_HOST_NETWORK,
    NO_NONE_NETWORK,
    NO_OWN_NETWORK,
    NO_SUCH_GPU,
    OTHER_POD,
    OWNERS_ONLY,
    SMALL_DISK,
    refusal,
)
from controlplane.scheduler.max_capacity import (
    MaxCapacity,
    can_ever_fit,
    keep_to_owners,
    runs_nowhere,
)
from controlplane.scheduler.node_capacity import HELD, KEPT, SHORT_AND, alone
from controlplane.scheduler.node_index import is_torn_now, most_together

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from controlplane.domain.values import Node, Session
    from controlplane.scheduler.fit import Request
    from controlplane.scheduler.node_capacity import NodeCapacity, Tie
    from controlplane.scheduler.node_index import NodeIndex

GIVES_WAY_TO: Final = "gives way to "
"""Begin of a preemption's reason, if it is for another session."""
MOVES_FOR: Final = "moves to make room for "
"""The same for a move."""
REQUEUED_BY: Final = "requeued by "
"""The same for a requeue by a user."""
MEASURED: Final = ("GPUs", "cores", "memory")
_MOST_REASON: Final = 120
_GIB = 2**30
_MIB = 2**20
_GB = 10**9
_LEAST_CPU: Final = 100
"""Unit of suggested cores, in thousandths."""
_LEAST_MEMORY: Final = 10**8
"""Unit of suggested memory, in bytes."""
_WHOLE_CORE = 1000
_WITHHELD_NAMED = 2
_MOST_NAMED = 2
_MOST_LISTED = 5
_DEFAULT_SHARE = "a share of a node's cores"
_CONTAINED_SHARE = "a node that runs containers, and a share of its cores"
_NEVER_TORN = "since all replicas of a gang run either in containers or without"
_NETWORKS: Final = {
    Network.HOST: ("the host network", "allows the host network"),
    Network.OWN: ("a network of its own", "gives sessions a network of their own"),
    Network.NONE: ("no network", "can run sessions without a network"),
}
"""A session's request, and the property of nodes that satisfy it."""
_GANG_NETWORKS: Final = {
    None: "gives gangs a network",
    Network.HOST: "gives gangs the host network",
    Network.OWN: "gives gangs an overlay network",
    Network.NONE: "can run gangs without a network",
}
_HAS_ROOM = "has room for it"
_HAS_ROOM_FOR_SOME = "has room for some of its replicas"
OF_ONE_AND_OF_SEVERAL = {
    NO_CONTAINERS: (NO_CONTAINERS, "run no containers"),
    NO_CONDA: (NO_CONDA, "have no micromamba"),
    SMALL_DISK: (SMALL_DISK, "have disks too small for its datasets"),
    NO_GANGS: (NO_GANGS, "give gangs no network"),
    NO_SUCH_GPU: (NO_SUCH_GPU, "have no such GPU"),
    OTHER_POD: (OTHER_POD, "are in other pods"),
    NO_HOST_NETWORK: (NO_HOST_NETWORK, "do not allow the host network"),
    NO_OWN_NETWORK: (NO_OWN_NETWORK, "give sessions no network of their own"),
    NO_NONE_NETWORK: (NO_NONE_NETWORK, "cannot run sessions without a network"),
    AVOIDED: (AVOIDED, "failed it before"),
    IN_REACH: (IN_REACH, "keep no data from their owners"),
    KEPT: (KEPT, "are kept for others"),
    HELD: (HELD, "are held for a session ahead of it"),
    OWNERS_ONLY: (OWNERS_ONLY, "take their owners' sessions only"),
    _HAS_ROOM: (_HAS_ROOM, "have room for it"),
    _HAS_ROOM_FOR_SOME: (_HAS_ROOM_FOR_SOME, "have room for some of its replicas"),
}
"""Texts for counts of nodes, singular and plural; other keys are adjectives."""


def explain(rooms: NodeIndex, request: Request, own: Collection[str] = ()) -> Explanation:
    """Explain why a session with this request does not fit now; `own`: nodes held for it."""
    if not len(rooms):
        return Explanation(reason="no node has registered yet")
    counts = Counter[str]()
    shut = [room for room in rooms.known() if not room.is_open]
    shut.sort(key=lambda room: room.node.name)
    for room in shut:
        counts["silent" if room.is_silent else room.node.closed_by] += 1
    closed = [room.node for room in shut if room.node.closed_by]
    if kept := sum(1 for room in rooms.known() if room.is_open and room.keeper):
        counts[KEPT] = kept
    held = [room for room in rooms.known() if room.is_open and room.promised and not room.keeper]
    mine = [alone(room) for room in held if room.name in own]
    if others := len(held) - len(mine):
        counts[HELD] = others
    ties = _ties(rooms, request)
    if mine:
        ties = _tightest_first([*ties, *mine])
    has_room = _HAS_ROOM if request.replica_count == 1 else _HAS_ROOM_FOR_SOME
    for tie in ties:
        counts[tie.first().shortage(request) or has_room] += len(tie.rooms)
    shortages = tuple(Shortage(what=what, nodes=count) for what, count in counts.most_common())
    if not can_ever_fit((room.node for room in rooms.known()), request):
        nodes = [room.node for room in rooms.known()]
        never = never_words(MaxCapacity(nodes, apart=request.avoids), request)
        reason = f"needs {describe(request)}; {never}"
        return Explanation(reason=reason, shortages=shortages, can_ever_fit=False)
    reason = _reason(ties, request, counts) + _set_aside(rooms, request, own)
    reason += _withheld(ties, request)
    reason = "; ".join([reason, *_named(closed)])
    return Explanation(reason=reason, shortages=shortages)


def _set_aside(rooms: NodeIndex, request: Request, own: Collection[str]) -> str:
    """Say how many nodes have room that is held for others; "" if none."""
    aside = (one for one in rooms.known() if one.is_open and not one.is_offered)
    count = sum(1 for one in aside if one.name not in own and one.holds(request))
    if not count:
        return ""
    return f"; {count} {'node' if count == 1 else 'nodes'} with room for it {'is' if count == 1 else 'are'} held for others"


def _ties(rooms: NodeIndex, request: Request) -> list[Tie]:
    """Group offered rooms that are equal for the request; tightest first."""
    if request.avoids:
        # Rooms in one state differ for it.
        return [alone(room) for room in rooms if room.is_offered]
    return _tightest_first(rooms.ties())


def _tightest_first(ties: Iterable[Tie]) -> list[Tie]:
    return sorted(ties, key=lambda tie: (tie.state.tightness, tie.first().node.name))


UNREADY_WORDS: Final = (
    "what it may read of its datasets cannot be looked up now; it is tried again soon"
)
"""Why a session with a failed renewal of its datasets at its start waits."""


def patience_words(session: Session, now: float) -> str:
    """Say why a session waits until its `not_before`, whatever is free."""
    if session.settling:
        return "its checkpoint is being stored, to resume from"
    left_s = session.not_before - now
    return f"its last attempt did not succeed; the next one begins in {left_s:.0f} s"


def class_words(session: Session) -> str:
    """Say in which class a session is, since its project may not have the requested one any more."""
    name = session.project or session.owner
    return f"it counts as {session.spec.priority.name.lower()}, the highest of project {name}"


def moved_words(session: Session) -> str:
    """Say how a preempted session continues; "" for others."""
    if not session.attempts or session.attempts[-1].cause is not Cause.PREEMPTED:
        return ""
    goes_on = "resumes from its checkpoint" if session.progress.can_go_on else "starts again"
    return f"it {gave_way_words(session.attempts[-1].reason)}, and {goes_on} once there is room"


def gave_way_words(reason: str) -> str:
    """Convert the reason of a preemption to the past tense."""
    shown = reason if len(reason) <= _MOST_REASON else f"{reason[: _MOST_REASON - 1]}…"
    if reason.startswith(GIVES_WAY_TO):
        return f"gave way to {shown.removeprefix(GIVES_WAY_TO)}"
    if reason.startswith(MOVES_FOR):
        return f"moved to make room for {shown.removeprefix(MOVES_FOR)}"
    if reason.startswith(REQUEUED_BY):
        return f"was {shown}"
    return f"gave way ({shown})" if reason else "gave way"


def never_words(extent: MaxCapacity, request: Request) -> str:
    """Say why a request would not fit if nothing else ran."""
    nodes = extent.nodes
    is_single = request.replica_count == 1
    one = request._replace(replica_count=1, network=None)
    return (
        keep_to_owners(nodes, request)
        or _avoided(extent, request)
        or ("no node runs containers" if runs_nowhere(nodes, request) else "")
        or lacking_conda(nodes, request)
        or _none_such(extent, request)
        or no_such_network(extent, request)
        or _too_large(extent, request if is_single else one, _giving(request) if is_single else "")
        or _no_network(extent, request)
        or _too_large(extent, request, _giving(request))
        or _too_many(extent, request)
    )


def _avoided(extent: MaxCapacity, request: Request) -> str:
    """Say that it fits only on nodes or devices that failed it; "" if not."""
    if not request.avoids or not extent.fits(request._replace(avoids=frozenset())):
        return ""
    return f"what would do failed it before ({', '.join(sorted(request.avoids)[:_MOST_NAMED])})"


def _none_such(extent: MaxCapacity, request: Request) -> str:
    """Say that there is no such pod, or no such model in it, and list the existing ones; "" if there is."""
    pods = extent.pods()
    if request.pod and request.pod not in pods:
        others = f"there are: {_names(pods)}" if pods else "no node is in one"
        return f"there is no pod {request.pod}; {others}"
    if lacking := lacking_paths(extent.nodes, request):
        return f"no node has {lacking}, where a dataset of it is in place (shared_roots of agents)"
    models = extent.models(request.pod)
    if not request.gpu_model or any(is_model(one, request.gpu_model) for one in models):
        return ""
    others = f"there are: {_names(models)}" if models else "there are no GPUs"
    return f"no node{_pod(request)} has GPU model {request.gpu_model}; {others}"


def lacking_conda(nodes: Iterable[Node], request: Request) -> str:
    """Say that no node installs its conda packages; "" if one does, or it needs none."""
    if not request.with_conda or any(one.builds_conda for one in nodes):
        return ""
    return "no node has micromamba, which installs the packages of environment.yml"


def lacking_paths(nodes: Iterable[Node], request: Request) -> str:
    """List the folders of its datasets in place if no node has all of them; else ""."""
    if any(all(map(one.shares, request.paths)) for one in nodes):
        return ""
    return " and ".join(request.paths)


def no_such_network(extent: MaxCapacity, request: Request) -> str:
    """Say that no suitable node offers its requested network; "" if one does."""
    if request.network is None:
        return ""
    taking = [kind.room.node for kind in extent.taking(request._replace(network=None))]
    if not taking or any(
        request.network in one.networks_for(request.replica_count) for one in taking
    ):
        return ""
    return f"no node{_pod(request)}{_giving(request).replace(' that', '')}"


def _giving(request: Request) -> str:
    """Say what its network requires of nodes: " that allows the host network"."""
    if request.replica_count > 1:
        return f" that {_GANG_NETWORKS[request.network]}"
    return f" that {_NETWORKS[request.network][1]}" if request.network else ""


def _no_network(extent: MaxCapacity, request: Request) -> str:
    """Say that it does not fit because of nodes without a network for gangs; "" if not."""
    shut = extent.without_network(request)
    if not shut:
        return ""
    return f"{'no node gives' if len(shut) == len(extent.nodes) else 'too few nodes give'} gangs a network"


def _names(counts: Counter[str]) -> str:
    """Format names with the number of nodes, most nodes first: `A100 (4 nodes), V100 (1 node)`."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [
        f"{name} ({count} {'node' if count == 1 else 'nodes'})"
        for name, count in ordered[:_MOST_LISTED]
    ]
    more = len(ordered) - _MOST_LISTED
    return ", ".join([*shown, *([f"and {more} more"] if more > 0 else [])])


def _too_large(extent: MaxCapacity, request: Request, which: str = "") -> str:
    """Say what no node has enough of for one replica, and the maximum; "" if one node has enough.

    `which`: the property required of nodes, such as " that gives gangs a network".
    """
    if extent.together(request).replicas:
        return ""
    rooms = [kind.room for kind in extent.taking(request)]
    if not rooms:
        return _listed(extent.refusals(request))
    none = f"no node{_pod(request)}{which}"
    if words := _too_many_devices(rooms, request):
        return f"{none} has {words}"
    if request.gpu_model:
        none += " with such a GPU"
    cpu, name = _most((room.cpu, room.node.name) for room in rooms)
    if request.cpu_thousandths > cpu:
        asked = cores_text(request.cpu_thousandths)
        return f"{none} has {asked}; the largest has {cores_text(cpu)} (node {name})"
    memory, name = _most((room.memory, room.node.name) for room in rooms)
    if request.memory_bytes > memory:
        asked = _gib(request.memory_bytes)
        return f"{none} has {asked} of memory; the largest has {_gib(memory)} (node {name})"
    return f"{none} has all of that at once"


def _too_many_devices(rooms: list[NodeCapacity], request: Request) -> str:
    hole, name = _most((room.hole_for(request.gpu_model), room.node.name) for room in rooms)
    if request.gpu_thousandths <= hole * WHOLE_DEVICE:
        return ""
    if not hole:
        return "a GPU"
    asked = _one_replica(request._replace(cpu_thousandths=0, memory_bytes=0))
    # A CUDA process computes on one MIG instance at most (NVIDIA, "MIG User Guide").
    has_instances = any(room.instances for room in rooms)
    rule = "; of MIG instances a replica has one at most" if has_instances else ""
    return f"{asked}; the largest has {hole} (node {name}){rule}"


def _most(having: Iterable[tuple[int, str]]) -> tuple[int, str]:
    """Return the maximum, and the first node by name with it."""
    return min(having, key=lambda one: (-one[0], one[1]))


def _too_many(extent: MaxCapacity, request: Request) -> str:
    """Say how many replicas could fit, on how many nodes, and which rule limits them."""
    most, kinds = extent.together(request)
    count = sum(len(kind.nodes) for kind in kinds)
    of = f"{count} {'node' if count == 1 else 'nodes'}"
    devices = {len(kind.room.models) for kind in kinds}
    if request.gpu_thousandths and len(devices) == 1:
        [size] = devices
        of = f"{of} with {size} {'GPU' if size == 1 else 'GPUs'}{' each' if count > 1 else ''}"
    rule = _unlike(extent, request)
    replicas = f"{most} {'replica fits' if most == 1 else 'replicas fit'}"
    return f"at most {replicas} together{_pod(request)}: {of}{rule}"


def _unlike(extent: MaxCapacity, request: Request) -> str:
    """Say which property all nodes of a gang must share; "" if all nodes are alike."""
    if extent.is_torn(request):
        return f", {_NEVER_TORN}"
    alike = [kind.room.alike_for(request) for kind in extent.taking(request)]
    models, networks, _ = (len(set(each)) for each in zip(*alike, strict=True))
    if models > 1:
        return ", since all of a gang is on GPUs of one model"
    return ", since all of a gang is in one network" if networks > 1 else ""


def describe(request: Request) -> str:
    """Describe a request: "4 GPUs on one node", "3 x 1 GPU"."""
    one = _one_replica(request)
    where = _pod(request) + (f" with {_NETWORKS[request.network][0]}" if request.network else "")
    if request.replica_count == 1 and not one:
        return (_CONTAINED_SHARE if request.in_container else _DEFAULT_SHARE) + where
    one = one or _DEFAULT_SHARE
    if request.in_container:
        one = f"{one} in a container"
    if request.replica_count > 1:
        return f"{request.replica_count} x {one}{where}"
    return f"{one} on one node{where}"


def _pod(request: Request) -> str:
    return f" in pod {request.pod}" if request.pod else ""


def _named(closed: list[Node]) -> list[str]:
    """Say why the first few nodes are closed, and how many more there are."""
    more = len(closed) - _MOST_NAMED
    return [
        *map(closed_words, closed[:_MOST_NAMED]),
        *([f"and {more} more {'node' if more == 1 else 'nodes'}"] if more > 0 else []),
    ]


def _one_replica(request: Request) -> str:
    parts = []
    if request.gpu_thousandths:
        count = request.gpu_thousandths / WHOLE_DEVICE
        model = f"{request.gpu_model} " if request.gpu_model else ""
        parts.append(f"{count:g} {model}{'GPU' if count <= 1 else 'GPUs'}")
    if request.cpu_thousandths:
        parts.append(cores_text(request.cpu_thousandths))
    if request.memory_bytes:
        parts.append(f"{_gib(request.memory_bytes)} of memory")
    return ", ".join(parts)


def cores_text(thousandths: int) -> str:
    """Format a number of cores: `1 core`, `0.5 cores`, `4 cores`."""
    return f"{thousandths / 1000:g} {'core' if thousandths == _WHOLE_CORE else 'cores'}"


def _gib(count: int) -> str:
    size = count / _GIB
    return f"{size:,.0f} GiB" if size >= 100 else f"{size:.3g} GiB"


def _reason(ties: list[Tie], request: Request, counts: Counter[str]) -> str:
    needs = f"needs {describe(request)}"
    if not ties:
        return f"{needs}; no node takes sessions now ({_listed(counts)})"
    if request.replica_count > 1:
        torn = f", {_NEVER_TORN}" if is_torn_now(ties, request) else ""
        return f"{needs}, all at once; there is room for {most_together(ties, request)} now{torn}"
    short = shortages_of(counts)
    if not short:
        return f"{needs}; {_listed(counts)}"
    dominant = max(short, key=lambda what: short[what])
    open_to_it = [tie for tie in ties if not refusal(tie.first().node, request)]
    if dominant == "GPUs" and (scarce := _beside_free_gpus(open_to_it, request, counts)):
        return f"{needs}; where GPUs are free, {scarce}{_smaller(open_to_it, request)}"
    # Each resource short on all nodes, since freeing only one would not help; default shares come with the GPUs.
    nodes = sum(len(tie.rooms) for tie in open_to_it)
    shares = _shares(request) if dominant == "GPUs" else ()
    named = [
        what
        for what, count in short.items()
        if what == dominant or (count == nodes and what not in shares)
    ]
    largest = " and ".join(_largest(open_to_it, request, what) for what in named)
    return f"{needs}; {largest}{_smaller(open_to_it, request)}"


def _shares(request: Request) -> list[str]:
    """List the resources that it gets by default, since it requested no number."""
    asked = {"cores": request.cpu_thousandths, "memory": request.memory_bytes}
    return [what for what, count in asked.items() if not count]


def shortages_of(counts: Mapping[str, int]) -> dict[str, int]:
    """Count nodes by short resource (GPUs, cores, memory), alone or with others; without zeros."""
    found = {
        what: sum(count for short, count in counts.items() if what in short.split(SHORT_AND))
        for what in MEASURED
    }
    return {what: count for what, count in found.items() if count}


def _beside_free_gpus(ties: list[Tie], request: Request, counts: Counter[str]) -> str:
    """Say what is short on nodes with enough GPUs, though more nodes lack GPUs; "" if there are none."""
    scarce = max(("cores", "memory"), key=lambda what: counts[what])
    if not counts[scarce]:
        return ""
    having = [tie for tie in ties if tie.first().shortage(request) == scarce]
    return _largest(having, request, scarce)


def _largest(ties: list[Tie], request: Request, what: str) -> str:
    if what == "GPUs" and request.is_share:
        return f"no GPU has {request.gpu_thousandths / WHOLE_DEVICE:g} free"
    if what == "GPUs":
        hole, name = _widest(ties, lambda room: room.hole_for(request.gpu_model))
        if not hole:
            model = f"{request.gpu_model} " if request.gpu_model else ""
            return f"no whole {model}GPU is free"
        return f"most free on one node: {hole} (node {name})"
    if what == "cores":
        cpu, name = _widest(ties, lambda room: room.cpu)
        if not cpu:
            return "no core is free"
        verb = "is" if cpu == _WHOLE_CORE else "are"
        return f"at most {cores_text(cpu)} {verb} free (node {name})"
    memory, name = _widest(ties, lambda room: room.memory)
    some = f"at most {_gib(memory)} of memory are free (node {name})"
    return some if memory >= _MIB else "no memory is free"


def _smaller(ties: list[Tie], request: Request) -> str:
    """Return flags with which it would fit, in place of default shares; "" if none would help."""
    shares = _shares(request)
    found = [
        (smaller.cpu_thousandths, smaller.memory_bytes)
        for tie in ties
        if (smaller := _within(tie.first(), request, shares)) is not None
    ]
    if not found:
        return ""
    cpu, memory = max(found)
    flags = [f"-c {cpu / 1000:g}"] if "cores" in shares and cpu else []
    flags += [f"--memory {_size_flag(memory)}"] if "memory" in shares and memory else []
    return f"; it would fit with {' '.join(flags)}"


def _size_flag(count: int) -> str:
    return f"{count // _GB}G" if count >= _GB else f"{count // 10**6}M"


def _within(room: NodeCapacity, request: Request, shares: Collection[str]) -> Request | None:
    """Reduce the short default shares to this room's free capacity; None if it still does not fit."""
    short = set(room.shortage(request).split(SHORT_AND)) & {*shares}
    smaller = request
    if "cores" in short:
        smaller = smaller._replace(cpu_thousandths=room.cpu // _LEAST_CPU * _LEAST_CPU)
    if "memory" in short:
        unit = _LEAST_MEMORY if room.memory < _GB else _GB
        smaller = smaller._replace(memory_bytes=room.memory // unit * unit)
    is_some = ("cores" not in short or smaller.cpu_thousandths) and (
        "memory" not in short or smaller.memory_bytes
    )
    return smaller if short and is_some and room.holds(smaller) else None


def _widest(ties: list[Tie], has: Callable[[NodeCapacity], int]) -> tuple[int, str]:
    """Return the maximum, and the last room by name with it."""
    having = [(has(tie.first()), tie) for tie in ties]
    most = max(count for count, _ in having)
    return most, max(name for count, tie in having if count == most for name in tie.rooms)


def _withheld(ties: list[Tie], request: Request) -> str:
    """Name withheld devices that would count if healthy; "" if GPUs are not short."""
    unwell = [
        room
        for tie in ties
        if tie.first().withheld and not refusal(tie.first().node, request)
        for room in tie.rooms.values()
    ]
    if not unwell or not request.gpu_thousandths:
        return ""
    if not any("GPUs" in tie.first().shortage(request).split(SHORT_AND) for tie in ties):
        return ""
    reasons = [
        f"GPU {device.index} of node {room.node.name} ({device.withheld})"
        for room in sorted(unwell, key=lambda room: room.node.name)
        for device in room.withheld
        if is_model(device.model, request.gpu_model)
    ]
    if not reasons:
        return ""
    count = "1 device is" if len(reasons) == 1 else f"{len(reasons)} devices are"
    rest = ", ..." if len(reasons) > _WITHHELD_NAMED else ""
    return f"; {count} withheld: {', '.join(reasons[:_WITHHELD_NAMED])}{rest}"


def _listed(counts: Counter[str]) -> str:
    """List the reasons with numbers of nodes: "2 nodes run no containers, 1 is drained"."""
    told: list[str] = []
    for what, count in counts.most_common():
        one, several = OF_ONE_AND_OF_SEVERAL.get(what, (f"is {what}", f"are {what}"))
        nodes = "" if told else " node" if count == 1 else " nodes"
        told.append(f"{count}{nodes} {one if count == 1 else several}")
    return ", ".join(told)
