"""Nodes, their devices and the cluster as rows and records."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from nsml.common.units import (
    ago,
    ago_within,
    counted,
    duration_text,
    memory_text,
    moment,
    size_text,
    thousandths,
)
from nsml.spec.thresholds import CERTIFICATE_WARNING_S, WRONG_CLOCK_S
from nsml.v1 import nodes_pb2, resources_pb2
from nsml.v1.nodes_pb2 import ForeignReplica
from nsml.view.enums import enum_name, enum_word
from nsml.view.sessions import SIMULATED, SIMULATED_SHORT, driver_text, network_word
from nsml.view.tables import Column
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nsml.v1.nodes_pb2 import (
        Condition,
        DeviceUse,
        GetClusterResponse,
        GetNodeResponse,
        Member,
        Node,
        NodeTransfers,
    )
    from nsml.v1.resources_pb2 import Device


_ROW_COLUMNS = 88
_MOST_FOREIGN = 20
_MOMENT_S = 2.0
_LIMITS = ("memory", "cpus", "processes", "disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDevice:
    """One device and its node."""

    node: Node
    use: DeviceUse


def devices(nodes: Iterable[Node]) -> list[NodeDevice]:
    """Return every device of the nodes, in order."""
    return [NodeDevice(node=node, use=use) for node in nodes for use in node.devices]


def is_free(item: NodeDevice) -> bool:
    """Return whether it is unused and available."""
    return not (item.use.allocated_thousandths or item.use.device.withheld or held_with(item))


def held_with(item: NodeDevice) -> list[Device]:
    """Return devices in use on the same hardware: the GPU of a MIG instance, or instances of a GPU.

    While there are any, nothing is placed on it.
    """
    device = item.use.device
    return [
        use.device
        for use in item.node.devices
        if use.allocated_thousandths
        and (use.device.uuid == device.parent_uuid or use.device.parent_uuid == device.uuid)
    ]


def state_word(node: Node) -> str:
    """`ready`, `draining`, `silent`, `fenced`, `held` or `not ready`."""
    return enum_word(nodes_pb2.NodeState, node.state, "NODE_STATE_").replace("_", " ")


def state_text(node: Node) -> str:
    """Return the state's word for people: `drained` if nothing runs on a draining node."""
    is_empty = node.state == nodes_pb2.NODE_STATE_DRAINING and not _is_in_use(node)
    return "drained" if is_empty else state_word(node)


def why_closed(node: Node, now: float) -> str:
    """Return why sessions are kept off the node; "" if they are not."""
    if node.HasField("fence"):
        return f"fenced by {node.fence.asked_by}{_because(node.fence.reason)}"
    if node.HasField("hold"):
        return node.hold.why
    drained = ""
    if node.HasField("drain"):
        drained = (
            f"drained by {node.drain.asked_by}{_because(node.drain.reason)}{_moves(node, now)}"
        )
    return "; ".join(filter(None, [drained, node.not_ready]))


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _moves(node: Node, now: float) -> str:
    if not (node.drain.HasField("move_at") and _is_in_use(node)):
        return ""
    left = seconds_of(node.drain.move_at) - now
    return f" (moves what runs in {duration_text(left)})" if left > 0 else " (moves what runs)"


def _is_in_use(node: Node) -> bool:
    held = node.allocated
    return bool(held.gpu_thousandths or held.cpu_thousandths or held.memory_bytes)


def isolation_word(node: Node) -> str:
    """Return how the node isolates sessions."""
    return enum_word(resources_pb2.Isolation, node.isolation, "ISOLATION_")


def limits_word(node: Node) -> str:
    """Return how the node enforces limits of memory, cpus and processes: `group`, or the way of each limit."""
    ways = {name: _way(getattr(node.limits, name)) for name in ("memory", "cpus", "processes")}
    if len(set(ways.values())) == 1:
        return ways["memory"]
    return ", ".join(f"{name} {way}" for name, way in ways.items())


