"""Messages between agents and the control plane."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from controlplane.codec import encoder
from controlplane.domain.errors import InvalidRequest
from controlplane.domain.lifecycle import ReplicaPhase
from controlplane.domain.program_changes import (
    KnobChange,
    MemberState,
    Said,
    knobs_of,
    made_in,
)
from controlplane.domain.values import (
    HOST_NETWORK,
    Cause,
    Device,
    Exit,
    Node,
    PlacedAs,
    RegistryLogin,
    Resources,
    Stock,
)
from controlplane.history.telemetry_rollup import MOST_KEYS, sound
from controlplane.history.values import (
    Channel,
    Chunk,
    DeviceSample,
    NodeSample,
    ReplicaSample,
    StreamKey,
)
from controlplane.nodes.registration import ChangedOffer, Registration
from controlplane.secrets.user_secrets import OpenedSecret
from controlplane.sessions.convert import CAUSES, change_message, knob_message, spec_message
from controlplane.state.agent_connections import Ability, FetchedBytes, ImageAction, PeerOffer
from controlplane.state.progress import ProgressReport
from controlplane.state.replica_reports import Report
from controlplane.wire.chunking import parts_of
from controlplane.wire.resources import to_device, to_isolation, to_kept, to_networks
from controlplane.wire.times import duration, seconds_of, time_of
from nsml.common.peer_capabilities import KEY_BYTES
from nsml.content.digests import is_digest
from nsml.spec import knobs
from nsml.spec.images import is_reference, whole_reference
from nsml.spec.in_place_paths import MOST_SHARED_ROOTS, is_plain
from nsml.v1 import agents_pb2, peers_pb2, resources_pb2, sessions_pb2

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from controlplane.state.agent_connections import (
        EnvironmentOrder,
        FoundPeers,
        ImageOrder,
        RepairOrder,
        TunnelOrder,
    )
    from controlplane.state.desired_replicas import Assignment, Orders

Secrets: TypeAlias = "Mapping[tuple[str, int, int], Sequence[OpenedSecret | RegistryLogin]]"
"""By session, attempt and rank."""

MOST_NOTE_CHARS: Final = 4096
"""Limit of a node's notes for people; the rest is cut off."""
MOST_WAITING_CHARS: Final = 256
MOST_IMAGE_CHARS: Final = 512
MOST_NODE_DEVICES: Final = 256
MOST_VERSION_CHARS: Final = 32
MOST_STOCKED: Final = 256
"""Limit of things in a node's stock."""
MOST_CERTIFICATE_BYTES: Final = 4096
MOST_FACT_BYTES: Final = 256
"""Limit of each fact of a node: sessions keep those of their devices, in one record."""

# The contract's enum names by our values; message fields accept the names.
_CAUSES_BACK: Final = {sessions_pb2.Cause.Value(CAUSES[one]): one for one in Cause}
_CHANNELS: Final = {one: f"CHANNEL_{one.name}" for one in Channel}
_ABILITIES: Final = {
    agents_pb2.AgentAbility.Value(f"AGENT_ABILITY_{one.name}"): one for one in Ability
}
_MEMBER_STATES: Final = {
    sessions_pb2.MemberState.Value(f"MEMBER_STATE_{one.value}"): one for one in MemberState
}
_REPORTED: Final = tuple(phase for phase in ReplicaPhase if phase.value != "PLACED")
_PHASES: Final = {phase: f"REPLICA_PHASE_{phase.value}" for phase in ReplicaPhase}
_PHASES_BACK: Final = {agents_pb2.ReplicaPhase.Value(_PHASES[one]): one for one in _REPORTED}


_SECRET: Final = encoder(OpenedSecret, agents_pb2.SecretValue)
_REGISTRY_LOGIN: Final = encoder(RegistryLogin, agents_pb2.RegistryLogin)


