"""Metrics of a scrape: the platform's state in this control plane's memory.

Nothing here waits, and no label's cardinality depends on users: there are none of sessions, users or
projects. Labels of nodes and devices are limited by MOST_DEVICES.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Protocol

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)

from controlplane.domain.conditions import ConditionName
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import WHOLE_DEVICE, Priority
from controlplane.gateway.rpcs import BUCKETS_S
from controlplane.history.values import KeptKind
from controlplane.nodes.node_states import NodeState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client import Metric

    from controlplane.content.object_gc import Collected, Collector
    from controlplane.domain.conditions import Condition
    from controlplane.domain.values import Allocation, Node, Session
    from controlplane.gateway.rpcs import CallCounts, Durations
    from controlplane.history.sql.telemetry import SqlTelemetry
    from controlplane.history.values import DeviceSample, NodeSample
    from controlplane.limits.admission import Admission
    from controlplane.limits.user_storage import Kept, KeptUse
    from controlplane.nodes.node_states import NodeStates
    from controlplane.state.agent_connections import FetchedBytes
    from controlplane.state.committer import Committer
    from controlplane.state.conditions import Conditions
    from controlplane.state.live_state import LiveState
    from controlplane.state.members import Members
    from controlplane.store.election import Leader
    from controlplane.usage.usage import Load, Usages
    from nsml.common.clock import Clock

MOST_DEVICES: Final = 20_000
"""Devices with series of their own; further ones count only in the sums."""
MOST_MODELS: Final = 50
"""GPU models with a label of their own, the most frequent first."""
OTHER_MODEL: Final = "other"
LONGEST_LABEL: Final = 100
_PERCENT: Final = 100.0
_DEVICE: Final = ("node", "gpu", "uuid")


class Placements(Protocol):
    """Gangs since the start: placed, dropped since a node had gone meanwhile, and preempted."""

    placed: int
    dropped: int
    preempted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSources:
    """Sources of the metrics, all in memory and updated by others.

    Attributes:
        admission: refusals, and free space of the stores.
        kept: stored bytes of each user.
        certificate_ends: of nodes, Unix seconds; 0: unknown.
        clocks_ahead_s: of nodes, relative to this control plane's.
        fetched: datasets of nodes since their agents started.
        joins_refused: number of refused joins of machines here.
        leader, leads: the leader, and whether it is this control plane.
        scheduling, committer, collector: plain counts since the start.
        clock: the clock of sessions' creation times.
    """

    cluster_id: str
    state: LiveState
    telemetry: SqlTelemetry
    usages: Usages
    states: NodeStates
    members: Members
    conditions: Conditions
    leader: Callable[[], Leader | None]
    leads: Callable[[], bool]
    scheduling: Placements
    committer: Committer
    collector: Collector
    admission: Admission
    kept: Kept
    certificate_ends: Callable[[], Mapping[str, float]]
    clocks_ahead_s: Callable[[], Mapping[str, float]]
    fetched: Callable[[], Mapping[str, FetchedBytes]]
    joins_refused: Callable[[], int]
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A snapshot of the sources, of frozen values, so that a thread may read it slowly.

    Attributes:
        now: Unix seconds.
        info: of this control plane.
        work: counts since the start, by the names of the counters.
        collected: result of the last search for unreferenced objects; None if there was none.
        refused: number of refusals and omissions, by the name of the limit.
        room: bytes that users may still fill, by store, if known.
        kept: stored bytes of each user.
        certificate_ends, clocks_ahead_s, fetched: by node, as in `FigureSources`.
        ended, durations: of calls, as in `CallCounts`.
    """

    now: float
    info: Mapping[str, str]
    leads: bool
    term: int
    member_count: int
    conditions: Sequence[Condition]
    sessions: Sequence[Session]
    nodes: Sequence[tuple[Node, NodeState]]
    allocations: Mapping[str, Allocation]
    samples: Mapping[str, NodeSample]
    load: Load
    work: Mapping[str, int]
    collected: Collected | None
    refused: Mapping[str, int]
    room: Mapping[str, int]
    kept: Sequence[KeptUse]
    certificate_ends: Mapping[str, float]
    clocks_ahead_s: Mapping[str, float]
    fetched: Mapping[str, FetchedBytes]
    ended: Mapping[tuple[str, str], int]
    durations: Mapping[str, Durations]

    def held(self, node: Node) -> Mapping[str, int]:
        """Return the thousandths of its devices that sessions hold, by uuid."""
        allocation = self.allocations.get(node.name)
        return allocation.held_thousandths() if allocation else {}

    def sample(self, node: Node) -> NodeSample | None:
        """Return its latest sample."""
        return self.samples.get(node.name)


