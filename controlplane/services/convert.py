"""Domain values to the contract, and back. One place that knows both."""

from __future__ import annotations

import hashlib
import json
import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from controlplane.domain.errors import InvalidRequest
from controlplane.domain.lifecycle import ReplicaPhase, SessionState
from controlplane.domain.values import (
    Cause,
    Device,
    Exit,
    Isolation,
    Node,
    Resources,
    Session,
    SessionSpec,
    Visibility,
)
from controlplane.history.values import Channel, Chunk, DeviceSample, NodeSample, StreamKey
from controlplane.operations.datasets import parse_dataset
from controlplane.operations.listing import Filter
from controlplane.operations.registration import Registration
from controlplane.operations.reports import Report
from controlplane.operations.validation import Submission
from controlplane.services.parts import parts_of
from nsml.v1 import agents_pb2, checkpoints_pb2, datasets_pb2, resources_pb2, sessions_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from controlplane.domain.identity import User
    from controlplane.history.values import Checkpoint, DatasetListing, Point
    from controlplane.operations.contacts import TunnelOrder
    from controlplane.operations.orders import Assignment, Orders

# The contract's names of our values, by value; messages take them as they are.
_STATES: Final = {state: f"SESSION_STATE_{state.value}" for state in SessionState}
_STATES_BACK: Final = {sessions_pb2.SessionState.Value(_STATES[one]): one for one in SessionState}
_CAUSES: Final = {cause: f"CAUSE_{cause.value}" for cause in Cause}
_CAUSES_BACK: Final = {sessions_pb2.Cause.Value(_CAUSES[one]): one for one in Cause}
_ISOLATIONS: Final = {level: f"ISOLATION_{level.value}" for level in Isolation}
_ISOLATIONS_BACK: Final = {
    resources_pb2.Isolation.Value(_ISOLATIONS[one]): one for one in Isolation
}
_VISIBILITIES: Final = {one: f"VISIBILITY_{one.name}" for one in Visibility}
_CHANNELS: Final = {one: f"CHANNEL_{one.name}" for one in Channel}
_REPORTED: Final = tuple(phase for phase in ReplicaPhase if phase.value != "PLACED")
_PHASES: Final = {phase: f"REPLICA_PHASE_{phase.value}" for phase in ReplicaPhase}
_PHASES_BACK: Final = {agents_pb2.ReplicaPhase.Value(_PHASES[one]): one for one in _REPORTED}


# Times