def _isolation_and_why(node: Node) -> str:
    """Return the same with the reason for no stronger one, if any."""
    return isolation_word(node) + (f": {node.isolation_note}" if node.isolation_note else "")


def _limits_and_why(node: Node) -> str:
    """Return the same with the reason if the kernel does not enforce them; "" if not reported."""
    if not node.HasField("limits"):
        return ""
    return limits_word(node) + (f": {node.limits.note}" if node.limits.note else "")


def _way(keeping: int) -> str:
    return "-" if not keeping else enum_word(resources_pb2.Keeping, keeping, "KEEPING_")


def is_simulated(node: Node) -> bool:
    """Return whether any of its devices is simulated."""
    return any(use.device.simulated for use in node.devices)


def note(node: Node) -> str:
    """Describe whose sessions it is restricted to, what it lacks by its agent's report, and withheld devices."""
    withheld = [use.device for use in node.devices if use.device.withheld]
    notes = (node.owner_note, node.setting_note, node.device_note, node.disk_note)
    parts = [said for said in notes if said]
    if withheld:
        reasons: dict[str, list[str]] = {}
        for device in withheld:
            reasons.setdefault(device.withheld, []).append(str(device.index))
        parts += [
            f"GPU {', '.join(indexes)} withheld: {reason}" for reason, indexes in reasons.items()
        ]
    return "; ".join(parts)


def _share(used: int, total: int) -> str:
    return f"{thousandths(used)}/{thousandths(total)}"


def _gpus(node: Node, _now: float) -> str:
    if not node.capacity.gpu_thousandths:
        return "-"
    text = _share(node.allocated.gpu_thousandths, node.capacity.gpu_thousandths)
    return f"{text} {SIMULATED}" if is_simulated(node) else text


def _gpus_within(node: Node, now: float, _cells: int) -> str:
    return _gpus(node, now).replace(SIMULATED, SIMULATED_SHORT)


def _contact_within(node: Node, now: float, cells: int) -> str:
    return ago_within(now - seconds_of(node.last_contact_at), cells)


def _is_measured(node: Node) -> bool:
    """Return whether this leader has a measurement: no machine uses 0 bytes."""
    return node.memory_used_bytes > 0


def _cpu_load(node: Node, _now: float) -> str:
    return f"{node.cpu_percent:.0f}%" if _is_measured(node) else "-"


def _memory(node: Node, _now: float) -> str:
    used = memory_text(node.memory_used_bytes) if _is_measured(node) else "-"
    return f"{used}/{memory_text(node.capacity.memory_bytes)}"


def _certificate(node: Node, now: float) -> str:
    """Describe the end of the node's certificate."""
    if not node.HasField("certificate_ends_at"):
        return "-"
    left_s = seconds_of(node.certificate_ends_at) - now
    return f"ends in {duration_text(left_s)}" if left_s > 0 else f"ended {ago(-left_s)}"


def warning(node: Node, now: float) -> str:
    """Warn of a certificate that ends soon, or a wrong clock; else ""."""
    parts = []
    if node.HasField("certificate_ends_at"):
        left_s = seconds_of(node.certificate_ends_at) - now
        if left_s < CERTIFICATE_WARNING_S:
            parts.append(f"certificate {_certificate(node, now)}")
    ahead_s = _clock_ahead_s(node)
    if abs(ahead_s) > WRONG_CLOCK_S:
        side = "ahead" if ahead_s > 0 else "behind"
        parts.append(f"clock {duration_text(abs(ahead_s))} {side}")
    return "; ".join(parts)


def _clock_ahead_s(node: Node) -> float:
    return seconds_of(node.clock_ahead)


def _whole_note(node: Node, now: float) -> str:
    return "; ".join(filter(None, [why_closed(node, now), warning(node, now), note(node)]))