def take(known: FigureSources, calls: CallCounts) -> Taken:
    """Return a snapshot of the sources; on the event loop, as quick as copies are."""
    own, leader = known.members.own, known.leader()
    samples = known.telemetry.known()
    is_gone = known.conditions.stands(ConditionName.COORDINATION_GONE)
    return Taken(
        now=known.clock.time(),
        info={"version": own.version, "member": own.name, "cluster": known.cluster_id},
        # Leadership depends on the store: without a quorum there is none.
        leads=known.leads() and not is_gone,
        term=leader.term if leader and not is_gone else 0,
        member_count=len(known.members.everyone()),
        conditions=known.conditions.standing(),
        sessions=[stored.value for stored in known.state.sessions.values()],
        nodes=[
            (stored.value, known.states.of(stored.value)) for stored in known.state.nodes.values()
        ],
        allocations={node: one.value for node, one in known.state.allocations.items()},
        samples=samples,
        load=known.usages.load_of(samples),
        work={
            "placements": known.scheduling.placed,
            "placements_dropped": known.scheduling.dropped,
            "preemptions": known.scheduling.preempted,
            "commits": known.committer.commits,
            "decisions": known.committer.decisions,
            "objects_removed": known.collector.removed,
            "objects_removed_bytes": known.collector.removed_bytes,
            "joins_refused": known.joins_refused(),
        },
        collected=None if known.collector.last is None else replace(known.collector.last),
        refused=dict(known.admission.refused),
        room=known.admission.room(),
        kept=known.kept.everybody(),
        certificate_ends=known.certificate_ends(),
        clocks_ahead_s=known.clocks_ahead_s(),
        fetched=known.fetched(),
        ended=dict(calls.ended),
        durations={
            method: replace(one, buckets=list(one.buckets))
            for method, one in calls.durations.items()
        },
    )


def figures(taken: Taken) -> Iterator[Metric]:
    """Return all metrics."""
    yield from _platform(taken)
    yield from _sessions(taken)
    yield from _work(taken)
    yield from _objects(taken)
    yield from _limits(taken)
    yield from _nodes(taken)
    yield from _gpus(taken)
    yield from _machines(taken)
    yield from _devices(taken)
    yield from _calls(taken)


def _platform(taken: Taken) -> Iterator[Metric]:
    yield InfoMetricFamily("nsml_controlplane", "This control plane.", dict(taken.info))
    yield _gauge("nsml_leads", "1 where this control plane leads, else 0.", float(taken.leads))
    yield _gauge(
        "nsml_leader_term", "Number of the leader's term; 0 while nobody leads.", taken.term
    )
    yield _gauge("nsml_controlplanes", "Control planes that run.", taken.member_count)
    standing = GaugeMetricFamily(
        "nsml_condition",
        "1 for each condition that stands; see nsml status.",
        labels=["name", "of"],
    )
    for one in taken.conditions:
        standing.add_metric([one.name.value, one.subject[:LONGEST_LABEL]], 1)
    yield standing


