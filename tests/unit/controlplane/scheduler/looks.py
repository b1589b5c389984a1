"""All that an index knows, as plain values: two that decide alike forever after are equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from controlplane.scheduler import ClusterIndex
from controlplane.scheduler.entitlement import Entitlements, Holder
from controlplane.scheduler.fragmentation import Fragmentation
from controlplane.scheduler.node_capacity import Tie
from controlplane.scheduler.node_index import NodeIndex
from controlplane.scheduler.preemption_candidates import Yielders
from controlplane.scheduler.queue_classes import Queue, QueueClass
from controlplane.scheduler.release_times import Ends
from controlplane.scheduler.reservations import Holding

CACHES = {
    Holding: {"_full", "is_spent"},
    ClusterIndex: {
        *("_fits", "_planned"),
        # What its cluster has, at hand.
        *("_rooms", "_queue", "_holding", "_entitlements", "_yielders", "_kept", "_started"),
    },
    NodeIndex: {
        "changed",
        "lost",
        "revision",
        "edits",
        "withdrawn_edits",
        "_withdrawn",
        "_kinds",
        "_kind_orders",
        "_ties",
        "_numbers",
        "_next_number",
        "_most_changed",
        "era",
        "_followers",
        "_untold",
    },
    Ends: {"_touched", "now", "twice", "_nodes", "_where", "_alike", "_since", "_exact"},
    Yielders: {"_changed", "_due", "_later", "_now", "_standing", "_stands"},
    QueueClass: {"fits", "_waiting", "_spent", "first"},
    Queue: {"revision", "_put_off"},
    Entitlements: {"revision"},
    # Accounts tell who holds something of them.
    Holder: {"account"},
}
"""What is worked out anew where it is missing, counts of changes, and orders that are told below."""


def look(index: ClusterIndex) -> Any:
    """Everything, but for what makes no difference; whether a plan is due besides."""
    is_planned = index._planned == index._at()
    # Who stands in no line, which the heap tells with some that have left.
    put_off = {
        one.id: one.not_before
        for one in index.cluster.queued()
        if not index.cluster.queue.line_of(one.id)
    }
    return (_plain(index), is_planned, index.due(), put_off)


def _plain(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, Tie):
        return ("tie", value.state, sorted(value.rooms))
    if isinstance(value, Counter):
        return {one: count for one, count in value.items() if count}
    if isinstance(value, Mapping):
        return {one: _plain(other) for one, other in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if kind.__eq__ is not object.__eq__:
        return value
    if not kind.__module__.startswith("controlplane.scheduler") or kind is Fragmentation:
        return id(value)
    names = {*getattr(value, "__dict__", {}), *getattr(kind, "__slots__", ())}
    names -= CACHES.get(kind, set())
    found = {one: _plain(getattr(value, one)) for one in sorted(names)}
    return (
        kind.__name__,
        found,
        [one.id for one in value] if isinstance(value, QueueClass) else (),
    )