def timestamp(seconds: float) -> Timestamp | None:
    """Unix seconds as a message; None for 0, which means never."""
    if not seconds:
        return None
    nanos = round(seconds * 1e9)
    return Timestamp(seconds=nanos // 10**9, nanos=nanos % 10**9)


def duration(seconds: float) -> Duration:
    """Seconds as a message."""
    nanos = round(seconds * 1e9)
    return Duration(seconds=nanos // 10**9, nanos=nanos % 10**9)


def seconds_of(message: Timestamp | Duration) -> float:
    """A time or span in seconds."""
    return message.seconds + message.nanos / 1e9


# Sessions


def to_submission(request: sessions_pb2.CreateSessionRequest, owner: User) -> Submission:
    """What a user wants."""
    spec = request.spec
    return Submission(
        owner=owner,
        request_id=request.request_id,
        digest=hashlib.sha256(request.SerializeToString(deterministic=True)).digest(),
        entry=spec.entry,
        args=tuple(spec.args),
        argv=tuple(spec.argv),
        bundle_digest=spec.bundle_digest,
        datasets=tuple(parse_dataset(one.name, one.version) for one in spec.datasets),
        resources=to_resources(spec.resources),
        replica_count=spec.replica_count,
        environment=MappingProxyType(dict(spec.environment)),
        image=spec.image,
        time_limit_s=seconds_of(spec.time_limit),
        grace_s=seconds_of(spec.grace) if spec.HasField("grace") else None,
        retry_count=spec.retry_count,
        lost_after_s=seconds_of(spec.lost_after) if spec.HasField("lost_after") else None,
        no_queue=spec.no_queue,
        memo=request.memo,
        visibility=to_visibility(request.visibility) or Visibility.PRIVATE,
        project=request.project,
        command=tuple(request.command),
    )


def to_visibility(number: int) -> Visibility | None:
    """A visibility; None when it is left open."""
    if number == resources_pb2.VISIBILITY_UNSPECIFIED:
        return None
    try:
        return Visibility(number)
    except ValueError:
        raise InvalidRequest(f"there is no visibility {number}") from None


def to_filter(message: sessions_pb2.SessionFilter) -> Filter:
    """Which sessions."""
    try:
        states = tuple(_STATES_BACK[number] for number in message.states)
    except KeyError as error:
        raise InvalidRequest(f"there is no session state {error}") from None
    return Filter(
        owners=tuple(message.owners),
        states=states,
        dataset=message.dataset,
        name_glob=message.name_glob,
        text=message.text,
        include_ended=message.include_ended,
    )


def spec_message(spec: SessionSpec, owner: str) -> sessions_pb2.SessionSpec:
    """A spec with its defaults filled in; somebody else's datasets are named OWNER/NAME."""
    message = sessions_pb2.SessionSpec(
        entry=spec.entry,
        args=spec.args,
        argv=spec.argv,
        bundle_digest=spec.bundle_digest,
        datasets=[
            sessions_pb2.DatasetReference(
                name=one.name if one.owner == owner else f"{one.owner}/{one.name}",
                version=one.version,
                digest=one.digest,
            )
            for one in spec.datasets
        ],
        resources=resources_message(spec.resources),
        replica_count=spec.replica_count,
        environment=dict(spec.environment),
        image=spec.image,
        grace=duration(spec.grace_s),
        retry_count=spec.retry_count,
    )
    if spec.time_limit_s:
        message.time_limit.CopyFrom(duration(spec.time_limit_s))
    if spec.lost_after_s:
        message.lost_after.CopyFrom(duration(spec.lost_after_s))
    return message


def session_message(
    session: Session,
    *,
    revision: int = 0,
    waiting: str = "",
    summary: Mapping[str, Any] | None = None,
    checkpoint_count: int = 0,
) -> sessions_pb2.Session:
    """A session as its viewers see it."""
    message = sessions_pb2.Session(
        id=session.id,
        name=session.name,
        owner=session.owner,
        project=session.project,
        team=session.team,
        visibility=_VISIBILITIES[session.visibility],
        spec=spec_message(session.spec, session.owner),
        state=_STATES[session.state],
        waiting=waiting if session.state is SessionState.QUEUED else "",
        attempt=session.attempt,
        replicas=[
            sessions_pb2.Replica(
                rank=one.rank,
                node=one.node,
                devices=[device_message(device) for device in one.devices],
                resources=resources_message(one.resources),
            )
            for one in session.replicas
        ],
        created_at=timestamp(session.created_at),
        started_at=timestamp(session.started_at),
        ended_at=timestamp(session.ended_at),
        memo=session.memo,
        checkpoint_count=checkpoint_count,
        simulated=session.is_simulated,
        revision=revision,
        command=session.command,
    )
    if session.end is not None:
        message.end.CopyFrom(
            sessions_pb2.SessionEnd(
                cause=_CAUSES[session.end.cause],
                exit_code=session.end.exit_code,
                rank=session.end.rank,
                message=session.end.message,
            )
        )
    if summary is not None:
        message.summary.CopyFrom(struct(summary))
    return message


def struct(values: Mapping[str, Any]) -> Struct:
    """JSON values as a message, which has no NaN in JSON: such floats become text."""
    message = Struct()
    message.update(_plain(dict(values)))
    return message


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {str(key): _plain(one) for key, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case int() if not isinstance(value, bool):
            # A Struct has floats only; an integer beyond them stays exact as text.
            return value if abs(value) <= 1 << 53 else str(value)
        case _:
            return value


def point_message(point: Point) -> sessions_pb2.MetricPoint:
    """A reported value: numbers as such, everything else as JSON."""
    message = sessions_pb2.MetricPoint(
        name=point.name,
        time=timestamp(point.time),
        step=point.step,
        attempt=point.attempt,
        rank=point.rank,
    )
    value = point.value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            message.number = float(value)
        except OverflowError:
            message.json = json.dumps(value)
    else:
        message.json = json.dumps(value, ensure_ascii=False)
    return message


# Resources and nodes


def resources_message(resources: Resources) -> resources_pb2.Resources:
    """Capacity asked for or held."""
    return resources_pb2.Resources(
        gpu_thousandths=resources.gpu_thousandths,
        cpu_thousandths=resources.cpu_thousandths,
        memory_bytes=resources.memory_bytes,
    )


def to_resources(message: resources_pb2.Resources) -> Resources:
    """Capacity asked for."""
    return Resources(
        gpu_thousandths=message.gpu_thousandths,
        cpu_thousandths=message.cpu_thousandths,
        memory_bytes=message.memory_bytes,
    )


def device_message(device: Device) -> resources_pb2.Device:
    """One GPU."""
    return resources_pb2.Device(
        uuid=device.uuid,
        index=device.index,
        model=device.model,
        memory_bytes=device.memory_bytes,
        simulated=device.simulated,
    )


def isolation_name(level: Isolation) -> str:
    """The contract's name of an isolation level."""
    return _ISOLATIONS[level]


def sample_message(sample: DeviceSample) -> resources_pb2.DeviceSample:
    """One reading of a device."""
    return resources_pb2.DeviceSample(
        uuid=sample.uuid,
        utilization_percent=sample.utilization_percent,
        memory_used_bytes=sample.memory_used_bytes,
        power_watts=sample.power_watts,
        temperature_celsius=sample.temperature_celsius,
    )


# Agents


def to_registration(message: agents_pb2.Register, now: float) -> Registration:
    """What an agent says first."""
    devices = tuple(
        Device(
            uuid=one.uuid,
            index=one.index,
            model=one.model,
            memory_bytes=one.memory_bytes,
            simulated=one.simulated,
        )
        for one in message.devices
    )
    if len({device.uuid for device in devices}) != len(devices):
        raise InvalidRequest("two devices have one uuid")
    if message.isolation not in _ISOLATIONS_BACK:
        raise InvalidRequest(f"there is no isolation {message.isolation}")
    node = Node(
        name=message.node,
        boot_id=message.boot_id,
        capacity=Resources(
            gpu_thousandths=len(devices) * 1000,
            cpu_thousandths=message.capacity.cpu_thousandths,
            memory_bytes=message.capacity.memory_bytes,
        ),
        devices=devices,
        isolation=_ISOLATIONS_BACK[message.isolation],
        agent_version=message.agent_version,
        pod=message.pod,
        host=message.host,
        owner=message.owner,
        device_note=message.device_note,
        registered_at=now,
    )
    return Registration(
        node=node,
        cluster_id=message.cluster_id,
        highest_term=message.highest_term,
        replicas=tuple(to_report(one, message.node, now) for one in message.replicas),
    )


def to_report(message: agents_pb2.ReplicaReport, node: str, now: float) -> Report:
    """A step of a replica of `node`."""
    phase = _PHASES_BACK.get(message.phase)
    if phase is None:
        raise InvalidRequest(f"there is no replica phase {message.phase}")
    ended = None
    if message.HasField("exit"):
        cause = _CAUSES_BACK.get(message.exit.cause)
        if cause is None:
            raise InvalidRequest(f"there is no cause {message.exit.cause}")
        ended = Exit(
            cause=cause,
            exit_code=message.exit.exit_code,
            message=message.exit.message[:4096],
            started_at=seconds_of(message.exit.started_at),
            ended_at=seconds_of(message.exit.ended_at),
            ran_for_s=seconds_of(message.exit.ran_for),
        )
    return Report(
        node=node,
        session_id=message.replica.session_id,
        attempt=message.replica.attempt,
        rank=message.replica.rank,
        phase=phase,
        at=seconds_of(message.at) or now,
        exit=ended,
    )


def acknowledged_message(reports: Iterable[Report]) -> agents_pb2.ControlResponse:
    """Reports that need not be repeated."""
    return agents_pb2.ControlResponse(
        acknowledged=agents_pb2.ReportsAcknowledged(
            reports=[
                agents_pb2.ReplicaReport(
                    replica=agents_pb2.ReplicaId(
                        session_id=one.session_id, attempt=one.attempt, rank=one.rank
                    ),
                    phase=_PHASES[one.phase],
                )
                for one in reports
            ]
        )
    )


def orders_messages(orders: Orders, term: int) -> Iterator[agents_pb2.ControlResponse]:
    """What a node is to run."""
    parts = parts_of(map(_assignment, orders.assignments))
    for number, assignments in enumerate(parts, start=1):
        yield agents_pb2.ControlResponse(
            orders=agents_pb2.Orders(
                term=term,
                revision=orders.revision,
                assignments=assignments,
                more=number < len(parts),
            )
        )


def tunnel_message(order: TunnelOrder) -> agents_pb2.ControlResponse:
    """A tunnel that an agent is to dial."""
    return agents_pb2.ControlResponse(
        open_tunnel=agents_pb2.OpenTunnel(
            tunnel_id=order.tunnel_id,
            replica=agents_pb2.ReplicaId(
                session_id=order.session_id, attempt=order.attempt, rank=order.rank
            ),
            service=order.service,
        )
    )


def _assignment(assignment: Assignment) -> agents_pb2.Assignment:
    held, session = assignment.held, assignment.session
    message = agents_pb2.Assignment(
        replica=agents_pb2.ReplicaId(
            session_id=held.session_id, attempt=held.attempt, rank=held.rank
        ),
        session_name=session.name,
        owner=session.owner,
        spec=spec_message(session.spec, session.owner),
        device_uuids=[share.uuid for share in held.devices],
        resources=resources_pb2.Resources(
            gpu_thousandths=held.gpu_thousandths,
            cpu_thousandths=held.cpu_thousandths,
            memory_bytes=held.memory_bytes,
        ),
        hosts=assignment.hosts,
    )
    if session.stop is not None:
        message.stop.CopyFrom(
            agents_pb2.StopOrder(
                grace=duration(session.stop.grace_s),
                cause=_CAUSES[session.stop.cause],
                reason=session.stop.reason,
            )
        )
    return message


def to_chunk(message: agents_pb2.Chunk) -> Chunk:
    """A run of records or bytes."""
    try:
        return Chunk(
            stream=to_stream(message.stream),
            first=message.first,
            last=message.last,
            records=tuple(message.records),
            data=message.data,
            is_gap=message.gap,
        )
    except ValueError as error:
        raise InvalidRequest("a chunk does not hold what it says", why=str(error)) from None


def to_stream(message: agents_pb2.StreamKey) -> StreamKey:
    """The name of a stream."""
    return StreamKey(
        session_id=message.replica.session_id,
        attempt=message.replica.attempt,
        rank=message.replica.rank,
        channel=Channel(message.channel),
        writer=message.writer,
    )


def stream_message(key: StreamKey) -> agents_pb2.StreamKey:
    """The name of a stream."""
    return agents_pb2.StreamKey(
        replica=agents_pb2.ReplicaId(session_id=key.session_id, attempt=key.attempt, rank=key.rank),
        channel=_CHANNELS[key.channel],
        writer=key.writer,
    )


def to_sample(message: agents_pb2.NodeSample, node: str) -> NodeSample:
    """Readings of a node."""
    return NodeSample(
        node=node,
        boot_id=message.boot_id,
        sequence=message.sequence,
        at=seconds_of(message.at),
        devices=tuple(
            DeviceSample(
                uuid=one.uuid,
                utilization_percent=one.utilization_percent,
                memory_used_bytes=one.memory_used_bytes,
                power_watts=one.power_watts,
                temperature_celsius=one.temperature_celsius,
            )
            for one in message.devices
        ),
        cpu_percent=message.cpu_percent,
        memory_used_bytes=message.memory_used_bytes,
    )


# Datasets and checkpoints


def dataset_message(listing: DatasetListing) -> datasets_pb2.Dataset:
    """A dataset with one version."""
    dataset, version = listing.dataset, listing.version
    return datasets_pb2.Dataset(
        name=dataset.name,
        owner=dataset.owner,
        team=dataset.team,
        visibility=_VISIBILITIES[dataset.visibility],
        version=version.number,
        digest=version.digest,
        size_bytes=version.size_bytes,
        file_count=version.file_count,
        message=version.message,
        updated_at=timestamp(version.created_at),
    )


def checkpoint_message(checkpoint: Checkpoint, session: str) -> checkpoints_pb2.Checkpoint:
    """A checkpoint of the session of this name."""
    return checkpoints_pb2.Checkpoint(
        name=checkpoint.name,
        session=session,
        state=f"CHECKPOINT_STATE_{checkpoint.state.value}",
        digest=checkpoint.digest or "",
        size_bytes=checkpoint.size_bytes,
        file_count=checkpoint.file_count,
        saved_at=timestamp(checkpoint.saved_at),
        elapsed_s=checkpoint.elapsed_s,
        summary=struct(json.loads(checkpoint.summary)),
        step=checkpoint.step,
    )
