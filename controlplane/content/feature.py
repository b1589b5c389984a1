"""Content: uploads, downloads, garbage collection."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from controlplane.content.admitted_objects import AdmittedObjects
from controlplane.content.content import Content
from controlplane.content.direct import DirectReads
from controlplane.content.node_repairs import NodeRepairs
from controlplane.content.object_gc import Collector
from controlplane.content.object_gc_loop import Collecting, Forgetting, Maintaining
from controlplane.content.observed_clock import ObservedClock
from controlplane.content.service import ContentServicer, add_content_service
from controlplane.content.user_storage_loop import CountingKept
from controlplane.content.verification import Verification
from controlplane.content.withdrawals import Withdrawals
from controlplane.core.feature import Feature
from controlplane.state.agent_connections import Ability, too_old

if TYPE_CHECKING:
    from controlplane.core.core import Core
    from controlplane.state.live_state import LiveState


def admitted_objects(core: Core) -> AdmittedObjects:
    """The object store with users' limits."""
    return AdmittedObjects(core.objects, core.admission, core.state)


def withdrawals(core: Core) -> Withdrawals:
    """Counters of withdrawn access to content."""
    return Withdrawals(core.store, core.state)


def content(core: Core) -> Content:
    """Blobs, manifests and access to them."""
    bucket = core.backends.bucket
    return Content(
        objects=core.shared(admitted_objects),
        history=core.history,
        state=core.state,
        clock=core.clock,
        admission=core.admission,
        run=core.offload,
        check_paged=partial(_check_paged, core.state),
        withdrawals=core.shared(withdrawals),
        direct=None if bucket is None else DirectReads(bucket, core.history.packs),
    )


def _check_paged(state: LiveState, node: str) -> None:
    """Raise StateConflict if a node's agent cannot read paged trees, whichever control plane it is connected to."""
    stored = state.nodes.get(node)
    if stored is not None and Ability.PAGED_TREES.name not in stored.value.abilities:
        raise too_old(node, stored.value.agent_version, Ability.PAGED_TREES)


def verification(core: Core) -> Verification:
    """Finds damaged or missing blobs."""
    return Verification(
        objects=core.objects, history=core.history, state=core.state, run=core.offload
    )


def node_repairs(core: Core) -> NodeRepairs:
    """Restores such blobs from nodes."""
    return NodeRepairs(
        verification=core.shared(verification),
        objects=core.objects,
        history=core.history,
        state=core.state,
        contacts=core.contacts,
        clock=core.clock,
        random_bytes=core.random_bytes,
    )


def observed_clock(core: Core) -> ObservedClock:
    """Measures the age of objects for deletion."""
    return ObservedClock(
        objects=core.objects,
        history=core.history,
        clock=core.clock,
        grace_s=core.config.collect_after_s,
    )


def collector(core: Core) -> Collector:
    """Collects unreferenced objects, and counts storage."""
    return Collector(
        objects=core.objects,
        history=core.history,
        state=core.state,
        observed=core.shared(observed_clock),
        may=core.leads,
        term=core.term,
        users=core.identities.ids,
        projects=core.state.projects.keys,
        run=core.offload,
    )


def wire(core: Core) -> Feature:
    """Offer ContentService; the leader maintains, collects and counts."""
    observed = core.shared(observed_clock)
    found, collects = core.shared(content), core.shared(collector)
    collecting = Collecting(collector=collects, clock=core.clock)
    maintaining = Maintaining(objects=core.objects, may=core.leads, clock=core.clock)
    counting = CountingKept(
        collector=collects, kept=core.kept, clock=core.clock, project_kept=core.project_kept
    )
    forgetting = Forgetting(content=found, clock=core.clock)
    servicer = ContentServicer(
        found,
        core.shared(verification),
        core.shared(node_repairs),
        core.shared(admitted_objects),
        leads=core.leads,
    )
    return Feature(
        services=((add_content_service, servicer),),
        member_loops={"manifests": found.run},
        leader_loops=(
            maintaining.run,
            *((observed.run, collecting.run) if core.config.collect_after_s else ()),
            counting.run,
            forgetting.run,
        ),
    )