COLUMNS: tuple[Column[Node], ...] = (
    Column(key="name", title="Name", cell=lambda n, _: n.name, is_name=True),
    Column(key="state", title="State", cell=lambda n, _: state_text(n)),
    Column(key="gpus", title="GPUs", cell=_gpus, shrinks_to=9, least=9, within=_gpus_within),
    Column(
        key="cpus",
        title="CPUs",
        cell=lambda n, _: _share(n.allocated.cpu_thousandths, n.capacity.cpu_thousandths),
    ),
    Column(key="load", title="CPU %", cell=_cpu_load),
    Column(key="memory", title="Memory", cell=_memory),
    Column(
        key="contact",
        title="Last contact",
        cell=lambda n, now: (
            ago(now - seconds_of(n.last_contact_at)) if n.HasField("last_contact_at") else "-"
        ),
        is_optional=True,
        shrinks_to=8,
        within=_contact_within,
        title_within=lambda _: "Contact",
    ),
    Column(
        key="isolation", title="Isolation", cell=lambda n, _: isolation_word(n), is_optional=True
    ),
    Column(key="limits", title="Limits", cell=lambda n, _: limits_word(n), is_wide=True),
    Column(key="note", title="Note", cell=_whole_note, shrinks_to=12),
    Column(key="engine", title="Engine", cell=lambda n, _: n.engine_note or "-", is_wide=True),
    Column(key="pod", title="Pod", cell=lambda n, _: n.pod or "-", is_wide=True),
    Column(key="host", title="Host", cell=lambda n, _: n.host, is_wide=True),
    Column(key="version", title="Version", cell=lambda n, _: n.agent_version, is_wide=True),
    Column(key="certificate", title="Certificate", cell=_certificate, is_wide=True),
)


def _load(item: NodeDevice, _now: float) -> str:
    percent = _utilization(item.use)
    return "-" if percent is None else f"{percent:.0f}%"


def _utilization(use: DeviceUse) -> float | None:
    """0 to 100; None if not measured: drivers do not report it for MIG instances."""
    percent = use.sample.utilization_percent
    is_told = use.HasField("sample") and (percent > 0 or not use.device.parent_uuid)
    return round(percent, 3) if is_told else None


def _device_memory(item: NodeDevice, _now: float) -> str:
    total = memory_text(item.use.device.memory_bytes)
    if not item.use.HasField("sample"):
        return f"-/{total}"
    return f"{memory_text(item.use.sample.memory_used_bytes)}/{total}"


def _model(item: NodeDevice, _now: float) -> str:
    device = item.use.device
    if device.simulated and SIMULATED not in device.model.lower():
        return f"{device.model} ({SIMULATED})"
    return device.model


def _model_within(item: NodeDevice, now: float, _cells: int) -> str:
    return _model(item, now).replace(f"({SIMULATED})", f"({SIMULATED_SHORT})")


def _clock(item: NodeDevice, _now: float) -> str:
    megahertz = item.use.sample.clock_mhz
    throttled = item.use.sample.throttled
    return (f"{megahertz} MHz" if megahertz else "-") + (f" ({throttled})" if throttled else "")


def _errors(item: NodeDevice, _now: float) -> str:
    """Return uncorrected memory errors and the last XID, if any."""
    sample = item.use.sample
    parts = [f"{sample.ecc_uncorrected} ECC"] if sample.ecc_uncorrected else []
    parts += [f"XID {sample.last_xid}"] if sample.last_xid else []
    return ", ".join(parts) or "-"


def _temperature(item: NodeDevice, _now: float) -> str:
    degrees = item.use.sample.temperature_celsius
    return f"{degrees:.0f}°C" if degrees else "-"


def _power(item: NodeDevice, _now: float) -> str:
    watts = item.use.sample.power_watts
    return f"{watts:.0f} W" if watts else "-"


def _held(item: NodeDevice, _now: float) -> str:
    """Return the share held by sessions; the reason for withholding it is in the node's note."""
    others = held_with(item)
    if others and not item.use.allocated_thousandths:
        return "as GPU " + ", ".join(str(device.index) for device in others)
    if not item.use.device.withheld:
        return thousandths(item.use.allocated_thousandths)
    if not item.use.allocated_thousandths:
        return "withheld"
    return f"{thousandths(item.use.allocated_thousandths)}, withheld"