def to_registration(message: agents_pb2.Register, now: float) -> Registration:
    """Convert an agent's first message."""
    devices = to_devices(message.devices)
    texts = [message.boot_id, message.agent_version, message.pod, message.host, message.owner]
    _check_facts([*texts, message.gang_network, *message.shared_roots[:MOST_SHARED_ROOTS]])
    node = Node(
        name=message.node,
        boot_id=message.boot_id,
        capacity=Resources(
            gpu_thousandths=len(devices) * 1000,
            cpu_thousandths=message.capacity.cpu_thousandths,
            memory_bytes=message.capacity.memory_bytes,
        ),
        devices=devices,
        isolation=to_isolation(message.isolation),
        agent_version=message.agent_version,
        pod=message.pod,
        host=message.host,
        owner=message.owner,
        device_note=message.device_note[:MOST_NOTE_CHARS],
        only_owner=message.only_owner[:MOST_NOTE_CHARS],
        gang_network=message.gang_network or HOST_NETWORK,
        networks=to_networks(message.networks),
        isolation_note=message.isolation_note[:MOST_NOTE_CHARS],
        setting_note=message.setting_note[:MOST_NOTE_CHARS],
        not_ready=message.not_ready[:MOST_NOTE_CHARS],
        engine_note=message.engine_note[:MOST_NOTE_CHARS],
        shared_roots=tuple(filter(is_plain, message.shared_roots[:MOST_SHARED_ROOTS])),
        abilities=tuple(sorted(one.name for one in to_abilities(message.abilities))),
        python_version=message.python_version[:MOST_VERSION_CHARS],
        data_bytes=message.data_bytes,
        registered_at=now,
        limits=to_kept(message.limits, most_note_chars=MOST_NOTE_CHARS),
    )
    return Registration(
        node=node,
        cluster_id=message.cluster_id,
        highest_term=message.highest_term,
        highest_revision=message.highest_revision,
        replicas=tuple(to_report(one, message.node, now) for one in message.replicas),
    )


def to_abilities(given: Iterable[int]) -> frozenset[Ability]:
    """Convert an agent's abilities; unknown ones are ignored."""
    return frozenset(_ABILITIES[one] for one in given if one in _ABILITIES)


def to_peer_offer(message: agents_pb2.Register) -> PeerOffer | None:
    """Convert an agent's offer to serve datasets to others, if any."""
    if not message.HasField("peer_offer"):
        return None
    offer = message.peer_offer
    _check_facts([offer.address])
    if len(offer.key) != KEY_BYTES or len(offer.certificate) > MOST_CERTIFICATE_BYTES:
        raise InvalidRequest("invalid peer offer")
    return PeerOffer(address=offer.address, certificate=offer.certificate, key=offer.key)


def to_fetched(report: agents_pb2.StockReport) -> FetchedBytes:
    """Convert an agent's transfers since its start."""
    message = report.fetched
    return FetchedBytes(
        from_bucket=message.from_bucket,
        bucket_note=report.bucket_note[:MOST_NOTE_CHARS],
        from_platform=message.from_platform,
        from_peers=message.from_peers,
        to_peers=message.to_peers,
        dropped_peers=message.dropped_peers,
    )


def peers_message(found: FoundPeers) -> agents_pb2.ControlResponse:
    """Convert nodes from which an agent may fetch a dataset."""
    answer = agents_pb2.FoundPeers(root=found.root)
    for one in found.peers:
        capability = peers_pb2.PeerCapability(
            root=found.root, expires_at=one.expires_at, mac=one.mac
        )
        answer.peers.add(
            node=one.node,
            address=one.offer.address,
            certificate=one.offer.certificate,
            capability=capability,
        )
    return agents_pb2.ControlResponse(found_peers=answer)


def to_devices(messages: Iterable[resources_pb2.Device]) -> tuple[Device, ...]:
    """Convert all devices of a node."""
    devices = tuple(map(to_device, messages))
    if len({device.uuid for device in devices}) != len(devices):
        raise InvalidRequest("two devices have one uuid")
    if len(devices) > MOST_NODE_DEVICES:
        raise InvalidRequest(f"{len(devices)} devices: a node has at most {MOST_NODE_DEVICES}")
    for device in devices:
        texts = [device.uuid, device.model, device.withheld, device.parent_uuid]
        _check_facts([*texts, device.driver_version, device.cuda_version])
    return devices