def _sessions(taken: Taken) -> Iterator[Metric]:
    by_state = Counter(one.state for one in taken.sessions)
    states = GaugeMetricFamily(
        "nsml_sessions", "Sessions that have not left the platform, by state.", labels=["state"]
    )
    for state in SessionState:
        states.add_metric([state.value], by_state[state])
    yield states
    queued = [one for one in taken.sessions if one.state is SessionState.QUEUED]
    waiting: Counter[Priority] = Counter()
    wanted: Counter[Priority] = Counter()
    for one in queued:
        waiting[one.spec.priority] += 1
        wanted[one.spec.priority] += one.spec.resources.gpu_thousandths * one.spec.replica_count
    length = GaugeMetricFamily("nsml_queue_sessions", "Sessions that wait.", labels=["priority"])
    gpus = GaugeMetricFamily("nsml_queue_gpus", "GPUs that they ask for.", labels=["priority"])
    for priority in Priority:
        label = [priority.name.lower()]
        length.add_metric(label, waiting[priority])
        gpus.add_metric(label, wanted[priority] / WHOLE_DEVICE)
    yield length
    yield gpus
    oldest = min((one.created_at for one in queued), default=None)
    age = 0.0 if oldest is None else max(taken.now - oldest, 0.0)
    yield _gauge("nsml_queue_oldest_seconds", "Age of the oldest session that waits.", age)


def _work(taken: Taken) -> Iterator[Metric]:
    for name, text in (
        ("placements", "Gangs that this control plane has placed."),
        ("placements_dropped", "Gangs whose place was taken meanwhile."),
        ("preemptions", "Sessions that were told to give way."),
        ("commits", "Transactions that this leader has written."),
        ("decisions", "Decisions that were written in them."),
        ("objects_removed", "Objects that this leader has removed: nothing refers to them."),
        ("objects_removed_bytes", "What they took in the object store."),
        ("joins_refused", "Attempts of machines to join that were refused here."),
    ):
        yield CounterMetricFamily(f"nsml_{name}", text, taken.work[name])


def _objects(taken: Taken) -> Iterator[Metric]:
    """From the last search, of any control plane."""
    found = taken.collected
    if found is None:
        return
    count = GaugeMetricFamily("nsml_objects", "Objects, by where they are.", labels=["where"])
    size = GaugeMetricFamily("nsml_objects_bytes", "What they take.", labels=["where"])
    for where, objects, stored_bytes in (
        ("named", found.objects - found.put_aside, found.stored_bytes - found.put_aside_bytes),
        ("aside", found.aside + found.put_aside, found.aside_bytes + found.put_aside_bytes),
    ):
        count.add_metric([where], objects)
        size.add_metric([where], stored_bytes)
    yield from (count, size)


def _limits(taken: Taken) -> Iterator[Metric]:
    refused = CounterMetricFamily(
        "nsml_refused", "Requests refused, and reports left out, for a limit.", labels=["limit"]
    )
    for limit, count in sorted(taken.refused.items()):
        refused.add_metric([limit], count)
    yield refused
    room = GaugeMetricFamily(
        "nsml_store_room_bytes",
        "What users may still fill of a store's disk, above the floor kept for the platform.",
        labels=["store"],
    )
    for store, size in sorted(taken.room.items()):
        room.add_metric([store], size)
    yield room
    yield from _kept(taken.kept)


def _kept(uses: Sequence[KeptUse]) -> Iterator[Metric]:
    size = GaugeMetricFamily(
        "nsml_kept_bytes",
        "What the object store keeps for users as of the last count; what several keep counts for each.",
        labels=["kind"],
    )
    for kind in KeptKind:
        size.add_metric(
            [kind.name.lower()], sum(one.kept.counted.get(kind.name, 0) for one in uses)
        )
    yield size
    yield _gauge(
        "nsml_kept_sent_bytes", "What was sent since then.", sum(one.kept.sent for one in uses)
    )
    yield _gauge(
        "nsml_kept_largest_bytes",
        "The most that is kept for one user.",
        max((one.used for one in uses), default=0),
    )
    yield _gauge(
        "nsml_kept_full_users",
        "Users who may have nothing more kept.",
        sum(one.is_full for one in uses),
    )