def _sessions(item: NodeDevice, _now: float) -> str:
    known = [name for name in item.use.sessions if name]
    hidden = len(item.use.sessions) - len(known)
    if hidden:
        known.append(f"{hidden} of others")
    return ", ".join(known) or ("-" if not item.use.allocated_thousandths else "in use")


DEVICE_COLUMNS: tuple[Column[NodeDevice], ...] = (
    Column(key="node", title="Node", cell=lambda i, _: i.node.name),
    Column(key="index", title="GPU", cell=lambda i, _: str(i.use.device.index)),
    Column(key="model", title="Model", cell=_model, shrinks_to=16, within=_model_within),
    Column(key="load", title="Load", cell=_load),
    Column(key="memory", title="Memory", cell=_device_memory),
    Column(key="temperature", title="Temp", cell=_temperature, is_optional=True),
    Column(key="power", title="Power", cell=_power, is_optional=True),
    Column(
        key="allocated",
        title="Held",
        cell=_held,
    ),
    Column(key="sessions", title="Sessions", cell=_sessions, is_name=True),
    Column(
        key="withheld",
        title="Withheld",
        cell=lambda i, _: i.use.device.withheld or "-",
        is_wide=True,
    ),
    Column(key="clock", title="Clock", cell=_clock, is_wide=True),
    Column(key="errors", title="Errors", cell=_errors, is_wide=True),
    Column(key="uuid", title="UUID", cell=lambda i, _: i.use.device.uuid, is_wide=True),
    Column(
        key="parent",
        title="Parent",
        cell=lambda i, _: i.use.device.parent_uuid or "-",
        is_wide=True,
    ),
)


def device_record(item: NodeDevice) -> dict[str, Any]:
    """Return all fields of a device in raw values."""
    use = item.use
    sample = use.sample if use.HasField("sample") else None
    return {
        "node": item.node.name,
        "index": use.device.index,
        "uuid": use.device.uuid,
        "model": use.device.model,
        "simulated": use.device.simulated,
        "driver_version": use.device.driver_version or None,
        "cuda_version": use.device.cuda_version or None,
        "memory_bytes": use.device.memory_bytes,
        "memory_used_bytes": sample.memory_used_bytes if sample else None,
        "utilization_percent": _utilization(use),
        "power_watts": round(sample.power_watts, 3) if sample else None,
        "temperature_celsius": round(sample.temperature_celsius, 3) if sample else None,
        "clock_mhz": sample.clock_mhz if sample else None,
        "memory_clock_mhz": sample.memory_clock_mhz if sample else None,
        "ecc_corrected": sample.ecc_corrected if sample else None,
        "ecc_uncorrected": sample.ecc_uncorrected if sample else None,
        "last_xid": (sample.last_xid or None) if sample else None,
        "processes": sample.process_count if sample else None,
        "throttled": (sample.throttled or None) if sample else None,
        "withheld": use.device.withheld or None,
        "parent_uuid": use.device.parent_uuid or None,
        "allocated": use.allocated_thousandths / 1000,
        "held_with": [device.uuid for device in held_with(item)],
        "sessions": [name for name in use.sessions if name],
    }


