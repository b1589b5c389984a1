"""Sessions of the demo as the platform reports them: states, queue, and reasons."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nsml.common.units import counted
from nsml.v1 import nodes_pb2
from nsml.v1 import sessions_pb2 as pb
from tui.demo import inside, tabs
from tui.demo.scenery import DATASETS, NODES, device_at, resources_of
from tui.demo.scripted_session import (
    active,
    end_of,
    free_devices,
    in_order,
    project_of,
    stamp,
    state_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tui.demo.scripted_session import ScriptedSession


class Sessions:
    """All of them, with times in seconds from `origin` on (Unix seconds)."""

    def __init__(self, parts: Sequence[ScriptedSession], origin: float) -> None:
        self._parts = parts
        self._origin = origin

    def session(self, part: ScriptedSession, now: float) -> pb.Session:
        """Its state at a time."""
        session = pb.Session(
            id=part.id,
            name=part.name,
            owner=part.user,
            project=project_of(part),
            state=state_of(part, now),
            memo=part.memo,
            simulated=True,
        )
        spec = session.spec
        spec.entry, spec.replica_count, spec.priority = (
            part.program.entry,
            part.replicas,
            part.priority,
        )
        spec.args.extend(part.program.args.split())
        spec.resources.CopyFrom(resources_of(part.gpus))
        owner = DATASETS[part.program.dataset][0]
        name = part.program.dataset
        spec.datasets.add(name=name if owner == part.user else f"{owner}/{name}", version=1)
        stamp(session.created_at, self._origin + part.created)
        if now < part.placed:
            session.waiting = self._reason(part, now)
            return session
        session.attempt = 1
        for rank, (node, devices) in enumerate(part.places):
            replica = session.replicas.add(rank=rank, node=NODES[node])
            replica.resources.CopyFrom(resources_of(part.gpus))
            replica.devices.extend(device_at(node, device) for device in devices)
        if now >= part.started:
            stamp(session.started_at, self._origin + part.started)
            self._report(session, part, now)
            session.changes.extend(inside.changes(part, self._origin, now))
        if now >= part.started + part.runs_s and part.stopping_s:
            session.stop.cause, session.stop.asked_by = pb.CAUSE_STOP_REQUESTED, part.user
            stamp(session.stop.until, self._origin + part.stopped)
        if now >= part.ended:
            stamp(session.ended_at, self._origin + part.stopped)
            session.ClearField("stop")
            session.end.CopyFrom(end_of(part, now))
            if session.state == pb.SESSION_STATE_HELD:
                session.held_cause = pb.HELD_CAUSE_START_FAILURES
        return session

    def _report(self, session: pb.Session, part: ScriptedSession, now: float) -> None:
        last = part.reports(now) - 1
        if last < 0:
            return
        values = {name: part.value(name, last) for name in part.program.metrics}
        session.summary.update({"step": last * part.program.steps, **values})
        session.summary_names.extend(["step", *values])
        session.checkpoint_count = int(part.ran_s(now) // tabs.SAVES_EVERY_S)
        idle = now if part.idle_from is None else min(part.idle_from, now)
        if idle < now < part.stopped:
            episode = session.episodes.add(
                kind=pb.EPISODE_KIND_IDLE, reason="its GPUs stayed at 0 % and nothing was reported"
            )
            stamp(episode.since, self._origin + idle)

    # Queue

    def _reason(self, part: ScriptedSession, now: float) -> str:
        free = [len(devices) for devices in free_devices(self._parts, now)]
        if part.replicas > 1:
            room = sum(count >= part.gpus for count in free)
            return f"needs {part.replicas} nodes with {part.gpus} GPUs each; {room} of {len(NODES)} have them free"
        needs = f"needs {counted(part.gpus, 'GPU')} on one node"
        if max(free) >= part.gpus:
            return f"{needs}; those that are free are held for a session ahead of it"
        return f"{needs}; most free on one node: {max(free)}"

    def queue(
        self, waiting: Sequence[ScriptedSession], nodes: Sequence[nodes_pb2.Node], now: float
    ) -> pb.ListQueueResponse:
        """The queue, in order."""
        free = [len(devices) for devices in free_devices(self._parts, now)]
        hole = max(free)
        answer = pb.ListQueueResponse(
            queued=len(waiting),
            chosen=len(waiting),
            asked_gpu_thousandths=sum(1000 * part.gpus * part.replicas for part in waiting),
            free_gpu_thousandths=1000 * sum(free),
            largest_hole=hole,
            largest_hole_node=nodes[free.index(hole)].name if hole else "",
        )
        for place, part in enumerate(in_order(waiting), 1):
            row = answer.sessions.add(
                place=place,
                session=part.name,
                owner=part.user,
                project=project_of(part),
                replica_count=part.replicas,
                priority=part.priority,
                reason=self._reason(part, now),
            )
            row.resources.CopyFrom(resources_of(part.gpus))
            stamp(row.created_at, self._origin + part.created)
            if math.isfinite(part.placed):
                stamp(row.expected_start, self._origin + part.placed)
        return answer

    def explanation(self, part: ScriptedSession, now: float) -> pb.ExplainSessionResponse:
        """Why it waits."""
        answer = pb.ExplainSessionResponse(session=self.session(part, now))
        waiting = in_order([one for one in self._parts if one.created <= now < one.placed])
        if part not in waiting:
            return answer
        told = answer.waiting
        told.place, told.queued = waiting.index(part) + 1, len(waiting)
        told.reason, told.short = self._reason(part, now), "GPUs"
        short = sum(len(devices) < part.gpus for devices in free_devices(self._parts, now))
        if short:
            told.shortages.add(what="GPUs", nodes=short)
        if rest := len(NODES) - short:
            told.shortages.add(what="has room for some of its replicas", nodes=rest)
        holders = sorted(active(self._parts, now), key=lambda one: -one.gpus * one.replicas)
        for one in holders[:3]:
            holder = told.holders.add(
                session=one.name,
                owner=one.user,
                held=1000 * one.gpus * one.replicas,
                nodes=len({node for node, _ in one.places}),
            )
            stamp(holder.until, self._origin + one.stopped)
        if math.isfinite(part.placed):
            stamp(told.expected_start, self._origin + part.placed)
        return answer