def _nodes(taken: Taken) -> Iterator[Metric]:
    found = Counter(state for _, state in taken.nodes)
    family = GaugeMetricFamily("nsml_nodes", "Nodes by state.", labels=["state"])
    for state in NodeState:
        family.add_metric([state.value], found[state])
    yield family


def _gpus(taken: Taken) -> Iterator[Metric]:
    total: Counter[str] = Counter()
    ready: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for node, state in taken.nodes:
        is_ready = state is NodeState.READY
        shares = taken.held(node)
        for device in node.devices:
            total[device.model] += 1
            ready[device.model] += is_ready and not device.withheld
            held[device.model] += shares.get(device.uuid, 0)
    for name, text, counted, unit in (
        ("nsml_gpus", "GPUs of all nodes that are known.", total, 1),
        ("nsml_gpus_ready", "GPUs that are offered, of nodes that are READY.", ready, 1),
        ("nsml_gpus_allocated", "GPUs that sessions hold, shares counted.", held, WHOLE_DEVICE),
    ):
        family = GaugeMetricFamily(name, text, labels=["model"])
        for model, count in _by_label(counted, total).items():
            family.add_metric([model], count / unit)
        yield family
    load = taken.load
    for name, text, value in (
        (
            "nsml_gpus_reporting",
            "GPUs of which a reading of the last minute is here.",
            load.devices,
        ),
        ("nsml_gpus_running", "Of these, those with a utilisation above 0.", load.running),
        ("nsml_gpus_busy", "Of these, those with a utilisation above 80 %.", load.busy),
        ("nsml_gpus_power_watts", "What these take together.", load.watts),
    ):
        yield _gauge(name, text, value)


def _by_label(counted: Counter[str], total: Counter[str]) -> dict[str, int]:
    """Return counts by model, rare models merged if there are too many."""
    own = {model for model, _ in total.most_common(MOST_MODELS)}
    found: dict[str, int] = {}
    for model in total:
        label = model[:LONGEST_LABEL] if model in own else OTHER_MODEL
        found[label] = found.get(label, 0) + counted[model]
    return found


def _machines(taken: Taken) -> Iterator[Metric]:
    states = GaugeMetricFamily(
        "nsml_node_state", "1 for the state that a node is in.", labels=["node", "state"]
    )
    cpu = GaugeMetricFamily("nsml_node_cpu_ratio", "CPU load, 0 to 1.", labels=["node"])
    memory = GaugeMetricFamily(
        "nsml_node_memory_used_bytes", "Memory that is in use.", labels=["node"]
    )
    ends = GaugeMetricFamily(
        "nsml_node_certificate_end_seconds",
        "Unix time at which its certificate ends.",
        labels=["node"],
    )
    ahead = GaugeMetricFamily(
        "nsml_node_clock_ahead_seconds",
        "How far its clock is ahead of this control plane's; negative for behind.",
        labels=["node"],
    )
    fetched = CounterMetricFamily(
        "nsml_node_dataset_bytes",
        "Datasets since its agent started: fetched from control planes, peers (other nodes) or the bucket, or sent to peers.",
        labels=["node", "way"],
    )
    dropped = CounterMetricFamily(
        "nsml_node_dropped_peers",
        "How often it dropped a peer that sent it datasets, since its agent started.",
        labels=["node"],
    )
    for node, state in taken.nodes[:MOST_DEVICES]:
        states.add_metric([node.name, state.value], 1)
        if end := taken.certificate_ends.get(node.name):
            ends.add_metric([node.name], end)
        if (ahead_s := taken.clocks_ahead_s.get(node.name)) is not None:
            ahead.add_metric([node.name], ahead_s)
        if (of_datasets := taken.fetched.get(node.name)) is not None:
            fetched.add_metric([node.name, "from-platform"], of_datasets.from_platform)
            fetched.add_metric([node.name, "from-peers"], of_datasets.from_peers)
            fetched.add_metric([node.name, "from-bucket"], of_datasets.from_bucket)
            fetched.add_metric([node.name, "to-peers"], of_datasets.to_peers)
            dropped.add_metric([node.name], of_datasets.dropped_peers)
        sample = taken.sample(node)
        if sample is not None:
            cpu.add_metric([node.name], sample.cpu_percent / _PERCENT)
            memory.add_metric([node.name], sample.memory_used_bytes)
    yield from (states, cpu, memory, ends, ahead, fetched, dropped)