def record(node: Node) -> dict[str, Any]:
    """Return all fields of a node in raw values."""
    return {
        "name": node.name,
        "state": enum_name(nodes_pb2.NodeState, node.state, "NODE_STATE_"),
        "host": node.host,
        "pod": node.pod or None,
        "networks": [network_word(one) for one in node.networks],
        "gang_network": node.gang_network or None,
        "isolation": isolation_word(node).upper(),
        "agent_version": node.agent_version,
        "last_contact_at": (
            moment(seconds_of(node.last_contact_at)) if node.HasField("last_contact_at") else None
        ),
        "capacity": _resources(node.capacity),
        "allocated": _resources(node.allocated),
        "cpu_percent": round(node.cpu_percent, 3) if _is_measured(node) else None,
        "memory_used_bytes": node.memory_used_bytes if _is_measured(node) else None,
        "device_note": node.device_note or None,
        "disk_note": node.disk_note or None,
        "owner_note": node.owner_note or None,
        "drain": _drain_record(node) if node.HasField("drain") else None,
        "fence": _fence_record(node) if node.HasField("fence") else None,
        "hold": _hold_record(node) if node.HasField("hold") else None,
        "limits": {
            **{name: _way(getattr(node.limits, name)) for name in _LIMITS},
            "note": node.limits.note or None,
        },
        "isolation_note": node.isolation_note or None,
        "setting_note": node.setting_note or None,
        "not_ready": node.not_ready or None,
        "engine_note": node.engine_note or None,
        "python_version": node.python_version or None,
        "simulated": is_simulated(node),
        "certificate_ends_at": (
            moment(seconds_of(node.certificate_ends_at))
            if node.HasField("certificate_ends_at")
            else None
        ),
        "clock_ahead_s": (round(_clock_ahead_s(node), 3) if node.HasField("clock_ahead") else None),
        "devices": [device_record(NodeDevice(node=node, use=use)) for use in node.devices],
    }


def _drain_record(node: Node) -> dict[str, Any]:
    drain = node.drain
    return {
        "asked_by": drain.asked_by,
        "reason": drain.reason or None,
        "asked_at": moment(seconds_of(drain.asked_at)),
        "move_at": moment(seconds_of(drain.move_at)) if drain.HasField("move_at") else None,
    }


def _fence_record(node: Node) -> dict[str, Any]:
    fence = node.fence
    return {
        "asked_by": fence.asked_by,
        "reason": fence.reason or None,
        "asked_at": moment(seconds_of(fence.asked_at)),
    }


def _hold_record(node: Node) -> dict[str, Any]:
    hold = node.hold
    return {
        "found_at": moment(seconds_of(hold.found_at)),
        "why": hold.why,
        "replicas": list(hold.replicas),
        "foreign": [
            {
                "replica": one.replica,
                "session": one.session_name or None,
                "device_uuids": list(one.device_uuids),
                "started_at": (
                    moment(seconds_of(one.started_at)) if one.HasField("started_at") else None
                ),
            }
            for one in hold.foreign
        ],
        "lifted_by": hold.lifted_by or None,
    }


def foreign_lines(node: Node, now: float) -> list[str]:
    """Describe foreign replicas on a held node, a line each; empty if hidden from the caller."""
    every = foreign_replicas(node, now)
    lines, left = every[:_MOST_FOREIGN], len(every[_MOST_FOREIGN:])
    return [*lines, f"and {left} more: nsml node show {node.name} -j"] if left else lines


def foreign_replicas(node: Node, now: float) -> list[str]:
    """Describe all foreign replicas on a held node, those named by its agent first."""
    known = {one.replica: one for one in node.hold.foreign}
    indexes = {use.device.uuid: use.device.index for use in node.devices}
    names = sorted(node.hold.replicas, key=lambda name: name not in known)
    return [
        _foreign_line(known.get(name, ForeignReplica(replica=name)), indexes, now) for name in names
    ]


def _foreign_line(one: ForeignReplica, indexes: Mapping[str, int], now: float) -> str:
    _, attempt, rank = one.replica.split(".")
    gpus = sorted(indexes[uuid] for uuid in one.device_uuids if uuid in indexes)
    since = f"started {ago(now - seconds_of(one.started_at))}" if one.HasField("started_at") else ""
    parts = [
        one.session_name or "a session that its agent cannot name",
        f"attempt {attempt}, rank {rank}",
        f"GPU {', '.join(map(str, gpus))}" if gpus else "",
        since,
        one.replica,
    ]
    return " · ".join(filter(None, parts))