def to_changed_offer(message: agents_pb2.DevicesChanged) -> ChangedOffer:
    """Convert a node's changed devices."""
    return ChangedOffer(
        devices=to_devices(message.devices),
        note=message.device_note[:MOST_NOTE_CHARS],
        not_ready=message.not_ready[:MOST_NOTE_CHARS],
        engine_note=message.engine_note[:MOST_NOTE_CHARS],
    )


def _check_facts(texts: list[str]) -> None:
    longest = max(texts, key=lambda text: len(text.encode()))
    if len(longest.encode()) > MOST_FACT_BYTES:
        raise InvalidRequest(
            f"{longest[:40]!r}... is no fact of a node", why=f"over {MOST_FACT_BYTES} bytes"
        )


def to_report(message: agents_pb2.ReplicaReport, node: str, now: float) -> Report:
    """Convert a report on a replica of `node`."""
    phase = _PHASES_BACK.get(message.phase)
    if phase is None:
        raise InvalidRequest(f"there is no replica phase {message.phase}")
    ended = None
    if message.HasField("exit"):
        cause = _CAUSES_BACK.get(message.exit.cause)
        if cause is None:
            raise InvalidRequest(f"there is no cause {message.exit.cause}")
        if message.exit.node_refused:
            cause = Cause.NODE_REFUSED
        ended = Exit(
            cause=cause,
            exit_code=message.exit.exit_code,
            message=message.exit.message[:MOST_NOTE_CHARS],
            started_at=time_of(message.exit.started_at),
            ended_at=time_of(message.exit.ended_at),
            ran_for_s=seconds_of(message.exit.ran_for),
            memory_peak_bytes=message.exit.memory_peak_bytes,
        )
    return Report(
        node=node,
        session_id=message.replica.session_id,
        attempt=message.replica.attempt,
        rank=message.replica.rank,
        phase=phase,
        at=time_of(message.at) or now,
        exit=ended,
        placed_as=_to_placed_as(message.placed_as) if message.HasField("placed_as") else None,
        waiting=message.waiting[:MOST_WAITING_CHARS],
        image=message.image[:MOST_IMAGE_CHARS],
        python_version=message.python_version[:MOST_VERSION_CHARS],
    )


def to_progress(message: agents_pb2.ProgressReport, node: str) -> ProgressReport:
    """Convert the progress that a session would lose if moved."""
    has_saved = message.HasField("since_saved")
    return ProgressReport(
        node=node,
        session_id=message.replica.session_id,
        attempt=message.replica.attempt,
        rank=message.replica.rank,
        is_resumable=message.resumable,
        since_saved_s=seconds_of(message.since_saved) if has_saved else None,
    )


def to_said(message: agents_pb2.ChangeReport) -> list[Said]:
    """Convert the processes' reports on a change; truncated, since they come from user code."""
    return [
        Said(
            rank=message.replica.rank,
            local_rank=one.local_rank,
            process=one.process[: knobs.MOST_SAID_CHARS],
            world=min(max(one.world, 1), knobs.MOST_PROCESSES),
            number=one.number,
            state=_MEMBER_STATES.get(one.state, MemberState.UNKNOWN),
            point=(
                one.counter[: knobs.MOST_SAID_CHARS],
                _step(one.at) if one.HasField("at") else None,
            ),
            position=_step(one.position) if one.HasField("position") else None,
            counters={
                name: _step(one.counters[name]) for name in knobs.COUNTERS if name in one.counters
            },
            step_s={
                name: one.step_s[name]
                for name in knobs.COUNTERS
                if name in one.step_s and 0 < one.step_s[name] < math.inf
            },
            is_paused=one.is_paused,
            knobs=tuple(
                KnobChange(
                    name=knob.name[: knobs.MOST_SAID_CHARS],
                    before=knob.before[: knobs.MOST_SAID_CHARS],
                    after=knob.after[: knobs.MOST_SAID_CHARS],
                    in_force=knob.in_force[: knobs.MOST_SAID_CHARS],
                )
                for knob in one.knobs[: knobs.MOST_AT_ONCE]
            ),
            reason=one.reason[: knobs.MOST_REASON_CHARS],
        )
        for one in message.members[: knobs.MOST_PROCESSES]
    ]


def _step(number: int) -> int:
    return min(number, knobs.MOST_STEP)