def _devices(taken: Taken) -> Iterator[Metric]:
    shown = [(node, device) for node, _ in taken.nodes for device in node.devices]
    left_out = len(shown) - MOST_DEVICES
    info = InfoMetricFamily("nsml_gpu", "Each GPU.", labels=_DEVICE)
    memory = _of_device("nsml_gpu_memory_bytes", "Memory that it has.")
    held = _of_device("nsml_gpu_allocated_ratio", "How much of it sessions hold, 0 to 1.")
    read = {name: _of_device(f"nsml_gpu_{name}", text) for name, text, _ in _READ}
    shares: dict[str, Mapping[str, int]] = {}
    readings: dict[str, Mapping[str, DeviceSample]] = {}
    for node, device in shown[:MOST_DEVICES]:
        if node.name not in shares:
            shares[node.name] = taken.held(node)
            sample = taken.sample(node)
            devices = sample.devices if sample is not None else ()
            readings[node.name] = {one.uuid: one for one in devices}
        label = [node.name, str(device.index), device.uuid[:LONGEST_LABEL]]
        info.add_metric(label, {"model": device.model[:LONGEST_LABEL]})
        memory.add_metric(label, device.memory_bytes)
        held.add_metric(label, shares[node.name].get(device.uuid, 0) / WHOLE_DEVICE)
        reading = readings[node.name].get(device.uuid)
        if reading is not None:
            for name, _, value in _READ:
                read[name].add_metric(label, value(reading))
    yield from (info, memory, held, *read.values())
    text = "GPUs without series of their own, since there are too many."
    yield _gauge("nsml_gpus_left_out", text, max(left_out, 0))


_READ: Final[tuple[tuple[str, str, Callable[[DeviceSample], float]], ...]] = (
    (
        "utilization_ratio",
        "How much of the time it computed, 0 to 1.",
        lambda one: one.utilization_percent / _PERCENT,
    ),
    ("memory_used_bytes", "Memory that is in use.", lambda one: one.memory_used_bytes),
    ("power_watts", "What it takes.", lambda one: one.power_watts),
    ("temperature_celsius", "How hot it is.", lambda one: one.temperature_celsius),
    ("throttled", "1 while its clocks are held down.", lambda one: float(bool(one.throttled))),
)


def _calls(taken: Taken) -> Iterator[Metric]:
    ended = CounterMetricFamily(
        "nsml_rpc_calls", "Calls of one request and one answer, by end.", labels=["method", "code"]
    )
    for (method, code), count in sorted(taken.ended.items()):
        ended.add_metric([_short(method), code], count)
    yield ended
    took = HistogramMetricFamily("nsml_rpc_seconds", "How long they took.", labels=["method"])
    bounds = [*map(str, BUCKETS_S), "+Inf"]
    for method, one in sorted(taken.durations.items()):
        cumulative = [float(count) for count in accumulate(one.buckets)]
        buckets = list(zip(bounds, cumulative, strict=True))
        took.add_metric([_short(method)], buckets, sum_value=one.seconds)
    yield took


def _short(method: str) -> str:
    """Return `SessionService/GetSession` of `/nsml.v1.SessionService/GetSession`."""
    return method.rpartition(".")[2]


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value)


def _of_device(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=_DEVICE)