def shown_record(answer: GetNodeResponse) -> dict[str, Any]:
    """Return all fields of a node and the names of its sessions."""
    return {
        **record(answer.node),
        "sessions": list(answer.sessions),
        "hidden_sessions": answer.hidden_sessions,
        "dataset_bytes": {
            "from_platform": answer.transfers.from_platform,
            "from_peers": answer.transfers.from_peers,
            "from_bucket": answer.transfers.from_bucket,
            "to_peers": answer.transfers.to_peers,
        },
        "dropped_peers": answer.transfers.dropped_peers,
        "bucket_note": answer.transfers.bucket_note,
    }


def shown_lines(answer: GetNodeResponse, now: float) -> list[str]:
    """Describe a node in a few lines (`nsml node show`)."""
    node = answer.node
    hidden = [f"{answer.hidden_sessions} of others"] if answer.hidden_sessions else []
    contact = (
        ago(now - seconds_of(node.last_contact_at)) if node.HasField("last_contact_at") else "-"
    )
    models = Counter(use.device.model for use in node.devices)
    drivers = {driver_text(use.device) for use in node.devices}
    cpus = _share(node.allocated.cpu_thousandths, node.capacity.cpu_thousandths)
    rows = [
        ("state", state_text(node)),
        ("why", why_closed(node, now)),
        ("host", node.host),
        ("pod", node.pod),
        ("isolation", _isolation_and_why(node)),
        ("network", _networks(node)),
        ("engine", node.engine_note),
        ("limits", _limits_and_why(node)),
        ("agent", _agent(node, now)),
        ("warning", warning(node, now)),
        ("contact", contact),
        (
            "gpus",
            " · ".join([_gpus(node, now), *(f"{n} x {model}" for model, n in models.items())]),
        ),
        ("driver", ", ".join(sorted(drivers - {""}))),
        ("python", node.python_version),
        ("cpus", f"{cpus} used"),
        ("memory", _memory(node, now)),
        ("datasets", _transfers(answer.transfers)),
        ("note", note(node)),
        ("sessions", ", ".join([*answer.sessions, *hidden]) or "none"),
        *zip_longest(("foreign",), foreign_lines(node, now), fillvalue=""),
    ]
    return [node.name, *(line for title, text in rows if text for line in _wrapped(title, text))]


def _transfers(transfers: NodeTransfers) -> str:
    """Describe dataset transfers since its agent started, and their sources; "" if none."""
    fetched = transfers.from_platform + transfers.from_peers + transfers.from_bucket
    words = []
    if fetched:
        others = [
            f"{size_text(size)} of it from {name}"
            for size, name in (
                (transfers.from_peers, "peers"),
                (transfers.from_bucket, "the bucket"),
            )
            if size
        ]
        words.append(
            f"{size_text(fetched)} fetched" + (f" ({', '.join(others)})" if others else "")
        )
    if transfers.to_peers:
        words.append(f"{size_text(transfers.to_peers)} sent to peers")
    if transfers.dropped_peers:
        words.append(f"{counted(transfers.dropped_peers, 'peer')} dropped (see its agent's log)")
    if transfers.bucket_note:
        words.append(transfers.bucket_note)
    return " · ".join(words)


def _agent(node: Node, now: float) -> str:
    has_certificate = node.HasField("certificate_ends_at")
    certificate = f"certificate {_certificate(node, now)}" if has_certificate else ""
    return " · ".join(filter(None, [node.agent_version, certificate]))


def _networks(node: Node) -> str:
    """Describe the networks of sessions and gangs: "own, host on request; gangs: host"."""
    asked = ", ".join(map(network_word, node.networks))
    asked += " on request" if len(node.networks) > 1 else ""
    gangs = node.gang_network and f"gangs: {node.gang_network}"
    return "; ".join(filter(None, [asked, gangs]))


