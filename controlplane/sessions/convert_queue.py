"""Messages on the queue and on wait reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from controlplane.codec import encoder
from controlplane.domain.plan import Shortage
from controlplane.domain.policy import ALLOW, SEE, may
from controlplane.projects.convert import share_message
from controlplane.wire.resources import (
    PRIORITIES,
    network_name,
    resources_message,
    to_network,
    to_priority,
)
from controlplane.wire.times import seconds_of, timestamp
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from controlplane.domain.identity import UserCaller
    from controlplane.domain.plan import Deferral, Holder
    from controlplane.domain.values import Session, SessionSpec
    from controlplane.scheduler import Start
    from controlplane.state.charge_totals import Accounts


_SHORTAGE: Final = encoder(Shortage, pb.Shortage)


def waiting_message(
    deferral: Deferral, *, queued: int, viewer: UserCaller, accounts: Accounts
) -> pb.Waiting:
    """Explain why a session waits; holders hidden from the viewer show only their owner."""
    why = deferral.explanation
    return pb.Waiting(
        place=deferral.place,
        queued=queued,
        reason=why.reason,
        shortages=map(_SHORTAGE.to_message, why.shortages),
        never=not why.can_ever_fit,
        short=deferral.short,
        holders=[_holder_message(one, viewer) for one in deferral.holders],
        expected_start=timestamp(deferral.expected_start),
        budget_renews=timestamp(deferral.renews_at),
        room_is_held=deferral.is_held,
        share=share_message(deferral.share, accounts) if deferral.share else None,
    )


def _holder_message(holder: Holder, viewer: UserCaller) -> pb.Holder:
    session = holder.session
    return pb.Holder(
        session=session.name if may(viewer, SEE, session) is ALLOW else "",
        owner=session.owner,
        held=holder.held,
        nodes=len(holder.nodes),
        until=timestamp(holder.until),
    )


def queued_message(
    session: Session,
    *,
    place: int,
    viewer: UserCaller,
    reason: str,
    start: Start,
    share: float,
) -> pb.QueuedSession:
    """Build a row of the queue; sessions hidden from the viewer show only owner, size and age."""
    spec = session.spec
    message = pb.QueuedSession(
        place=place,
        owner=session.owner,
        resources=resources_message(spec.resources),
        replica_count=spec.replica_count,
        created_at=timestamp(session.created_at),
    )
    if may(viewer, SEE, session) is ALLOW:
        seen = pb.QueuedSession(
            session=session.name,
            project=session.project,
            priority=PRIORITIES[spec.priority],
            gpu_model=spec.gpu_model,
            pod=spec.pod,
            network=network_name(spec.network),
            reason=reason,
            expected_start=timestamp(start.at),
            budget_renews=timestamp(start.renews_at),
            room_is_held=start.is_held,
            share=share,
        )
        message.MergeFrom(seen)
    return message


def to_supposed(change: pb.WhatIf, spec: SessionSpec) -> SessionSpec:
    """Apply a what-if change to a spec."""
    resources = spec.resources
    for field in ("gpu_thousandths", "cpu_thousandths", "memory_bytes"):
        if change.HasField(field):
            resources = replace(resources, **{field: getattr(change, field)})
    return replace(
        spec,
        resources=resources,
        replica_count=change.replica_count
        if change.HasField("replica_count")
        else spec.replica_count,
        priority=to_priority(change.priority) if change.priority else spec.priority,
        time_limit_s=seconds_of(change.time_limit)
        if change.HasField("time_limit")
        else spec.time_limit_s,
        gpu_model=" ".join(change.gpu_model.split())
        if change.HasField("gpu_model")
        else spec.gpu_model,
        pod=change.pod if change.HasField("pod") else spec.pod,
        network=to_network(change.network) if change.HasField("network") else spec.network,
    )
