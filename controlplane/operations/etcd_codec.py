"""Domain values to what is written in etcd, and back. Keys, too.

A newer version reads what an older one wrote. Not the other way round: who rewrites a record drops
the fields that its version does not know, so all control planes of a store are of one version.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from controlplane.domain.cluster import Cluster, Restore
from controlplane.domain.lifecycle import ReplicaPhase, SessionState
from controlplane.domain.values import (
    HOST_NETWORK,
    AllocatedReplica,
    Allocation,
    Budget,
    Cause,
    DatasetVersion,
    Device,
    DeviceShare,
    Drain,
    End,
    EndedAttempt,
    Episode,
    EpisodeKind,
    Exit,
    Fence,
    HeldDevice,
    Hold,
    Isolation,
    Keeping,
    KeptLimits,
    Limits,
    Network,
    Node,
    PlacedAs,
    Priority,
    Progress,
    Project,
    Quota,
    Replica,
    Resources,
    Resume,
    SecretUse,
    Session,
    SessionSpec,
    Stop,
    Usage,
    Visibility,
)
from controlplane.store.interface import Put, Transaction
from controlplane.stored.v1 import records_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

SESSIONS: Final = "session/"
ALLOCATIONS: Final = "alloc/"
NODES: Final = "node/"
PROJECTS: Final = "project/"
NAMES: Final = "name/"
REQUESTS: Final = "request/"
COUNTERS: Final = "counter/"
CLUSTER: Final = "cluster"
PLATFORM_KEYS: Final = "platform-keys"
PROBE: Final = Transaction(success=(Put(key="probe", value=b""),))
"""A write without meaning: shows whether the store takes writes, and makes a new revision."""


def session_key(session_id: str) -> str:
    """Where a live session is."""
    return SESSIONS + session_id


def allocation_key(node: str) -> str:
    """Where what a node is to run is."""
    return ALLOCATIONS + node


def node_key(node: str) -> str:
    """Where a node is."""
    return NODES + node


def project_key(name: str) -> str:
    """Where a project is."""
    return PROJECTS + name


def name_key(name: str) -> str:
    """The unique index of names."""
    return NAMES + name


def request_key(owner: str, request_id: str) -> str:
    """The unique index of request ids."""
    return f"{REQUESTS}{owner}/{request_id}"


def counter_key(owner: str, dataset: str) -> str:
    """The number given last for a user and dataset."""
    return f"{COUNTERS}{owner}/{dataset}"


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
    """Number given last."""
    return pb.CounterRecord.FromString(value).last


def _resources(value: Resources) -> pb.ResourcesRecord:
    return pb.ResourcesRecord(
        gpu_thousandths=value.gpu_thousandths,
        cpu_thousandths=value.cpu_thousandths,
        memory_bytes=value.memory_bytes,
    )


def _to_resources(record: pb.ResourcesRecord) -> Resources:
    return Resources(
        gpu_thousandths=record.gpu_thousandths,
        cpu_thousandths=record.cpu_thousandths,
        memory_bytes=record.memory_bytes,
    )


def _limits(value: Limits) -> pb.LimitsRecord:
    return pb.LimitsRecord(
        shm_bytes=value.shm_bytes, disk_bytes=value.disk_bytes, process_count=value.process_count
    )


def _to_limits(record: pb.LimitsRecord) -> Limits:
    return Limits(
        shm_bytes=record.shm_bytes, disk_bytes=record.disk_bytes, process_count=record.process_count
    )


def _kept(value: KeptLimits) -> pb.KeptLimitsRecord:
    return pb.KeptLimitsRecord(
        memory=value.memory.value,
        cpus=value.cpus.value,
        processes=value.processes.value,
        disk=value.disk.value,
        note=value.note,
    )


def _to_kept(record: pb.KeptLimitsRecord) -> KeptLimits:
    return KeptLimits(
        memory=Keeping(record.memory or Keeping.UNSPECIFIED),
        cpus=Keeping(record.cpus or Keeping.UNSPECIFIED),
        processes=Keeping(record.processes or Keeping.UNSPECIFIED),
        disk=Keeping(record.disk or Keeping.UNSPECIFIED),
        note=record.note,
    )


def _devices(devices: Iterable[Device]) -> list[pb.DeviceRecord]:
    return [
        pb.DeviceRecord(
            uuid=device.uuid,
            index=device.index,
            model=device.model,
            memory_bytes=device.memory_bytes,
            simulated=device.simulated,
            withheld=device.withheld,
            parent_uuid=device.parent_uuid,
        )
        for device in devices
    ]


def _to_devices(records: Iterable[pb.DeviceRecord]) -> tuple[Device, ...]:
    return tuple(
        Device(
            uuid=record.uuid,
            index=record.index,
            model=record.model,
            memory_bytes=record.memory_bytes,
            simulated=record.simulated,
            withheld=record.withheld,
            parent_uuid=record.parent_uuid,
        )
        for record in records
    )


def _spec(spec: SessionSpec) -> pb.SpecRecord:
    return pb.SpecRecord(
        entry=spec.entry,
        args=spec.args,
        argv=spec.argv,
        bundle_digest=spec.bundle_digest,
        datasets=[
            pb.DatasetRecord(
                owner=item.owner, name=item.name, version=item.version, digest=item.digest
            )
            for item in spec.datasets
        ],
        resources=_resources(spec.resources),
        replica_count=spec.replica_count,
        environment=dict(spec.environment),
        image=spec.image,
        time_limit_s=spec.time_limit_s,
        grace_s=spec.grace_s,
        retry_count=spec.retry_count,
        lost_after_s=spec.lost_after_s,
        limits=_limits(spec.limits),
        secrets=[pb.SecretUseRecord(name=use.name, variable=use.variable) for use in spec.secrets],
        priority=spec.priority.value,
        preemptible=spec.preemptible,
        gpu_model=spec.gpu_model,
        pod=spec.pod,
        network=spec.network or "",
        refresh_environment=spec.refresh_environment,
        labels=dict(spec.labels),
    )


def _to_spec(record: pb.SpecRecord) -> SessionSpec:
    return SessionSpec(
        entry=record.entry,
        args=tuple(record.args),
        argv=tuple(record.argv),
        bundle_digest=record.bundle_digest,
        datasets=tuple(
            DatasetVersion(
                owner=item.owner, name=item.name, version=item.version, digest=item.digest
            )
            for item in record.datasets
        ),
        resources=_to_resources(record.resources),
        replica_count=record.replica_count,
        environment=MappingProxyType(dict(record.environment)),
        image=record.image,
        time_limit_s=record.time_limit_s,
        grace_s=record.grace_s,
        retry_count=record.retry_count,
        lost_after_s=record.lost_after_s,
        limits=_to_limits(record.limits),
        secrets=tuple(SecretUse(name=use.name, variable=use.variable) for use in record.secrets),
        priority=Priority(record.priority or Priority.NORMAL),
        preemptible=record.preemptible,
        gpu_model=record.gpu_model,
        pod=record.pod,
        network=Network(record.network) if record.network else None,
        refresh_environment=record.refresh_environment,
        labels=MappingProxyType(dict(record.labels)),
    )


def _replica(replica: Replica) -> pb.ReplicaRecord:
    record = pb.ReplicaRecord(
        rank=replica.rank,
        node=replica.node,
        devices=_devices(replica.devices),
        resources=_resources(replica.resources),
        phase=replica.phase.value,
        started_at=replica.started_at,
        heard_at=replica.heard_at,
        near_data=replica.is_near_data,
        waiting=replica.waiting,
        image=replica.image,
    )
    if replica.exit is not None:
        ended = replica.exit
        record.exit.CopyFrom(
            pb.ExitRecord(
                cause=ended.cause.value,
                exit_code=ended.exit_code,
                message=ended.message,
                started_at=ended.started_at,
                ended_at=ended.ended_at,
                ran_for_s=ended.ran_for_s,
                memory_peak_bytes=ended.memory_peak_bytes,
            )
        )
    return record


def _to_replica(record: pb.ReplicaRecord) -> Replica:
    ended = None
    if record.HasField("exit"):
        ended = Exit(
            cause=Cause(record.exit.cause),
            exit_code=record.exit.exit_code,
            message=record.exit.message,
            started_at=record.exit.started_at,
            ended_at=record.exit.ended_at,
            ran_for_s=record.exit.ran_for_s,
            memory_peak_bytes=record.exit.memory_peak_bytes,
        )
    return Replica(
        rank=record.rank,
        node=record.node,
        devices=_to_devices(record.devices),
        resources=_to_resources(record.resources),
        phase=ReplicaPhase(record.phase),
        started_at=record.started_at,
        exit=ended,
        heard_at=record.heard_at,
        is_near_data=record.near_data,
        waiting=record.waiting,
        image=record.image,
    )


def encode_session(session: Session, *, term: int = 0) -> bytes:
    """Value of a session key, and of the catalogue; `term` is that of the leader that decided it."""
    record = pb.SessionRecord(
        id=session.id,
        name=session.name,
        owner=session.owner,
        owner_id=session.owner_id,
        project=session.project,
        team=session.team,
        visibility=session.visibility.value,
        spec=_spec(session.spec),
        state=session.state.value,
        attempt=session.attempt,
        replicas=[_replica(replica) for replica in session.replicas],
        created_at=session.created_at,
        started_at=session.started_at,
        ended_at=session.ended_at,
        memo=session.memo,
        command=session.command,
        request_id=session.request_id,
        request_digest=session.request_digest,
        bad_attempts=session.bad_attempts,
        attempts=[_attempt(attempt) for attempt in session.attempts],
        not_before=session.not_before,
        term=term,
        settling=sorted(session.settling),
        avoids=sorted(session.avoids),
    )
    if session.usage is not None:
        record.usage.CopyFrom(_usage(session.usage))
    for one in session.episodes:
        record.episodes.add(
            kind=one.kind.value, since=one.since, until=one.until, reason=one.reason
        )
    if session.resume is not None:
        record.resume.attempt = session.resume.attempt
        record.resume.checkpoint = session.resume.checkpoint
        record.resume.digest = session.resume.digest
    if session.progress != Progress():
        record.progress.is_resumable = session.progress.is_resumable
        record.progress.saved_at = session.progress.saved_at
    if session.end is not None:
        record.end.CopyFrom(
            pb.EndRecord(
                cause=session.end.cause.value,
                exit_code=session.end.exit_code,
                rank=session.end.rank,
                message=session.end.message,
            )
        )
    if session.stop is not None:
        record.stop.CopyFrom(
            pb.StopRecord(
                grace_s=session.stop.grace_s,
                cause=session.stop.cause.value,
                reason=session.stop.reason,
                asked_by=session.stop.asked_by,
                came_first=session.stop.came_first,
                notice_s=session.stop.notice_s,
                asked_at=session.stop.asked_at,
            )
        )
    return record.SerializeToString()


def decode_session(value: bytes) -> Session:
    """The session of a session key."""
    record = pb.SessionRecord.FromString(value)
    return Session(
        id=record.id,
        name=record.name,
        owner=record.owner,
        owner_id=record.owner_id,
        project=record.project,
        team=record.team,
        visibility=Visibility(record.visibility),
        spec=_to_spec(record.spec),
        state=SessionState(record.state),
        attempt=record.attempt,
        replicas=tuple(_to_replica(replica) for replica in record.replicas),
        created_at=record.created_at,
        started_at=record.started_at,
        ended_at=record.ended_at,
        end=_to_end(record.end) if record.HasField("end") else None,
        memo=record.memo,
        command=tuple(record.command),
        request_id=record.request_id,
        request_digest=record.request_digest,
        stop=_to_stop(record.stop) if record.HasField("stop") else None,
        bad_attempts=record.bad_attempts,
        usage=_to_usage(record.usage) if record.HasField("usage") else None,
        attempts=tuple(_to_attempt(attempt) for attempt in record.attempts),
        not_before=record.not_before,
        progress=Progress(
            is_resumable=record.progress.is_resumable, saved_at=record.progress.saved_at
        ),
        settling=frozenset(record.settling),
        avoids=frozenset(record.avoids),
        episodes=tuple(
            Episode(kind=EpisodeKind(one.kind), since=one.since, until=one.until, reason=one.reason)
            for one in record.episodes
        ),
        resume=_to_resume(record.resume) if record.HasField("resume") else None,
    )


def _to_resume(record: pb.ResumeRecord) -> Resume:
    return Resume(attempt=record.attempt, checkpoint=record.checkpoint, digest=record.digest)


def _to_end(record: pb.EndRecord) -> End:
    return End(
        cause=Cause(record.cause),
        exit_code=record.exit_code,
        rank=record.rank,
        message=record.message,
    )


def _to_stop(record: pb.StopRecord) -> Stop:
    return Stop(
        grace_s=record.grace_s,
        cause=Cause(record.cause),
        reason=record.reason,
        asked_by=record.asked_by,
        came_first=record.came_first,
        notice_s=record.notice_s,
        asked_at=record.asked_at,
    )


def _attempt(attempt: EndedAttempt) -> pb.AttemptRecord:
    return pb.AttemptRecord(
        number=attempt.number,
        cause=attempt.cause.value,
        placed_at=attempt.placed_at,
        ended_at=attempt.ended_at,
        gpu_thousandths=attempt.gpu_thousandths,
        held_s=attempt.held_s,
        nodes=attempt.nodes,
        reason=attempt.reason,
        devices=[
            pb.HeldDeviceRecord(node=one.node, uuid=one.uuid, thousandths=one.thousandths)
            for one in attempt.devices
        ],
        simulated=attempt.simulated,
    )


def _to_attempt(record: pb.AttemptRecord) -> EndedAttempt:
    return EndedAttempt(
        number=record.number,
        cause=Cause(record.cause),
        placed_at=record.placed_at,
        ended_at=record.ended_at,
        gpu_thousandths=record.gpu_thousandths,
        held_s=record.held_s,
        nodes=tuple(record.nodes),
        reason=record.reason,
        devices=tuple(
            HeldDevice(node=one.node, uuid=one.uuid, thousandths=one.thousandths)
            for one in record.devices
        ),
        simulated=record.simulated,
    )


def _usage(usage: Usage) -> pb.UsageRecord:
    return pb.UsageRecord(
        device_seconds=usage.device_seconds,
        utilization=-1.0 if usage.utilization is None else usage.utilization,
        utilization_peak=usage.utilization_peak,
        memory_peak=usage.memory_peak,
        watt_hours=usage.watt_hours,
    )


def _to_usage(record: pb.UsageRecord) -> Usage:
    return Usage(
        device_seconds=record.device_seconds,
        utilization=record.utilization if record.utilization >= 0 else None,
        utilization_peak=record.utilization_peak,
        memory_peak=record.memory_peak,
        watt_hours=record.watt_hours,
    )


def encode_allocation(allocation: Allocation, *, term: int = 0) -> bytes:
    """Value of an allocation key; `term` is that of the leader that decided it."""
    return pb.AllocationRecord(
        node=allocation.node,
        term=term,
        replicas=[
            pb.AllocatedReplica(
                session_id=held.session_id,
                attempt=held.attempt,
                rank=held.rank,
                devices=[
                    pb.DeviceShare(uuid=share.uuid, thousandths=share.thousandths)
                    for share in held.devices
                ],
                cpu_thousandths=held.cpu_thousandths,
                memory_bytes=held.memory_bytes,
                placed_at=held.placed_at,
            )
            for held in allocation.replicas
        ],
    ).SerializeToString()


def decode_allocation(value: bytes) -> Allocation:
    """What a node is to run."""
    record = pb.AllocationRecord.FromString(value)
    return Allocation(
        node=record.node,
        replicas=tuple(
            AllocatedReplica(
                session_id=held.session_id,
                attempt=held.attempt,
                rank=held.rank,
                devices=tuple(
                    DeviceShare(uuid=share.uuid, thousandths=share.thousandths)
                    for share in held.devices
                ),
                cpu_thousandths=held.cpu_thousandths,
                memory_bytes=held.memory_bytes,
                placed_at=held.placed_at,
            )
            for held in record.replicas
        ),
    )


def encode_node(node: Node) -> bytes:
    """Value of a node key."""
    return pb.NodeRecord(
        name=node.name,
        boot_id=node.boot_id,
        agent_version=node.agent_version,
        isolation=node.isolation.value,
        devices=_devices(node.devices),
        cpu_thousandths=node.capacity.cpu_thousandths,
        memory_bytes=node.capacity.memory_bytes,
        pod=node.pod,
        host=node.host,
        owner=node.owner,
        device_note=node.device_note,
        only_owner=node.only_owner,
        gang_network=node.gang_network,
        networks=node.networks,
        isolation_note=node.isolation_note,
        setting_note=node.setting_note,
        not_ready=node.not_ready,
        engine_note=node.engine_note,
        registered_at=node.registered_at,
        limits=_kept(node.limits),
        drain=_drain(node.drain),
        fence=_fence(node.fence),
        hold=_hold(node.hold),
    ).SerializeToString()


def decode_node(value: bytes) -> Node:
    """A node as it registered last."""
    record = pb.NodeRecord.FromString(value)
    devices = _to_devices(record.devices)
    return Node(
        name=record.name,
        boot_id=record.boot_id,
        capacity=Resources(
            gpu_thousandths=len(devices) * 1000,
            cpu_thousandths=record.cpu_thousandths,
            memory_bytes=record.memory_bytes,
        ),
        devices=devices,
        isolation=Isolation(record.isolation),
        agent_version=record.agent_version,
        pod=record.pod,
        host=record.host,
        owner=record.owner,
        device_note=record.device_note,
        only_owner=record.only_owner,
        gang_network=record.gang_network or HOST_NETWORK,
        networks=tuple(Network(one) for one in record.networks),
        isolation_note=record.isolation_note,
        setting_note=record.setting_note,
        not_ready=record.not_ready,
        engine_note=record.engine_note,
        registered_at=record.registered_at,
        limits=_to_kept(record.limits),
        drain=_to_drain(record),
        fence=_to_fence(record.fence) if record.HasField("fence") else None,
        hold=_to_hold(record.hold) if record.HasField("hold") else None,
    )


def _drain(drain: Drain | None) -> pb.DrainRecord | None:
    if drain is None:
        return None
    return pb.DrainRecord(
        asked_by=drain.asked_by,
        reason=drain.reason,
        asked_at=drain.asked_at,
        move_at=drain.move_at,
    )


def _to_drain(record: pb.NodeRecord) -> Drain | None:
    if not record.HasField("drain"):
        return Drain() if record.draining else None
    drain = record.drain
    return Drain(
        asked_by=drain.asked_by,
        reason=drain.reason,
        asked_at=drain.asked_at,
        move_at=drain.move_at,
    )


def _fence(fence: Fence | None) -> pb.FenceRecord | None:
    if fence is None:
        return None
    return pb.FenceRecord(
        boot_id=fence.boot_id,
        asked_by=fence.asked_by,
        reason=fence.reason,
        asked_at=fence.asked_at,
        replicas=_replica_keys(fence.replicas),
    )


def _to_fence(record: pb.FenceRecord) -> Fence:
    return Fence(
        boot_id=record.boot_id,
        asked_by=record.asked_by,
        reason=record.reason,
        asked_at=record.asked_at,
        replicas=_to_replica_keys(record.replicas),
    )


def _hold(hold: Hold | None) -> pb.HoldRecord | None:
    if hold is None:
        return None
    return pb.HoldRecord(
        found_at=hold.found_at,
        term=hold.term,
        revision=hold.revision,
        replicas=_replica_keys(hold.replicas),
        foreign=[
            pb.ForeignReplicaRecord(
                replica=_replica_key(key),
                session_name=known.session_name,
                device_uuids=known.device_uuids,
                started_at=known.started_at,
            )
            for key, known in hold.foreign
        ],
        lifted_by=hold.lifted_by,
    )


def _to_hold(record: pb.HoldRecord) -> Hold:
    return Hold(
        found_at=record.found_at,
        term=record.term,
        revision=record.revision,
        replicas=_to_replica_keys(record.replicas),
        foreign=tuple(
            (
                _to_replica_key(one.replica),
                PlacedAs(
                    session_name=one.session_name,
                    device_uuids=tuple(one.device_uuids),
                    started_at=one.started_at,
                ),
            )
            for one in record.foreign
        ),
        lifted_by=record.lifted_by,
    )


def _replica_keys(replicas: Iterable[tuple[str, int, int]]) -> list[pb.ReplicaKey]:
    return [_replica_key(key) for key in sorted(replicas)]


def _replica_key(key: tuple[str, int, int]) -> pb.ReplicaKey:
    session_id, attempt, rank = key
    return pb.ReplicaKey(session_id=session_id, attempt=attempt, rank=rank)


def _to_replica_keys(messages: Iterable[pb.ReplicaKey]) -> frozenset[tuple[str, int, int]]:
    return frozenset(map(_to_replica_key, messages))


def _to_replica_key(message: pb.ReplicaKey) -> tuple[str, int, int]:
    return (message.session_id, message.attempt, message.rank)


def encode_cluster(cluster: Cluster) -> bytes:
    """Value of the cluster key."""
    return pb.ClusterRecord(
        id=cluster.id,
        created_at=cluster.created_at,
        coordination=cluster.coordination,
        is_shared=cluster.is_shared,
        history=cluster.history,
        objects=cluster.objects,
        history_mark=cluster.history_mark,
        objects_mark=cluster.objects_mark,
        data_version=cluster.data_version,
        written_by=cluster.written_by,
        restores=[
            pb.RestoreRecord(after=one.after, offset=one.offset, restored_at=one.restored_at)
            for one in cluster.restores
        ],
    ).SerializeToString()


def decode_cluster(value: bytes) -> Cluster:
    """What the cluster key says."""
    record = pb.ClusterRecord.FromString(value)
    return Cluster(
        id=record.id,
        created_at=record.created_at,
        coordination=record.coordination,
        is_shared=record.is_shared,
        history=record.history or "sqlite",
        objects=record.objects or "folder",
        history_mark=record.history_mark,
        objects_mark=record.objects_mark,
        data_version=record.data_version or 1,
        written_by=record.written_by,
        restores=tuple(
            Restore(after=one.after, offset=one.offset, restored_at=one.restored_at)
            for one in record.restores
        ),
    )


def encode_project(project: Project) -> bytes:
    """Value of a project key."""
    return pb.ProjectRecord(
        name=project.name,
        owner=project.owner,
        members=sorted(project.members),
        created_at=project.created_at,
        quota=_quota(project.quota),
        member_quota=_quota(project.member_quota),
        budget=_budget(project.budget),
        weight=project.weight,
        most_priority=project.most_priority.value,
    ).SerializeToString()


def decode_project(value: bytes) -> Project:
    """What a project key says."""
    record = pb.ProjectRecord.FromString(value)
    return Project(
        name=record.name,
        owner=record.owner,
        members=frozenset(record.members),
        created_at=record.created_at,
        quota=_to_quota(record.quota),
        member_quota=_to_quota(record.member_quota),
        budget=_to_budget(record.budget) if record.HasField("budget") else None,
        weight=record.weight,
        most_priority=Priority(record.most_priority),
    )


def _quota(quota: Quota) -> pb.QuotaRecord:
    return pb.QuotaRecord(
        gpu_thousandths=quota.gpu_thousandths,
        cpu_thousandths=quota.cpu_thousandths,
        memory_bytes=quota.memory_bytes,
        sessions=quota.sessions,
    )


def _to_quota(record: pb.QuotaRecord) -> Quota:
    return Quota(
        gpu_thousandths=record.gpu_thousandths,
        cpu_thousandths=record.cpu_thousandths,
        memory_bytes=record.memory_bytes,
        sessions=record.sessions,
    )


def _budget(budget: Budget | None) -> pb.BudgetRecord | None:
    if budget is None:
        return None
    return pb.BudgetRecord(
        gpu_seconds=budget.gpu_seconds, period_days=budget.period_days, anchor=budget.anchor
    )


def _to_budget(record: pb.BudgetRecord) -> Budget:
    return Budget(
        gpu_seconds=record.gpu_seconds, period_days=record.period_days, anchor=record.anchor
    )
