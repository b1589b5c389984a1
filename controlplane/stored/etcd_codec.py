"""Converts domain values to etcd records and back; defines the keys, too.

A newer version reads records of an older one, but not vice versa: rewriting a record drops fields
unknown to the writer's version, so all control planes of a store are of one version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from controlplane.codec import Convert, Spread, codec
from controlplane.domain.cluster import Cluster
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.notices import Notice
from controlplane.domain.values import (
    HOST_NETWORK,
    WHOLE_DEVICE,
    Allocation,
    Cause,
    Drain,
    Fence,
    GitFacts,
    HeldCause,
    Hold,
    Keeping,
    KeptLimits,
    Node,
    PlacedAs,
    Priority,
    Progress,
    Project,
    Replica,
    Resources,
    Session,
    SessionSpec,
    TeamQuota,
    Usage,
)
from controlplane.store.interface import Put, Transaction
from controlplane.stored.v1 import records_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SESSIONS: Final = "session/"
ALLOCATIONS: Final = "alloc/"
NODES: Final = "node/"
PROJECTS: Final = "project/"
TEAM_QUOTAS: Final = "team-quota/"
NAMES: Final = "name/"
REQUESTS: Final = "request/"
COUNTERS: Final = "counter/"
NOTICES: Final = "notice/"
CLUSTER: Final = "cluster"
PLATFORM_KEYS: Final = "platform-keys"
PROBE: Final = Transaction(success=(Put(key="probe", value=b""),))
"""A write without meaning: shows whether the store accepts writes, and makes a new revision."""


def session_key(session_id: str) -> str:
    """Key of a live session."""
    return SESSIONS + session_id


def allocation_key(node: str) -> str:
    """Key of a node's allocation."""
    return ALLOCATIONS + node


def node_key(node: str) -> str:
    """Key of a node."""
    return NODES + node


def project_key(name: str) -> str:
    """Key of a project."""
    return PROJECTS + name


def team_quota_key(competition_id: str) -> str:
    """Key of the quota of a competition's teams."""
    return TEAM_QUOTAS + competition_id


def name_key(name: str) -> str:
    """Key in the unique index of names."""
    return NAMES + name


def request_key(owner: str, request_id: str) -> str:
    """Key in the unique index of request ids."""
    return f"{REQUESTS}{owner}/{request_id}"


def counter_key(owner: str, dataset: str) -> str:
    """Key of the last number of a user and dataset."""
    return f"{COUNTERS}{owner}/{dataset}"


def withdrawals_key(owner: str) -> str:
    """Key of the counter of withdrawn access to an owner's content: no other counter's owner is empty."""
    return f"{COUNTERS}/withdrawn/{owner}"


def notice_key(notice: Notice) -> str:
    """Key of a notice for a user's webhook; a session ends once."""
    return f"{NOTICES}{notice.owner}/{notice.session_id}"


def encode_pointer(session_id: str) -> bytes:
    """Value of a name or request key."""
    return pb.SessionPointer(session_id=session_id).SerializeToString()


def decode_pointer(value: bytes) -> str:
    """Session id of a name or request key."""
    return pb.SessionPointer.FromString(value).session_id


def encode_counter(last: int) -> bytes:
    """Value of a counter."""
    return pb.CounterRecord(last=last).SerializeToString()


def decode_counter(value: bytes) -> int:
    """The last number."""
    return pb.CounterRecord.FromString(value).last


def _utilization(value: float | None) -> float:
    return -1.0 if value is None else value


def _to_utilization(value: float) -> float | None:
    return value if value >= 0 else None


codec(
    Usage,
    pb.UsageRecord,
    convert={"utilization": Convert(_utilization, _to_utilization)},
)
codec(
    KeptLimits,
    pb.KeptLimitsRecord,
    unset=dict.fromkeys(("memory", "cpus", "processes", "disk"), Keeping.UNSPECIFIED),
)
codec(GitFacts, pb.GitFactsRecord, rename={"is_dirty": "dirty"})
codec(SessionSpec, pb.SpecRecord, unset={"priority": Priority.NORMAL})
codec(Replica, pb.ReplicaRecord, rename={"is_near_data": "near_data"})
_PROGRESS: Final = codec(Progress, pb.ProgressRecord)


def _progress(progress: Progress) -> pb.ProgressRecord | None:
    return None if progress == Progress() else _PROGRESS.to_message(progress)


def _set_held_cause(session: Session, record: pb.SessionRecord) -> None:
    if session.held_cause is not None:
        record.held_cause = session.held_cause


def _held_cause(record: pb.SessionRecord) -> HeldCause | None:
    """Return the cause, also for sessions held before causes were stored."""
    if record.held_cause:
        return HeldCause(record.held_cause)
    if record.state != SessionState.HELD or not record.HasField("end"):
        return None
    return HeldCause.of_bad_attempts(Cause(record.end.cause))