def _wrapped(title: str, text: str) -> list[str]:
    """Wrap a row of `shown_lines` to about 100 columns: reasons can be several sentences."""
    lines = wrap(text, _ROW_COLUMNS, break_long_words=False, break_on_hyphens=False)
    return [f"  {'' if number else title:<10}{line}" for number, line in enumerate(lines)]


def _resources(resources: resources_pb2.Resources) -> dict[str, Any]:
    return {
        "gpus": resources.gpu_thousandths / 1000,
        "cpus": resources.cpu_thousandths / 1000,
        "memory_bytes": resources.memory_bytes,
    }


def cluster_record(cluster: GetClusterResponse) -> dict[str, Any]:
    """Return the platform in raw values."""
    leads = _somebody_leads(cluster)
    return {
        "version": cluster.version,
        "leader": cluster.leader if leads else None,
        "term": cluster.term if leads else 0,
        "coordination": cluster.coordination,
        "capacity": _resources(cluster.capacity),
        "allocated": _resources(cluster.allocated),
        "nodes_ready": cluster.nodes_ready,
        "nodes_total": cluster.nodes_total,
        "sessions_running": cluster.sessions_running,
        "sessions_queued": cluster.sessions_queued,
        "sessions_held": cluster.sessions_held,
        "simulated": cluster.simulated,
        "load": _load_record(cluster),
        "cluster_id": cluster.cluster_id,
        "closed_nodes": list(cluster.closed_nodes),
        "answered_by": cluster.answered_by or None,
        "members": [_member_record(member, leads=leads) for member in cluster.members],
        "known_at": moment(seconds_of(cluster.known_at)) if cluster.HasField("known_at") else None,
        "conditions": [_condition_record(one) for one in cluster.conditions],
    }


def _member_record(member: Member, *, leads: bool) -> dict[str, Any]:
    return {
        "name": member.name,
        "version": member.version,
        "user_address": member.user_address or None,
        "agent_address": member.agent_address or None,
        "local_address": member.local_address or None,
        "started_at": moment(seconds_of(member.started_at)),
        "is_leader": member.is_leader and leads,
    }


def _condition_record(condition: Condition) -> dict[str, Any]:
    return {
        "name": condition_name(condition),
        "subject": condition.subject or None,
        "since": moment(seconds_of(condition.since)) if condition.HasField("since") else None,
        "meaning": condition.meaning,
        "healing": condition.healing,
        "evidence": condition.evidence or None,
        "is_notice": is_notice(condition),
    }


def condition_name(condition: Condition) -> str:
    """Return `HISTORY_GONE`; the number of a condition unknown to this version."""
    return enum_name(nodes_pb2.ConditionName, condition.name, "CONDITION_NAME_")


def is_notice(condition: Condition) -> bool:
    """Return whether it is only informational: anybody who reaches the port can cause it, so monitoring must not fail on it."""
    return condition.name == nodes_pb2.CONDITION_NAME_JOIN_REFUSED


def condition_title(condition: Condition) -> str:
    """Return its name and subject: `CLOCK_OFF (gpu-3)`, `notice JOIN_REFUSED (192.0.2.7)`."""
    subject = f" ({condition.subject})" if condition.subject else ""
    grade = "notice " if is_notice(condition) else ""
    return f"{grade}{condition_name(condition)}{subject}"


def worst_first(cluster: GetClusterResponse) -> list[Condition]:
    """Return the conditions of the platform, notices last."""
    return sorted(cluster.conditions, key=is_notice)


def condition_lines(cluster: GetClusterResponse) -> list[str]:
    """Describe conditions, several lines each: since when, its meaning, its remedy."""
    now = seconds_of(cluster.now)
    lines = []
    for one in worst_first(cluster):
        lasts = (
            f" for {duration_text(now - seconds_of(one.since))}" if one.HasField("since") else ""
        )
        lines.append(f"{condition_title(one)}{lasts}")
        for said in (one.meaning, one.healing, one.evidence and f"found: {one.evidence}"):
            lines += [f"  {line}" for line in wrap(said, _ROW_COLUMNS, break_on_hyphens=False)]
    return lines