def to_stock(message: agents_pb2.StockReport) -> Stock:
    """Convert a node's stock of data for sessions."""
    if len(message.things) > MOST_STOCKED:
        raise InvalidRequest(
            f"{len(message.things)} things in stock: a node tells of at most {MOST_STOCKED}"
        )
    things = {_stocked(one): one.bytes for one in message.things}
    return Stock(things=things, bytes_per_s=float(message.bytes_per_second))


def _stocked(thing: agents_pb2.StockedThing) -> str:
    if is_digest(thing.dataset_digest):
        return thing.dataset_digest
    if is_reference(thing.image):
        return whole_reference(thing.image)
    named = thing.dataset_digest or thing.image
    raise InvalidRequest(f"{named[:80]!r} is neither the digest of a dataset nor an image")


def _to_placed_as(message: agents_pb2.PlacedAs) -> PlacedAs:
    return PlacedAs(
        session_name=message.session_name[:MOST_FACT_BYTES],
        device_uuids=tuple(message.device_uuids[:MOST_NODE_DEVICES]),
        started_at=time_of(message.started_at),
    )


def acknowledged_message(reports: Iterable[Report]) -> agents_pb2.ControlResponse:
    """Acknowledge reports: they need not be repeated."""
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


class OrdersMessages:
    """Builds the order messages of one stream; unchanged assignments are reused.

    A node gets all its assignments whenever one is added. `abilities` are its agent's.
    """

    def __init__(self, abilities: Collection[Ability]) -> None:
        self._abilities = abilities
        self._said: dict[tuple[str, int, int], _Said] = {}

    def of(
        self, orders: Orders, term: int, secrets: Secrets, *, now: float
    ) -> Iterator[agents_pb2.ControlResponse]:
        """Yield a node's orders; `secrets` are for its programs not yet started, `now` in Unix seconds."""
        before, self._said = self._said, {}
        parts = parts_of(self._assignment(one, before, secrets) for one in orders.assignments)
        part = next(parts)
        for following in parts:  # built one at a time: together they may be very large
            yield _orders_message(orders, term, part, more=True)
            part = following
        message = _orders_message(orders, term, part, more=False)
        message.orders.sent_at.FromNanoseconds(round(now * 1e9))
        yield message

    def _assignment(
        self,
        assignment: Assignment,
        before: Mapping[tuple[str, int, int], _Said],
        secrets: Secrets,
    ) -> agents_pb2.Assignment:
        held = assignment.held
        key = (held.session_id, held.attempt, held.rank)
        if key in secrets:
            return self._made(assignment, secrets)  # never cached
        said = before.get(key)
        if said is None or not said.is_of(assignment):
            said = _Said(assignment, self._made(assignment, secrets))
        self._said[key] = said
        return said.message

    def _made(self, assignment: Assignment, secrets: Secrets) -> agents_pb2.Assignment:
        message = _assignment(assignment, secrets)
        if reason := _too_old_for(assignment, self._abilities):
            message.stop.cause = sessions_pb2.CAUSE_NODE_REFUSED
            message.stop.reason = f"the nsml of its node is too old {reason}"
        return message


class _Said(NamedTuple):
    """A cached message and its source."""

    assignment: Assignment
    message: agents_pb2.Assignment

    def is_of(self, other: Assignment) -> bool:
        """Whether it was built from the same records."""
        mine = self.assignment
        return (
            mine.session is other.session and mine.held is other.held and mine.hosts == other.hosts
        )


def _orders_message(
    orders: Orders, term: int, assignments: list[agents_pb2.Assignment], *, more: bool
) -> agents_pb2.ControlResponse:
    return agents_pb2.ControlResponse(
        orders=agents_pb2.Orders(
            term=term, revision=orders.revision, assignments=assignments, more=more
        )
    )


