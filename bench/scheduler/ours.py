"""Our placement: the scheduler's own index, to which each pod is a session that is submitted and must start at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.scheduler.records import Records, node_of
from controlplane.domain.values import Resources, Session, SessionSpec

if TYPE_CHECKING:
    import random

    from bench.scheduler.traces import Machine, Pod


class Ours:
    """Where `ClusterIndex` places a session that asks for what the pod does."""

    def __init__(self, machines: list[Machine], _pods: list[Pod], _rng: random.Random) -> None:
        self._came = 0
        self.records = Records(
            node_of(
                one.name,
                one.model,
                one.gpus,
                cpu_thousandths=one.cpu_thousandths,
                memory_bytes=one.memory_bytes,
            )
            for one in machines
        )

    def place(self, pod: Pod) -> bool:
        """Whether it found a node."""
        self._came += 1
        now = float(self._came)
        session = _session_of(pod, self._came, now)
        self.records.submit(session)
        plan = self.records.index.plan(now)
        self.records.commit(plan, now)
        if plan.placements:
            return True
        self.records.remove(session.id)
        return False


def _session_of(pod: Pod, number: int, now: float) -> Session:
    return Session(
        id=f"{number:08}",
        name=f"pods/None/{number}",
        owner="pods",
        created_at=now,
        spec=SessionSpec(
            resources=Resources(
                gpu_thousandths=pod.total_thousandths,
                # 0 would mean the default of a node.
                cpu_thousandths=max(pod.cpu_thousandths, 1),
                memory_bytes=max(pod.memory_bytes, 1),
            ),
            gpu_model="|".join(sorted(pod.models)),
        ),
    )
