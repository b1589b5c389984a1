"""The machines of the demo, and the load of their devices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nsml._version import RELEASE
from nsml.v1 import nodes_pb2, resources_pb2
from nsml.v1 import sessions_pb2 as pb
from tui.demo.scenery import (
    CORES,
    GPU_MEMORY,
    GPUS,
    NODE_MEMORY,
    NODES,
    SILENT,
    device_at,
    is_silent,
    resources_of,
)
from tui.demo.scripted_session import active, stamp, state_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tui.demo.scripted_session import ScriptedSession


class Machines:
    """All of them, with times in seconds from `origin` on (Unix seconds)."""

    def __init__(self, origin: float) -> None:
        self._origin = origin

    def cluster(
        self, live: Sequence[ScriptedSession], nodes: Sequence[nodes_pb2.Node], now: float
    ) -> nodes_pb2.GetClusterResponse:
        """The platform, with these live sessions on these nodes."""
        holding = active(live, now)
        answer = nodes_pb2.GetClusterResponse(
            version=RELEASE,
            leader="garden-1",
            term=4,
            coordination="etcd",
            nodes_ready=sum(node.state == nodes_pb2.NODE_STATE_READY for node in nodes),
            nodes_total=len(nodes),
            sessions_running=len(holding),
            sessions_queued=sum(part.placed > now for part in live),
            sessions_held=sum(state_of(part, now) == pb.SESSION_STATE_HELD for part in live),
            simulated=True,
            answered_by="garden-1",
        )
        for name, hours in (("garden-1", 30), ("garden-2", 29)):
            member = answer.members.add(name=name, version=RELEASE, is_leader=name == "garden-1")
            stamp(member.started_at, self._origin - 3_600.0 * hours)
        for node in nodes:
            answer.capacity.cpu_thousandths += node.capacity.cpu_thousandths
            answer.allocated.cpu_thousandths += node.allocated.cpu_thousandths
            answer.capacity.gpu_thousandths += node.capacity.gpu_thousandths
            answer.allocated.gpu_thousandths += node.allocated.gpu_thousandths
        for node in nodes:
            if node.state == nodes_pb2.NODE_STATE_SILENT:
                answer.conditions.add(
                    name=nodes_pb2.CONDITION_NAME_NODES_SILENT,
                    subject=node.name,
                    meaning=f"no contact with {node.name}; its sessions may still be running",
                )
        uses = [use for node in nodes for use in node.devices]
        loads = [use.sample.utilization_percent for use in uses]
        answer.load.devices = len(uses)
        answer.load.held = sum(use.allocated_thousandths > 0 for use in uses)
        answer.load.running = sum(load > 0 for load in loads)
        answer.load.busy = sum(load > 80 for load in loads)
        answer.load.utilization_percent = sum(loads) / len(loads)
        answer.load.power_watts = sum(use.sample.power_watts for use in uses)
        return answer

    def node(self, place: int, live: Sequence[ScriptedSession], now: float) -> nodes_pb2.Node:
        """The node of a place, with its use by the live sessions."""
        node = nodes_pb2.Node(
            name=NODES[place],
            state=nodes_pb2.NODE_STATE_READY,
            agent_version=RELEASE,
            isolation=resources_pb2.ISOLATION_CONTAINER,
            host=f"{NODES[place]}.garden.example",
            pod="hedge" if place < 3 else "meadow",
        )
        holder: dict[int, ScriptedSession] = {}
        for part in active(live, now):
            for node_at, devices in part.places:
                if node_at == place:
                    holder.update(dict.fromkeys(devices, part))
        node.capacity.gpu_thousandths = 1000 * GPUS
        node.capacity.cpu_thousandths = 1000 * CORES
        node.capacity.memory_bytes = NODE_MEMORY
        held = resources_of(len(holder))
        node.allocated.CopyFrom(held)
        node.cpu_percent = 2 + 85 * held.cpu_thousandths / node.capacity.cpu_thousandths
        node.memory_used_bytes = 9 * 1024**3 + int(0.7 * held.memory_bytes)
        stamp(node.last_contact_at, self._origin + (now - place * 0.3))
        if is_silent(place, now):
            node.state = nodes_pb2.NODE_STATE_SILENT
            stamp(node.last_contact_at, self._origin + SILENT[1])
        for index in range(GPUS):
            node.devices.append(_use(place, index, holder.get(index), now))
        return node


def _use(node: int, index: int, part: ScriptedSession | None, now: float) -> nodes_pb2.DeviceUse:
    """A device and its load: an unused one has none."""
    use = nodes_pb2.DeviceUse(
        device=device_at(node, index), allocated_thousandths=0 if part is None else 1000
    )
    if part is not None:
        use.sessions.append(part.name)
    figures = figures_of(node, index, part, now)
    use.sample.utilization_percent = figures["utilization_percent"]
    use.sample.memory_used_bytes = int(figures["memory_used_bytes"])
    use.sample.power_watts = figures["power_watts"]
    use.sample.temperature_celsius = figures["temperature_celsius"]
    use.sample.clock_mhz = 1_980 if use.sample.utilization_percent else 345
    return use


def figures_of(node: int, index: int, part: ScriptedSession | None, now: float) -> dict[str, float]:
    """Measurements of a device at a time."""
    load = 0.0
    if part is not None and state_of(part, now) == pb.SESSION_STATE_RUNNING:
        # Each device swings around its own load, so that none looks like another.
        own = 78 + (7 * index + 5 * node) % 15
        load = own + 8 * math.sin(now / 9 + index + 2 * node)
        load = 0.0 if part.idle_from is not None and now >= part.idle_from else min(load, 100.0)
    share = 0.0 if part is None else 0.35 + 0.06 * ((part.number + index) % 9)
    return {
        "utilization_percent": load,
        "memory_used_bytes": share * GPU_MEMORY,
        "power_watts": 62 + 5.6 * load,
        "temperature_celsius": 31 + 0.42 * load,
    }