def tunnel_message(order: TunnelOrder) -> agents_pb2.ControlResponse:
    """Order an agent to dial a tunnel."""
    replica = agents_pb2.ReplicaId(
        session_id=order.session_id, attempt=order.attempt, rank=order.rank
    )
    relay = None
    if order.relay is not None:
        relay = sessions_pb2.RelayWay(address=order.relay.address, key=order.relay.key)
    entrance = None
    if order.ssh_entrance is not None:
        entrance = agents_pb2.SshEntrance(
            host_key=order.ssh_entrance.host_key,
            certificate=order.ssh_entrance.certificate,
            authorized_keys=order.ssh_entrance.authorized_keys,
        )
    return agents_pb2.ControlResponse(
        open_tunnel=agents_pb2.OpenTunnel(
            tunnel_id=order.tunnel_id,
            replica=replica if order.session_id else None,
            service=order.service,
            only_checks=order.only_checks,
            user=order.user,
            direct_key=order.direct_key,
            relay=relay,
            ssh_entrance=entrance,
        )
    )


_IMAGE_ACTIONS: Final = {
    ImageAction.PULL: agents_pb2.IMAGE_ACTION_PULL,
    ImageAction.LOOK: agents_pb2.IMAGE_ACTION_LOOK,
    ImageAction.REMOVE: agents_pb2.IMAGE_ACTION_REMOVE,
}


def image_message(order: ImageOrder) -> agents_pb2.ControlResponse:
    """Convert an order about an image."""
    return agents_pb2.ControlResponse(
        image_order=agents_pb2.ImageOrder(
            order_id=order.order_id,
            action=_IMAGE_ACTIONS[order.action],
            image=order.image,
            owner_id=order.owner_id,
            registry_logins=[_REGISTRY_LOGIN.to_message(one) for one in order.logins],
        )
    )


def environment_message(order: EnvironmentOrder) -> agents_pb2.ControlResponse:
    """Convert an order about environments."""
    message = agents_pb2.EnvironmentOrder(
        order_id=order.order_id, remove=order.remove, owner_id=order.owner_id, build=order.build
    )
    if order.logins:
        message.build.registry_logins.extend(map(_REGISTRY_LOGIN.to_message, order.logins))
    return agents_pb2.ControlResponse(environment_order=message)


def repair_message(order: RepairOrder) -> agents_pb2.ControlResponse:
    """Request content that the object store has lost from an agent."""
    message = agents_pb2.RepairOrder(
        order_id=order.order_id, root=order.root, digests=order.digests, folder=order.folder
    )
    if order.session_id:
        message.replica.session_id = order.session_id
        message.replica.attempt = order.attempt
        message.replica.rank = order.rank
    return agents_pb2.ControlResponse(repair_order=message)


def _too_old_for(assignment: Assignment, abilities: Collection[Ability]) -> str:
    """Name the feature that an old agent lacks to start a replica correctly; "" if none.

    What has begun goes on, except for a step of a submission: the agent may be older than the one that began it.
    """
    held, session = assignment.held, assignment.session
    spec = session.spec
    if session.stop is not None:
        return ""
    if spec.is_confined and Ability.SUBMISSION_STEPS not in abilities:
        return "to keep a step of a submission apart"
    phases = [one.phase for one in session.replicas if one.rank == held.rank]
    if any(phase is not ReplicaPhase.PLACED for phase in phases):
        return ""
    needed = (
        (
            Ability.INITIAL_CHECKPOINTS,
            spec.initial_checkpoint is not None and held.attempt == 1,
            "to begin with a checkpoint; the next attempt does",
        ),
        (
            Ability.DATASET_FOLDERS,
            any(one.folder for one in spec.datasets),
            "to mount a dataset under another name",
        ),
        (
            Ability.STREAMED_DATASETS,
            any(one.streamed for one in spec.datasets),
            "to stream a dataset, and would fetch it whole",
        ),
        (Ability.ENVIRONMENTS, spec.environment_lock, "to install the packages of a lock"),
        (
            Ability.OUTPUTS,
            # files kept by default are not needed: it runs without them
            spec.output_datasets or spec.keep_files,
            "for --output-dataset and --keep-files",
        ),
        (Ability.DOCKERFILES, spec.dockerfile, "to build a Dockerfile"),
        (Ability.LAUNCHERS, spec.launcher, "for --launch"),
    )
    lacks = (words for one, is_needed, words in needed if is_needed and one not in abilities)
    return next(lacks, "")