_SESSION: Final = codec(
    Session,
    pb.SessionRecord,
    convert={"progress": Convert(_progress, _PROGRESS.from_message)},
    spread={"held_cause": Spread(("held_cause",), _set_held_cause, _held_cause)},
    extra=("term",),
)


def encode_session(session: Session, *, term: int = 0) -> bytes:
    """Value of a session key, and of the catalogue; `term` is the deciding leader's."""
    record = _SESSION.to_message(session)
    record.term = term
    return record.SerializeToString()


decode_session: Final = _SESSION.decode


def submission_of_session(value: bytes) -> str:
    """Return the id of the submission whose step an encoded session is; "": none. Much cheaper than decoding it."""
    submission: str = pb.SessionRecord.FromString(value).spec.submission_id
    return submission


_ALLOCATION: Final = codec(Allocation, pb.AllocationRecord, extra=("term",))


def encode_allocation(allocation: Allocation, *, term: int = 0) -> bytes:
    """Value of an allocation key; `term` is the deciding leader's."""
    record = _ALLOCATION.to_message(allocation)
    record.term = term
    return record.SerializeToString()


decode_allocation: Final = _ALLOCATION.decode


def _replica_keys(replicas: Iterable[tuple[str, int, int]]) -> list[pb.ReplicaKey]:
    return [_replica_key(key) for key in sorted(replicas)]


def _replica_key(key: tuple[str, int, int]) -> pb.ReplicaKey:
    session_id, attempt, rank = key
    return pb.ReplicaKey(session_id=session_id, attempt=attempt, rank=rank)


def _to_replica_keys(messages: Iterable[pb.ReplicaKey]) -> frozenset[tuple[str, int, int]]:
    return frozenset(map(_to_replica_key, messages))


def _to_replica_key(message: pb.ReplicaKey) -> tuple[str, int, int]:
    return (message.session_id, message.attempt, message.rank)


_Foreign: TypeAlias = tuple[tuple[str, int, int], PlacedAs]

_PLACED_AS: Final = codec(PlacedAs, pb.ForeignReplicaRecord, extra=("replica",))


def _foreign(known: tuple[_Foreign, ...]) -> Iterator[pb.ForeignReplicaRecord]:
    for key, placed_as in known:
        record = _PLACED_AS.to_message(placed_as)
        record.replica.CopyFrom(_replica_key(key))
        yield record


def _to_foreign(records: Iterable[pb.ForeignReplicaRecord]) -> tuple[_Foreign, ...]:
    return tuple((_to_replica_key(one.replica), _PLACED_AS.from_message(one)) for one in records)


_REPLICA_KEYS: Final = Convert(_replica_keys, _to_replica_keys)

codec(Fence, pb.FenceRecord, convert={"replicas": _REPLICA_KEYS})
codec(
    Hold,
    pb.HoldRecord,
    convert={"replicas": _REPLICA_KEYS, "foreign": Convert(_foreign, _to_foreign)},
)
_DRAIN: Final = codec(Drain, pb.DrainRecord)


def _set_capacity(node: Node, record: pb.NodeRecord) -> None:
    record.cpu_thousandths = node.capacity.cpu_thousandths
    record.memory_bytes = node.capacity.memory_bytes


def _capacity(record: pb.NodeRecord) -> Resources:
    return Resources(
        gpu_thousandths=len(record.devices) * WHOLE_DEVICE,
        cpu_thousandths=record.cpu_thousandths,
        memory_bytes=record.memory_bytes,
    )


def _set_drain(node: Node, record: pb.NodeRecord) -> None:
    if node.drain is not None:
        record.drain.CopyFrom(_DRAIN.to_message(node.drain))


def _drain(record: pb.NodeRecord) -> Drain | None:
    if record.HasField("drain"):
        return _DRAIN.from_message(record.drain)
    return Drain() if record.draining else None


_NODE: Final = codec(
    Node,
    pb.NodeRecord,
    spread={
        "capacity": Spread(("cpu_thousandths", "memory_bytes"), _set_capacity, _capacity),
        "drain": Spread(("drain", "draining"), _set_drain, _drain),
    },
    unset={"gang_network": HOST_NETWORK},
)
encode_node: Final = _NODE.encode
decode_node: Final = _NODE.decode

_CLUSTER: Final = codec(
    Cluster,
    pb.ClusterRecord,
    unset={"history": "sqlite", "objects": "folder", "data_version": 1},
)
encode_cluster: Final = _CLUSTER.encode
decode_cluster: Final = _CLUSTER.decode

_PROJECT: Final = codec(Project, pb.ProjectRecord)
encode_project: Final = _PROJECT.encode
decode_project: Final = _PROJECT.decode

_TEAM_QUOTA: Final = codec(TeamQuota, pb.TeamQuotaRecord)
encode_team_quota: Final = _TEAM_QUOTA.encode
decode_team_quota: Final = _TEAM_QUOTA.decode

_NOTICE: Final = codec(Notice, pb.NoticeRecord)
encode_notice: Final = _NOTICE.encode
decode_notice: Final = _NOTICE.decode
