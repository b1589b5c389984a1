"""The scheduler: `ClusterIndex.plan(now) -> Plan`, updated by changes. Pure; see README.md."""

from controlplane.scheduler.cluster import Cluster
from controlplane.scheduler.fit import Request, request_of
from controlplane.scheduler.index import ClusterIndex
from controlplane.scheduler.max_capacity import (
    MaxCapacity,
    can_ever_fit,
    keep_to_owners,
    runs_nowhere,
)
from controlplane.scheduler.preemption_policy import NOTICE_S, RULES, InClass, Rules, may_give_way
from controlplane.scheduler.queue_queries import Found, QueueQueries, Start

__all__ = [
    "NOTICE_S",
    "RULES",
    "Cluster",
    "ClusterIndex",
    "Found",
    "InClass",
    "MaxCapacity",
    "QueueQueries",
    "Request",
    "Rules",
    "Start",
    "can_ever_fit",
    "keep_to_owners",
    "may_give_way",
    "request_of",
    "runs_nowhere",
]
