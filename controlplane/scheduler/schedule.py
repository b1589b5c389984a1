"""The decision in one call: which queued sessions of a snapshot start now, and why the others wait."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from controlplane.scheduler.index import ClusterIndex
from controlplane.scheduler.queue_queries import QueueQueries

if TYPE_CHECKING:
    from controlplane.domain.plan import Plan
    from controlplane.domain.snapshot import ClusterSnapshot


def schedule(snapshot: ClusterSnapshot, now: float) -> Plan:
    """Propose placements for what is queued; the same snapshot and instant give the same plan.

    Looks at everything: who plans again and again keeps a `ClusterIndex`.

    Args:
        snapshot: the cluster at one revision.
        now: Unix seconds; sessions whose `not_before` is later wait.
    """
    index = ClusterIndex.of(snapshot)
    plan = index.plan(now)
    return replace(plan, deferrals=QueueQueries(index).deferrals(now))
