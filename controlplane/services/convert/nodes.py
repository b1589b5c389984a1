"""What was decided about nodes, as the contract says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.domain.node_availability import hold_words
from controlplane.services.convert.times import timestamp
from nsml.v1 import nodes_pb2 as pb

if TYPE_CHECKING:
    from controlplane.domain.conditions import Condition
    from controlplane.domain.errors import StateConflict
    from controlplane.domain.values import Drain, Fence, Hold, PlacedAs
    from controlplane.operations.members import Member
    from controlplane.operations.usage import Load
    from controlplane.store.election import Leader


def member_message(member: Member, leader: Leader | None) -> pb.Member:
    """One control plane, and whether it is the leader."""
    return pb.Member(
        name=member.name,
        version=member.version,
        user_address=member.user_address,
        agent_address=member.agent_address,
        local_address=member.local_address,
        started_at=timestamp(member.started_at),
        is_leader=leader is not None and leader.member == member.name,
    )


def condition_message(condition: Condition, *, shows_evidence: bool) -> pb.Condition:
    """Something that is wrong; what the failing part said only to who may know of its insides."""
    told = (condition.evidence, condition.remark)
    return pb.Condition(
        name=f"CONDITION_NAME_{condition.name.value}",
        subject=condition.subject,
        since=timestamp(condition.since),
        meaning=condition.meaning,
        healing=condition.healing,
        evidence="; ".join(filter(None, told)) if shows_evidence else "",
    )


def load_message(load: Load) -> pb.ClusterLoad | None:
    """What all devices do; None where nothing is known of any."""
    if not load.devices:
        return None
    return pb.ClusterLoad(
        devices=load.devices,
        held=load.held,
        running=load.running,
        busy=load.busy,
        utilization_percent=load.utilization,
        power_watts=load.watts,
    )


def drain_message(drain: Drain | None) -> pb.Drain | None:
    """Why a node takes nothing new."""
    if drain is None:
        return None
    return pb.Drain(
        asked_by=drain.asked_by,
        reason=drain.reason,
        asked_at=timestamp(drain.asked_at),
        move_at=timestamp(drain.move_at),
    )


def fence_message(fence: Fence | None) -> pb.Fence | None:
    """Who said that what a node ran is gone."""
    if fence is None:
        return None
    return pb.Fence(
        asked_by=fence.asked_by, reason=fence.reason, asked_at=timestamp(fence.asked_at)
    )


def refusal_message(refusal: StateConflict | None) -> pb.FenceRefusal | None:
    """What a fence would be refused with."""
    if refusal is None:
        return None
    return pb.FenceRefusal(message=refusal.message, why=refusal.why, attempt=refusal.attempt)


def hold_message(hold: Hold | None, *, names_replicas: bool) -> pb.Hold | None:
    """What a node has that our store never had; ids of sessions only to who may see them all."""
    if hold is None:
        return None
    return pb.Hold(
        found_at=timestamp(hold.found_at),
        why=hold_words(hold),
        replicas=[".".join(map(str, key)) for key in sorted(hold.replicas) if names_replicas],
        foreign=[_foreign_message(*one) for one in hold.foreign if names_replicas],
        lifted_by=hold.lifted_by,
    )


def _foreign_message(key: tuple[str, int, int], known: PlacedAs) -> pb.ForeignReplica:
    return pb.ForeignReplica(
        replica=".".join(map(str, key)),
        session_name=known.session_name,
        device_uuids=known.device_uuids,
        started_at=timestamp(known.started_at),
    )
