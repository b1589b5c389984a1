import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from nsml.v1 import resources_pb2 as _resources_pb2
from nsml.v1 import sessions_pb2 as _sessions_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_STATE_UNSPECIFIED: _ClassVar[NodeState]
    NODE_STATE_READY: _ClassVar[NodeState]
    NODE_STATE_DRAINING: _ClassVar[NodeState]
    NODE_STATE_SILENT: _ClassVar[NodeState]
    NODE_STATE_FENCED: _ClassVar[NodeState]
    NODE_STATE_HELD: _ClassVar[NodeState]
    NODE_STATE_NOT_READY: _ClassVar[NodeState]

class ConditionName(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONDITION_NAME_UNSPECIFIED: _ClassVar[ConditionName]
    CONDITION_NAME_COORDINATION_GONE: _ClassVar[ConditionName]
    CONDITION_NAME_COORDINATION_FULL: _ClassVar[ConditionName]
    CONDITION_NAME_HISTORY_GONE: _ClassVar[ConditionName]
    CONDITION_NAME_OBJECTS_GONE: _ClassVar[ConditionName]
    CONDITION_NAME_DISK_FULL: _ClassVar[ConditionName]
    CONDITION_NAME_NO_LEADER: _ClassVar[ConditionName]
    CONDITION_NAME_NODES_SILENT: _ClassVar[ConditionName]
    CONDITION_NAME_LOW_ON_ROOM: _ClassVar[ConditionName]
    CONDITION_NAME_STORE_MEMBER_AWAY: _ClassVar[ConditionName]
    CONDITION_NAME_SETTINGS_DIFFER: _ClassVar[ConditionName]
    CONDITION_NAME_CLOCK_WRONG: _ClassVar[ConditionName]
    CONDITION_NAME_CERTIFICATE_ENDING: _ClassVar[ConditionName]
    CONDITION_NAME_JOIN_REFUSED: _ClassVar[ConditionName]
    CONDITION_NAME_PROCESS_FAILING: _ClassVar[ConditionName]
    CONDITION_NAME_SUBMISSIONS_FAILING: _ClassVar[ConditionName]
NODE_STATE_UNSPECIFIED: NodeState
NODE_STATE_READY: NodeState
NODE_STATE_DRAINING: NodeState
NODE_STATE_SILENT: NodeState
NODE_STATE_FENCED: NodeState
NODE_STATE_HELD: NodeState
NODE_STATE_NOT_READY: NodeState
CONDITION_NAME_UNSPECIFIED: ConditionName
CONDITION_NAME_COORDINATION_GONE: ConditionName
CONDITION_NAME_COORDINATION_FULL: ConditionName
CONDITION_NAME_HISTORY_GONE: ConditionName
CONDITION_NAME_OBJECTS_GONE: ConditionName
CONDITION_NAME_DISK_FULL: ConditionName
CONDITION_NAME_NO_LEADER: ConditionName
CONDITION_NAME_NODES_SILENT: ConditionName
CONDITION_NAME_LOW_ON_ROOM: ConditionName
CONDITION_NAME_STORE_MEMBER_AWAY: ConditionName
CONDITION_NAME_SETTINGS_DIFFER: ConditionName
CONDITION_NAME_CLOCK_WRONG: ConditionName
CONDITION_NAME_CERTIFICATE_ENDING: ConditionName
CONDITION_NAME_JOIN_REFUSED: ConditionName
CONDITION_NAME_PROCESS_FAILING: ConditionName
CONDITION_NAME_SUBMISSIONS_FAILING: ConditionName

class NodeTunnelTarget(_message.Message):
    __slots__ = ("node", "service", "boot_id", "uses_relay")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    USES_RELAY_FIELD_NUMBER: _ClassVar[int]
    node: str
    service: str
    boot_id: str
    uses_relay: bool
    def __init__(self, node: _Optional[str] = ..., service: _Optional[str] = ..., boot_id: _Optional[str] = ..., uses_relay: _Optional[bool] = ...) -> None: ...

class OpenNodeTunnelRequest(_message.Message):
    __slots__ = ("target", "data", "end")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    target: NodeTunnelTarget
    data: bytes
    end: bool
    def __init__(self, target: _Optional[_Union[NodeTunnelTarget, _Mapping]] = ..., data: _Optional[bytes] = ..., end: _Optional[bool] = ...) -> None: ...

class OpenNodeTunnelResponse(_message.Message):
    __slots__ = ("data", "end", "gone", "direct")
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    DIRECT_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    end: bool
    gone: bool
    direct: _sessions_pb2.DirectWay
    def __init__(self, data: _Optional[bytes] = ..., end: _Optional[bool] = ..., gone: _Optional[bool] = ..., direct: _Optional[_Union[_sessions_pb2.DirectWay, _Mapping]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("asked_by", "reason", "asked_at", "move_at")
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    MOVE_AT_FIELD_NUMBER: _ClassVar[int]
    asked_by: str
    reason: str
    asked_at: _timestamp_pb2.Timestamp
    move_at: _timestamp_pb2.Timestamp
    def __init__(self, asked_by: _Optional[str] = ..., reason: _Optional[str] = ..., asked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., move_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Fence(_message.Message):
    __slots__ = ("asked_by", "reason", "asked_at")
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    asked_by: str
    reason: str
    asked_at: _timestamp_pb2.Timestamp
    def __init__(self, asked_by: _Optional[str] = ..., reason: _Optional[str] = ..., asked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ("found_at", "why", "replicas", "lifted_by", "foreign")
    FOUND_AT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LIFTED_BY_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_FIELD_NUMBER: _ClassVar[int]
    found_at: _timestamp_pb2.Timestamp
    why: str
    replicas: _containers.RepeatedScalarFieldContainer[str]
    lifted_by: str
    foreign: _containers.RepeatedCompositeFieldContainer[ForeignReplica]
    def __init__(self, found_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., why: _Optional[str] = ..., replicas: _Optional[_Iterable[str]] = ..., lifted_by: _Optional[str] = ..., foreign: _Optional[_Iterable[_Union[ForeignReplica, _Mapping]]] = ...) -> None: ...

class ForeignReplica(_message.Message):
    __slots__ = ("replica", "session_name", "device_uuids", "started_at")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    SESSION_NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUIDS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    replica: str
    session_name: str
    device_uuids: _containers.RepeatedScalarFieldContainer[str]
    started_at: _timestamp_pb2.Timestamp
    def __init__(self, replica: _Optional[str] = ..., session_name: _Optional[str] = ..., device_uuids: _Optional[_Iterable[str]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DeviceUse(_message.Message):
    __slots__ = ("device", "sample", "allocated_thousandths", "sessions")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    device: _resources_pb2.Device
    sample: _resources_pb2.DeviceSample
    allocated_thousandths: int
    sessions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, device: _Optional[_Union[_resources_pb2.Device, _Mapping]] = ..., sample: _Optional[_Union[_resources_pb2.DeviceSample, _Mapping]] = ..., allocated_thousandths: _Optional[int] = ..., sessions: _Optional[_Iterable[str]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("name", "state", "devices", "capacity", "allocated", "isolation", "pod", "agent_version", "last_contact_at", "cpu_percent", "memory_used_bytes", "host", "device_note", "drain", "fence", "hold", "gang_network", "networks", "limits", "owner_note", "isolation_note", "setting_note", "disk_note", "certificate_ends_at", "clock_ahead", "not_ready", "engine_note", "python_version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_CONTACT_AT_FIELD_NUMBER: _ClassVar[int]
    CPU_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NOTE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    GANG_NETWORK_FIELD_NUMBER: _ClassVar[int]
    NETWORKS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    OWNER_NOTE_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_NOTE_FIELD_NUMBER: _ClassVar[int]
    SETTING_NOTE_FIELD_NUMBER: _ClassVar[int]
    DISK_NOTE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_ENDS_AT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_AHEAD_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_FIELD_NUMBER: _ClassVar[int]
    ENGINE_NOTE_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: NodeState
    devices: _containers.RepeatedCompositeFieldContainer[DeviceUse]
    capacity: _resources_pb2.Resources
    allocated: _resources_pb2.Resources
    isolation: _resources_pb2.Isolation
    pod: str
    agent_version: str
    last_contact_at: _timestamp_pb2.Timestamp
    cpu_percent: float
    memory_used_bytes: int
    host: str
    device_note: str
    drain: Drain
    fence: Fence
    hold: Hold
    gang_network: str
    networks: _containers.RepeatedScalarFieldContainer[_resources_pb2.Network]
    limits: _resources_pb2.KeptLimits
    owner_note: str
    isolation_note: str
    setting_note: str
    disk_note: str
    certificate_ends_at: _timestamp_pb2.Timestamp
    clock_ahead: _duration_pb2.Duration
    not_ready: str
    engine_note: str
    python_version: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[_Union[NodeState, str]] = ..., devices: _Optional[_Iterable[_Union[DeviceUse, _Mapping]]] = ..., capacity: _Optional[_Union[_resources_pb2.Resources, _Mapping]] = ..., allocated: _Optional[_Union[_resources_pb2.Resources, _Mapping]] = ..., isolation: _Optional[_Union[_resources_pb2.Isolation, str]] = ..., pod: _Optional[str] = ..., agent_version: _Optional[str] = ..., last_contact_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cpu_percent: _Optional[float] = ..., memory_used_bytes: _Optional[int] = ..., host: _Optional[str] = ..., device_note: _Optional[str] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ..., hold: _Optional[_Union[Hold, _Mapping]] = ..., gang_network: _Optional[str] = ..., networks: _Optional[_Iterable[_Union[_resources_pb2.Network, str]]] = ..., limits: _Optional[_Union[_resources_pb2.KeptLimits, _Mapping]] = ..., owner_note: _Optional[str] = ..., isolation_note: _Optional[str] = ..., setting_note: _Optional[str] = ..., disk_note: _Optional[str] = ..., certificate_ends_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., clock_ahead: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., not_ready: _Optional[str] = ..., engine_note: _Optional[str] = ..., python_version: _Optional[str] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ("page_size", "cursor")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    cursor: str
    def __init__(self, page_size: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListNodesResponse(_message.Message):
    __slots__ = ("nodes", "next_cursor")
    NODES_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    next_cursor: str
    def __init__(self, nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class GetNodeRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetNodeResponse(_message.Message):
    __slots__ = ("node", "sessions", "hidden_sessions", "fence_refusal", "images", "transfers")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    FENCE_REFUSAL_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    node: Node
    sessions: _containers.RepeatedScalarFieldContainer[str]
    hidden_sessions: int
    fence_refusal: FenceRefusal
    images: _containers.RepeatedCompositeFieldContainer[NodeImage]
    transfers: NodeTransfers
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., sessions: _Optional[_Iterable[str]] = ..., hidden_sessions: _Optional[int] = ..., fence_refusal: _Optional[_Union[FenceRefusal, _Mapping]] = ..., images: _Optional[_Iterable[_Union[NodeImage, _Mapping]]] = ..., transfers: _Optional[_Union[NodeTransfers, _Mapping]] = ...) -> None: ...

class NodeTransfers(_message.Message):
    __slots__ = ("from_platform", "from_peers", "to_peers", "dropped_peers", "from_bucket", "bucket_note")
    FROM_PLATFORM_FIELD_NUMBER: _ClassVar[int]
    FROM_PEERS_FIELD_NUMBER: _ClassVar[int]
    TO_PEERS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_PEERS_FIELD_NUMBER: _ClassVar[int]
    FROM_BUCKET_FIELD_NUMBER: _ClassVar[int]
    BUCKET_NOTE_FIELD_NUMBER: _ClassVar[int]
    from_platform: int
    from_peers: int
    to_peers: int
    dropped_peers: int
    from_bucket: int
    bucket_note: str
    def __init__(self, from_platform: _Optional[int] = ..., from_peers: _Optional[int] = ..., to_peers: _Optional[int] = ..., dropped_peers: _Optional[int] = ..., from_bucket: _Optional[int] = ..., bucket_note: _Optional[str] = ...) -> None: ...

class NodeImage(_message.Message):
    __slots__ = ("name", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    bytes: int
    def __init__(self, name: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class PullImageRequest(_message.Message):
    __slots__ = ("node", "image")
    NODE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    node: str
    image: str
    def __init__(self, node: _Optional[str] = ..., image: _Optional[str] = ...) -> None: ...

class PullImageResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: _resources_pb2.ImageStatus
    def __init__(self, status: _Optional[_Union[_resources_pb2.ImageStatus, _Mapping]] = ...) -> None: ...

class GetImagePullRequest(_message.Message):
    __slots__ = ("node", "image")
    NODE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    node: str
    image: str
    def __init__(self, node: _Optional[str] = ..., image: _Optional[str] = ...) -> None: ...

class GetImagePullResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: _resources_pb2.ImageStatus
    def __init__(self, status: _Optional[_Union[_resources_pb2.ImageStatus, _Mapping]] = ...) -> None: ...

class RemoveImageRequest(_message.Message):
    __slots__ = ("node", "image")
    NODE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    node: str
    image: str
    def __init__(self, node: _Optional[str] = ..., image: _Optional[str] = ...) -> None: ...

class RemoveImageResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: _resources_pb2.ImageStatus
    def __init__(self, status: _Optional[_Union[_resources_pb2.ImageStatus, _Mapping]] = ...) -> None: ...

class FenceRefusal(_message.Message):
    __slots__ = ("message", "why", "attempt")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    message: str
    why: str
    attempt: str
    def __init__(self, message: _Optional[str] = ..., why: _Optional[str] = ..., attempt: _Optional[str] = ...) -> None: ...

class DrainNodeRequest(_message.Message):
    __slots__ = ("name", "move_after", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MOVE_AFTER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    move_after: _duration_pb2.Duration
    reason: str
    def __init__(self, name: _Optional[str] = ..., move_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class DrainNodeResponse(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: Node
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ...) -> None: ...

class ResumeNodeRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ResumeNodeResponse(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: Node
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ...) -> None: ...

class FenceNodeRequest(_message.Message):
    __slots__ = ("name", "reason", "force")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    force: bool
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ..., force: _Optional[bool] = ...) -> None: ...

class FenceNodeResponse(_message.Message):
    __slots__ = ("node", "sessions")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    node: Node
    sessions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., sessions: _Optional[_Iterable[str]] = ...) -> None: ...

class RemoveNodeRequest(_message.Message):
    __slots__ = ("name", "revoke")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVOKE_FIELD_NUMBER: _ClassVar[int]
    name: str
    revoke: bool
    def __init__(self, name: _Optional[str] = ..., revoke: _Optional[bool] = ...) -> None: ...

class RemoveNodeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Condition(_message.Message):
    __slots__ = ("name", "subject", "since", "meaning", "healing", "evidence")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    MEANING_FIELD_NUMBER: _ClassVar[int]
    HEALING_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    name: ConditionName
    subject: str
    since: _timestamp_pb2.Timestamp
    meaning: str
    healing: str
    evidence: str
    def __init__(self, name: _Optional[_Union[ConditionName, str]] = ..., subject: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., meaning: _Optional[str] = ..., healing: _Optional[str] = ..., evidence: _Optional[str] = ...) -> None: ...

class ClusterLoad(_message.Message):
    __slots__ = ("devices", "held", "running", "busy", "utilization_percent", "power_watts")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    devices: int
    held: int
    running: int
    busy: int
    utilization_percent: float
    power_watts: float
    def __init__(self, devices: _Optional[int] = ..., held: _Optional[int] = ..., running: _Optional[int] = ..., busy: _Optional[int] = ..., utilization_percent: _Optional[float] = ..., power_watts: _Optional[float] = ...) -> None: ...

class GetClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetClusterResponse(_message.Message):
    __slots__ = ("version", "leader", "term", "coordination", "capacity", "allocated", "nodes_ready", "nodes_total", "sessions_running", "sessions_queued", "simulated", "cluster_id", "closed_nodes", "now", "members", "answered_by", "conditions", "known_at", "sessions_held", "load")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COORDINATION_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_FIELD_NUMBER: _ClassVar[int]
    NODES_READY_FIELD_NUMBER: _ClassVar[int]
    NODES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_QUEUED_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CLOSED_NODES_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_BY_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_AT_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_HELD_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    version: str
    leader: str
    term: int
    coordination: str
    capacity: _resources_pb2.Resources
    allocated: _resources_pb2.Resources
    nodes_ready: int
    nodes_total: int
    sessions_running: int
    sessions_queued: int
    simulated: bool
    cluster_id: str
    closed_nodes: _containers.RepeatedScalarFieldContainer[str]
    now: _timestamp_pb2.Timestamp
    members: _containers.RepeatedCompositeFieldContainer[Member]
    answered_by: str
    conditions: _containers.RepeatedCompositeFieldContainer[Condition]
    known_at: _timestamp_pb2.Timestamp
    sessions_held: int
    load: ClusterLoad
    def __init__(self, version: _Optional[str] = ..., leader: _Optional[str] = ..., term: _Optional[int] = ..., coordination: _Optional[str] = ..., capacity: _Optional[_Union[_resources_pb2.Resources, _Mapping]] = ..., allocated: _Optional[_Union[_resources_pb2.Resources, _Mapping]] = ..., nodes_ready: _Optional[int] = ..., nodes_total: _Optional[int] = ..., sessions_running: _Optional[int] = ..., sessions_queued: _Optional[int] = ..., simulated: _Optional[bool] = ..., cluster_id: _Optional[str] = ..., closed_nodes: _Optional[_Iterable[str]] = ..., now: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., answered_by: _Optional[str] = ..., conditions: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ..., known_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., sessions_held: _Optional[int] = ..., load: _Optional[_Union[ClusterLoad, _Mapping]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("name", "version", "user_address", "agent_address", "local_address", "started_at", "is_leader")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    USER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    AGENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    IS_LEADER_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    user_address: str
    agent_address: str
    local_address: str
    started_at: _timestamp_pb2.Timestamp
    is_leader: bool
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., user_address: _Optional[str] = ..., agent_address: _Optional[str] = ..., local_address: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., is_leader: _Optional[bool] = ...) -> None: ...