def _assignment(assignment: Assignment, secrets: Secrets) -> agents_pb2.Assignment:
    held, session = assignment.held, assignment.session
    given = secrets.get((held.session_id, held.attempt, held.rank), ())
    # keep_files_by_default tells agents that it was not requested
    spec = replace(session.spec, keep_files=session.spec.keeps_files)
    message = agents_pb2.Assignment(
        replica=agents_pb2.ReplicaId(
            session_id=held.session_id, attempt=held.attempt, rank=held.rank
        ),
        session_name=session.name,
        owner=session.owner,
        owner_id=session.owner_id,
        spec=spec_message(spec, session.owner),
        device_uuids=[share.uuid for share in held.devices],
        resources=resources_pb2.Resources(
            gpu_thousandths=held.gpu_thousandths,
            cpu_thousandths=held.cpu_thousandths,
            memory_bytes=held.memory_bytes,
        ),
        hosts=assignment.hosts,
        secrets=[_SECRET.to_message(one) for one in given if isinstance(one, OpenedSecret)],
        registry_logins=[
            _REGISTRY_LOGIN.to_message(one) for one in given if isinstance(one, RegistryLogin)
        ],
    )
    earlier = [one for one in session.changes if one.attempt < held.attempt]
    message.knobs.extend(map(knob_message, (*session.spec.knobs, *knobs_of(earlier))))
    message.made.extend(map(change_message, made_in(session.changes, held.attempt)))
    if session.change is not None and session.change.attempt == held.attempt:
        message.change.CopyFrom(change_message(session.change))
    if session.spec.refresh_environment:
        message.built_after.FromNanoseconds(round(session.created_at * 1e9))
    if session.stop is not None:
        message.stop.CopyFrom(
            agents_pb2.StopOrder(
                grace=duration(session.stop.grace_s),
                cause=CAUSES[session.stop.cause],
                reason=session.stop.reason,
            )
        )
        if session.stop.notice_s:
            message.stop.notice.CopyFrom(duration(session.stop.notice_s))
    return message


def to_chunk(message: agents_pb2.Chunk) -> Chunk:
    """Convert a run of records or bytes."""
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
        raise InvalidRequest("a chunk does not match its description", why=str(error)) from None


def to_stream(message: agents_pb2.StreamKey) -> StreamKey:
    """Convert a stream's name."""
    return StreamKey(
        session_id=message.replica.session_id,
        attempt=message.replica.attempt,
        rank=message.replica.rank,
        channel=Channel(message.channel),
        writer=message.writer,
    )


def stream_message(key: StreamKey) -> agents_pb2.StreamKey:
    """Convert a stream's name."""
    return agents_pb2.StreamKey(
        replica=agents_pb2.ReplicaId(session_id=key.session_id, attempt=key.attempt, rank=key.rank),
        channel=_CHANNELS[key.channel],
        writer=key.writer,
    )


def to_sample(message: agents_pb2.NodeSample, node: str) -> NodeSample:
    """Convert a node's readings."""
    return NodeSample(
        node=node,
        boot_id=message.boot_id,
        sequence=message.sequence,
        at=time_of(message.at),
        devices=tuple(
            DeviceSample(
                uuid=one.uuid,
                utilization_percent=sound(one.utilization_percent),
                memory_used_bytes=sound(one.memory_used_bytes),
                power_watts=sound(one.power_watts),
                temperature_celsius=sound(one.temperature_celsius),
                clock_mhz=one.clock_mhz,
                memory_clock_mhz=one.memory_clock_mhz,
                ecc_corrected=one.ecc_corrected,
                ecc_uncorrected=one.ecc_uncorrected,
                last_xid=one.last_xid,
                process_count=one.process_count,
                throttled=one.throttled[:MOST_FACT_BYTES],
            )
            for one in message.devices
        ),
        cpu_percent=sound(message.cpu_percent),
        memory_used_bytes=sound(message.memory_used_bytes),
        disk_note=message.disk_note[:MOST_FACT_BYTES],
        replicas=tuple(
            ReplicaSample(
                session_id=one.replica.session_id,
                attempt=one.replica.attempt,
                rank=one.replica.rank,
                cpu_cores=sound(one.cpu_cores),
                memory_used_bytes=sound(one.memory_used_bytes),
                process_count=one.process_count,
            )
            for one in message.replicas[:MOST_KEYS]
        ),
    )