def cluster_lines(cluster: GetClusterResponse, *, server: str) -> list[str]:
    """Describe the platform in a few lines (`nsml status`)."""
    leader = _leader_words(cluster)
    gpus = _share(cluster.allocated.gpu_thousandths, cluster.capacity.gpu_thousandths)
    cpus = _share(cluster.allocated.cpu_thousandths, cluster.capacity.cpu_thousandths)
    simulated = f" ({SIMULATED})" if cluster.simulated else ""
    return [
        f"server    {server}",
        f"version   {cluster.version}",
        f"control   {leader} · {cluster.coordination}",
        *(f"standby   {_standby(one, cluster)}" for one in _standbys(cluster)),
        f"nodes     {cluster.nodes_ready}/{cluster.nodes_total} ready",
        f"gpus      {gpus} used{simulated}",
        *_load_lines(cluster),
        f"cpus      {cpus} used",
        f"sessions  {cluster.sessions_running} running · {cluster.sessions_queued} queued"
        + (f" · {cluster.sessions_held} held" if cluster.sessions_held else ""),
        *(f"note      {words}" for words in cluster.closed_nodes),
        *_age_lines(cluster),
    ]


def _load_record(cluster: GetClusterResponse) -> dict[str, Any] | None:
    load = cluster.load
    if not load.devices:
        return None
    return {
        "devices": load.devices,
        "held": load.held,
        "running": load.running,
        "busy": load.busy,
        "utilization_percent": round(load.utilization_percent, 3),
        "power_watts": round(load.power_watts, 3),
    }


def _load_lines(cluster: GetClusterResponse) -> list[str]:
    """Describe how many GPUs are in use, and how many above 80%."""
    load = cluster.load
    if not load.devices:
        return []
    shares = [round(100 * count / load.devices) for count in (load.running, load.busy)]
    mean = f"mean {load.utilization_percent:.0f}% · {load.power_watts / 1000:.1f} kW"
    return [f"load      {shares[0]}% of GPUs in use · {shares[1]}% above 80% · {mean}"]


def _standbys(cluster: GetClusterResponse) -> list[Member]:
    """Return all members that do not lead: all of them while there is no leader."""
    return [one for one in cluster.members if not (one.is_leader and _somebody_leads(cluster))]


def _standby(member: Member, cluster: GetClusterResponse) -> str:
    words = [member.name, _address(member)]
    if member.version != cluster.version:
        words.append(member.version)
    if member.name == cluster.answered_by:
        words.append("answers you")
    return " · ".join(filter(None, words))


def _address(member: Member) -> str:
    return member.user_address or member.local_address


def _can_lead(cluster: GetClusterResponse) -> bool:
    """Return whether any member can lead: leadership needs the store."""
    gone = nodes_pb2.CONDITION_NAME_COORDINATION_GONE
    return all(one.name != gone for one in cluster.conditions)


def _somebody_leads(cluster: GetClusterResponse) -> bool:
    return bool(cluster.leader) and _can_lead(cluster)


def _leader_words(cluster: GetClusterResponse) -> str:
    if not _can_lead(cluster):
        return "no control plane can lead now"
    if not cluster.leader:
        return "electing a leader"
    leads = f"{cluster.leader} leads term {cluster.term}"
    if len(cluster.members) == 1:
        return leads  # the server, named above
    addresses = [_address(one) for one in cluster.members if one.is_leader]
    return " · ".join(filter(None, [leads, *addresses]))


def _age_lines(cluster: GetClusterResponse) -> list[str]:
    """Return the age of the answer, if more than a moment."""
    old_s = seconds_of(cluster.now) - seconds_of(cluster.known_at)
    if not cluster.HasField("known_at") or old_s < _MOMENT_S:
        return []
    return [f"known     as it was {duration_text(old_s)} ago"]
