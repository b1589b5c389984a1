"""Messages on nodes, members and conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.codec import encoder
from controlplane.domain.node_availability import hold_words
from controlplane.domain.values import Drain, Fence, PlacedAs
from controlplane.state.members import Member
from controlplane.usage.usage import Load
from controlplane.wire.times import timestamp
from nsml.v1 import nodes_pb2 as pb

if TYPE_CHECKING:
    from controlplane.domain.conditions import Condition
    from controlplane.domain.errors import StateConflict
    from controlplane.domain.values import Hold
    from controlplane.store.election import Leader


_MEMBER: Final = encoder(
    Member,
    pb.Member,
    extra=("is_leader",),
    omit=("jump_address", "instance", "settings", "findings"),
)


def member_message(member: Member, leader: Leader | None) -> pb.Member:
    """Convert a control plane; say whether it is the leader."""
    message = _MEMBER.to_message(member)
    message.is_leader = leader is not None and leader.member == member.name
    return message


def condition_message(condition: Condition, *, shows_evidence: bool) -> pb.Condition:
    """Convert a condition; evidence is only for callers who may see internals."""
    told = (condition.evidence, condition.remark)
    return pb.Condition(
        name=f"CONDITION_NAME_{condition.name.value}",
        subject=condition.subject,
        since=timestamp(condition.since),
        meaning=condition.meaning,
        healing=condition.healing,
        evidence="; ".join(filter(None, told)) if shows_evidence else "",
    )


_LOAD: Final = encoder(
    Load, pb.ClusterLoad, rename={"utilization": "utilization_percent", "watts": "power_watts"}
)


def load_message(load: Load) -> pb.ClusterLoad | None:
    """Convert the load of all devices; None if there are no readings."""
    return _LOAD.to_message(load) if load.devices else None


_DRAIN: Final = encoder(Drain, pb.Drain)


def drain_message(drain: Drain | None) -> pb.Drain | None:
    """Convert a drain."""
    return None if drain is None else _DRAIN.to_message(drain)


_FENCE: Final = encoder(Fence, pb.Fence, omit=("boot_id", "replicas"))


def fence_message(fence: Fence | None) -> pb.Fence | None:
    """Convert a fence."""
    return None if fence is None else _FENCE.to_message(fence)


def refusal_message(refusal: StateConflict | None) -> pb.FenceRefusal | None:
    """Convert the refusal of a fence."""
    if refusal is None:
        return None
    return pb.FenceRefusal(message=refusal.message, why=refusal.why, attempt=refusal.attempt)


def hold_message(hold: Hold | None, *, names_replicas: bool) -> pb.Hold | None:
    """Convert a hold; replicas are only for callers who may see all sessions."""
    if hold is None:
        return None
    return pb.Hold(
        found_at=timestamp(hold.found_at),
        why=hold_words(hold),
        replicas=[".".join(map(str, key)) for key in sorted(hold.replicas) if names_replicas],
        foreign=[_foreign_message(*one) for one in hold.foreign if names_replicas],
        lifted_by=hold.lifted_by,
    )


_FOREIGN: Final = encoder(PlacedAs, pb.ForeignReplica, extra=("replica",))


def _foreign_message(key: tuple[str, int, int], known: PlacedAs) -> pb.ForeignReplica:
    message = _FOREIGN.to_message(known)
    message.replica = ".".join(map(str, key))
    return message
