import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from nsml.v1 import peers_pb2 as _peers_pb2
from nsml.v1 import resources_pb2 as _resources_pb2
from nsml.v1 import sessions_pb2 as _sessions_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentAbility(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AGENT_ABILITY_UNSPECIFIED: _ClassVar[AgentAbility]
    AGENT_ABILITY_IMAGES: _ClassVar[AgentAbility]
    AGENT_ABILITY_PORTS: _ClassVar[AgentAbility]
    AGENT_ABILITY_SERVICES: _ClassVar[AgentAbility]
    AGENT_ABILITY_NODE_SERVICES: _ClassVar[AgentAbility]
    AGENT_ABILITY_DIRECT: _ClassVar[AgentAbility]
    AGENT_ABILITY_CHANGES: _ClassVar[AgentAbility]
    AGENT_ABILITY_RELAY: _ClassVar[AgentAbility]
    AGENT_ABILITY_SSH_ENTRANCE: _ClassVar[AgentAbility]
    AGENT_ABILITY_INITIAL_CHECKPOINTS: _ClassVar[AgentAbility]
    AGENT_ABILITY_PAGED_TREES: _ClassVar[AgentAbility]
    AGENT_ABILITY_DATASET_FOLDERS: _ClassVar[AgentAbility]
    AGENT_ABILITY_STREAMED_DATASETS: _ClassVar[AgentAbility]
    AGENT_ABILITY_ENVIRONMENTS: _ClassVar[AgentAbility]
    AGENT_ABILITY_OUTPUTS: _ClassVar[AgentAbility]
    AGENT_ABILITY_REPAIRS: _ClassVar[AgentAbility]
    AGENT_ABILITY_ENVIRONMENT_BUILDS: _ClassVar[AgentAbility]
    AGENT_ABILITY_DOCKERFILES: _ClassVar[AgentAbility]
    AGENT_ABILITY_CONDA: _ClassVar[AgentAbility]
    AGENT_ABILITY_DOCKERFILE_BUILDS: _ClassVar[AgentAbility]
    AGENT_ABILITY_SUBMISSION_STEPS: _ClassVar[AgentAbility]
    AGENT_ABILITY_LAUNCHERS: _ClassVar[AgentAbility]

class ReplicaPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICA_PHASE_UNSPECIFIED: _ClassVar[ReplicaPhase]
    REPLICA_PHASE_PREPARING: _ClassVar[ReplicaPhase]
    REPLICA_PHASE_RUNNING: _ClassVar[ReplicaPhase]
    REPLICA_PHASE_PAUSED: _ClassVar[ReplicaPhase]
    REPLICA_PHASE_EXITED: _ClassVar[ReplicaPhase]
    REPLICA_PHASE_FINALIZED: _ClassVar[ReplicaPhase]

class ImageAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IMAGE_ACTION_UNSPECIFIED: _ClassVar[ImageAction]
    IMAGE_ACTION_PULL: _ClassVar[ImageAction]
    IMAGE_ACTION_LOOK: _ClassVar[ImageAction]
    IMAGE_ACTION_REMOVE: _ClassVar[ImageAction]

class Channel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANNEL_UNSPECIFIED: _ClassVar[Channel]
    CHANNEL_METRIC: _ClassVar[Channel]
    CHANNEL_LOG: _ClassVar[Channel]
    CHANNEL_STATE: _ClassVar[Channel]
AGENT_ABILITY_UNSPECIFIED: AgentAbility
AGENT_ABILITY_IMAGES: AgentAbility
AGENT_ABILITY_PORTS: AgentAbility
AGENT_ABILITY_SERVICES: AgentAbility
AGENT_ABILITY_NODE_SERVICES: AgentAbility
AGENT_ABILITY_DIRECT: AgentAbility
AGENT_ABILITY_CHANGES: AgentAbility
AGENT_ABILITY_RELAY: AgentAbility
AGENT_ABILITY_SSH_ENTRANCE: AgentAbility
AGENT_ABILITY_INITIAL_CHECKPOINTS: AgentAbility
AGENT_ABILITY_PAGED_TREES: AgentAbility
AGENT_ABILITY_DATASET_FOLDERS: AgentAbility
AGENT_ABILITY_STREAMED_DATASETS: AgentAbility
AGENT_ABILITY_ENVIRONMENTS: AgentAbility
AGENT_ABILITY_OUTPUTS: AgentAbility
AGENT_ABILITY_REPAIRS: AgentAbility
AGENT_ABILITY_ENVIRONMENT_BUILDS: AgentAbility
AGENT_ABILITY_DOCKERFILES: AgentAbility
AGENT_ABILITY_CONDA: AgentAbility
AGENT_ABILITY_DOCKERFILE_BUILDS: AgentAbility
AGENT_ABILITY_SUBMISSION_STEPS: AgentAbility
AGENT_ABILITY_LAUNCHERS: AgentAbility
REPLICA_PHASE_UNSPECIFIED: ReplicaPhase
REPLICA_PHASE_PREPARING: ReplicaPhase
REPLICA_PHASE_RUNNING: ReplicaPhase
REPLICA_PHASE_PAUSED: ReplicaPhase
REPLICA_PHASE_EXITED: ReplicaPhase
REPLICA_PHASE_FINALIZED: ReplicaPhase
IMAGE_ACTION_UNSPECIFIED: ImageAction
IMAGE_ACTION_PULL: ImageAction
IMAGE_ACTION_LOOK: ImageAction
IMAGE_ACTION_REMOVE: ImageAction
CHANNEL_UNSPECIFIED: Channel
CHANNEL_METRIC: Channel
CHANNEL_LOG: Channel
CHANNEL_STATE: Channel

class ReplicaId(_message.Message):
    __slots__ = ("session_id", "attempt", "rank")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    attempt: int
    rank: int
    def __init__(self, session_id: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class ControlRequest(_message.Message):
    __slots__ = ("register", "heartbeat", "report", "orders_accepted", "devices_changed", "progress", "stock", "image_report", "change", "find_peers", "environment_report", "repair_report")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    ORDERS_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DEVICES_CHANGED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    STOCK_FIELD_NUMBER: _ClassVar[int]
    IMAGE_REPORT_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    FIND_PEERS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_REPORT_FIELD_NUMBER: _ClassVar[int]
    REPAIR_REPORT_FIELD_NUMBER: _ClassVar[int]
    register: Register
    heartbeat: Heartbeat
    report: ReplicaReport
    orders_accepted: OrdersAccepted
    devices_changed: DevicesChanged
    progress: ProgressReport
    stock: StockReport
    image_report: ImageReport
    change: ChangeReport
    find_peers: FindPeers
    environment_report: EnvironmentReport
    repair_report: RepairReport
    def __init__(self, register: _Optional[_Union[Register, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., report: _Optional[_Union[ReplicaReport, _Mapping]] = ..., orders_accepted: _Optional[_Union[OrdersAccepted, _Mapping]] = ..., devices_changed: _Optional[_Union[DevicesChanged, _Mapping]] = ..., progress: _Optional[_Union[ProgressReport, _Mapping]] = ..., stock: _Optional[_Union[StockReport, _Mapping]] = ..., image_report: _Optional[_Union[ImageReport, _Mapping]] = ..., change: _Optional[_Union[ChangeReport, _Mapping]] = ..., find_peers: _Optional[_Union[FindPeers, _Mapping]] = ..., environment_report: _Optional[_Union[EnvironmentReport, _Mapping]] = ..., repair_report: _Optional[_Union[RepairReport, _Mapping]] = ...) -> None: ...

class FindPeers(_message.Message):
    __slots__ = ("root", "is_stream")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    IS_STREAM_FIELD_NUMBER: _ClassVar[int]
    root: str
    is_stream: bool
    def __init__(self, root: _Optional[str] = ..., is_stream: _Optional[bool] = ...) -> None: ...

class FoundPeers(_message.Message):
    __slots__ = ("root", "peers")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    root: str
    peers: _containers.RepeatedCompositeFieldContainer[_peers_pb2.Peer]
    def __init__(self, root: _Optional[str] = ..., peers: _Optional[_Iterable[_Union[_peers_pb2.Peer, _Mapping]]] = ...) -> None: ...

class StockReport(_message.Message):
    __slots__ = ("things", "bytes_per_second", "fetched", "bucket_note")
    THINGS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    BUCKET_NOTE_FIELD_NUMBER: _ClassVar[int]
    things: _containers.RepeatedCompositeFieldContainer[StockedThing]
    bytes_per_second: int
    fetched: FetchedBytes
    bucket_note: str
    def __init__(self, things: _Optional[_Iterable[_Union[StockedThing, _Mapping]]] = ..., bytes_per_second: _Optional[int] = ..., fetched: _Optional[_Union[FetchedBytes, _Mapping]] = ..., bucket_note: _Optional[str] = ...) -> None: ...

class FetchedBytes(_message.Message):
    __slots__ = ("from_platform", "from_peers", "to_peers", "dropped_peers", "from_bucket")
    FROM_PLATFORM_FIELD_NUMBER: _ClassVar[int]
    FROM_PEERS_FIELD_NUMBER: _ClassVar[int]
    TO_PEERS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_PEERS_FIELD_NUMBER: _ClassVar[int]
    FROM_BUCKET_FIELD_NUMBER: _ClassVar[int]
    from_platform: int
    from_peers: int
    to_peers: int
    dropped_peers: int
    from_bucket: int
    def __init__(self, from_platform: _Optional[int] = ..., from_peers: _Optional[int] = ..., to_peers: _Optional[int] = ..., dropped_peers: _Optional[int] = ..., from_bucket: _Optional[int] = ...) -> None: ...

class StockedThing(_message.Message):
    __slots__ = ("dataset_digest", "image", "bytes")
    DATASET_DIGEST_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    dataset_digest: str
    image: str
    bytes: int
    def __init__(self, dataset_digest: _Optional[str] = ..., image: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class ProgressReport(_message.Message):
    __slots__ = ("replica", "resumable", "since_saved")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    SINCE_SAVED_FIELD_NUMBER: _ClassVar[int]
    replica: ReplicaId
    resumable: bool
    since_saved: _duration_pb2.Duration
    def __init__(self, replica: _Optional[_Union[ReplicaId, _Mapping]] = ..., resumable: _Optional[bool] = ..., since_saved: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ChangeReport(_message.Message):
    __slots__ = ("replica", "members")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    replica: ReplicaId
    members: _containers.RepeatedCompositeFieldContainer[MemberReport]
    def __init__(self, replica: _Optional[_Union[ReplicaId, _Mapping]] = ..., members: _Optional[_Iterable[_Union[MemberReport, _Mapping]]] = ...) -> None: ...

class MemberReport(_message.Message):
    __slots__ = ("local_rank", "process", "world", "number", "state", "counter", "at", "position", "counters", "step_s", "is_paused", "knobs", "reason")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class StepSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    IS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    local_rank: int
    process: str
    world: int
    number: int
    state: _sessions_pb2.MemberState
    counter: str
    at: int
    position: int
    counters: _containers.ScalarMap[str, int]
    step_s: _containers.ScalarMap[str, float]
    is_paused: bool
    knobs: _containers.RepeatedCompositeFieldContainer[_sessions_pb2.KnobChange]
    reason: str
    def __init__(self, local_rank: _Optional[int] = ..., process: _Optional[str] = ..., world: _Optional[int] = ..., number: _Optional[int] = ..., state: _Optional[_Union[_sessions_pb2.MemberState, str]] = ..., counter: _Optional[str] = ..., at: _Optional[int] = ..., position: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ..., step_s: _Optional[_Mapping[str, float]] = ..., is_paused: _Optional[bool] = ..., knobs: _Optional[_Iterable[_Union[_sessions_pb2.KnobChange, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("node", "boot_id", "agent_version", "spool_version", "isolation", "devices", "capacity", "pod", "host", "owner", "device_note", "highest_term", "replicas", "cluster_id", "limits", "only_owner", "isolation_note", "setting_note", "highest_revision", "gang_network", "networks", "not_ready", "engine_note", "abilities", "peer_offer", "shared_roots", "python_version", "data_bytes")
    NODE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SPOOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NOTE_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_TERM_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ONLY_OWNER_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_NOTE_FIELD_NUMBER: _ClassVar[int]
    SETTING_NOTE_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_REVISION_FIELD_NUMBER: _ClassVar[int]
    GANG_NETWORK_FIELD_NUMBER: _ClassVar[int]
    NETWORKS_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_FIELD_NUMBER: _ClassVar[int]
    ENGINE_NOTE_FIELD_NUMBER: _ClassVar[int]
    ABILITIES_FIELD_NUMBER: _ClassVar[int]
    PEER_OFFER_FIELD_NUMBER: _ClassVar[int]
    SHARED_ROOTS_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    node: str
    boot_id: str
    agent_version: str
    spool_version: int
    isolation: _resources_pb2.Isolation
    devices: _containers.RepeatedCompositeFieldContainer[_resources_pb2.Device]
    capacity: _resources_pb2.Resources
    pod: str
    host: str
    owner: str
    device_note: str
    highest_term: int
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaReport]
    cluster_id: str
    limits: _resources_pb2.KeptLimits
    only_owner: str
    isolation_note: str
    setting_note: str
    highest_revision: int
    gang_network: str
    networks: _containers.RepeatedScalarFieldContainer[_resources_pb2.Network]
    not_ready: str
    engine_note: str
    abilities: _containers.RepeatedScalarFieldContainer[AgentAbility]
    peer_offer: _peers_pb2.PeerOffer
    shared_roots: _containers.RepeatedScalarFieldContainer[str]
    python_version: str
    data_bytes: int
    def __init__(self, node: _Optional[str] = ..., boot_id: _Optional[str] = ..., agent_version: _Optional[str] = ..., spool_version: _Optional[int] = ..., isolation: _Optional[_Union[_resources_pb2.Isolation, str]] = ..., devices: _Optional[_Iterable[_Union[_resources_pb2.Device, _Mapping]]] = ..., capacity: _Optional[_Union[_resources_pb2.Resources, _Mapping]] = ..., pod: _Optional[str] = ..., host: _Optional[str] = ..., owner: _Optional[str] = ..., device_note: _Optional[str] = ..., highest_term: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[ReplicaReport, _Mapping]]] = ..., cluster_id: _Optional[str] = ..., limits: _Optional[_Union[_resources_pb2.KeptLimits, _Mapping]] = ..., only_owner: _Optional[str] = ..., isolation_note: _Optional[str] = ..., setting_note: _Optional[str] = ..., highest_revision: _Optional[int] = ..., gang_network: _Optional[str] = ..., networks: _Optional[_Iterable[_Union[_resources_pb2.Network, str]]] = ..., not_ready: _Optional[str] = ..., engine_note: _Optional[str] = ..., abilities: _Optional[_Iterable[_Union[AgentAbility, str]]] = ..., peer_offer: _Optional[_Union[_peers_pb2.PeerOffer, _Mapping]] = ..., shared_roots: _Optional[_Iterable[str]] = ..., python_version: _Optional[str] = ..., data_bytes: _Optional[int] = ...) -> None: ...

class DevicesChanged(_message.Message):
    __slots__ = ("devices", "device_note", "not_ready", "engine_note")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NOTE_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_FIELD_NUMBER: _ClassVar[int]
    ENGINE_NOTE_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[_resources_pb2.Device]
    device_note: str
    not_ready: str
    engine_note: str
    def __init__(self, devices: _Optional[_Iterable[_Union[_resources_pb2.Device, _Mapping]]] = ..., device_note: _Optional[str] = ..., not_ready: _Optional[str] = ..., engine_note: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sent_at",)
    SENT_AT_FIELD_NUMBER: _ClassVar[int]
    sent_at: _timestamp_pb2.Timestamp
    def __init__(self, sent_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ReplicaExit(_message.Message):
    __slots__ = ("cause", "exit_code", "message", "started_at", "ended_at", "ran_for", "memory_peak_bytes", "node_refused")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    RAN_FOR_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    NODE_REFUSED_FIELD_NUMBER: _ClassVar[int]
    cause: _sessions_pb2.Cause
    exit_code: int
    message: str
    started_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    ran_for: _duration_pb2.Duration
    memory_peak_bytes: int
    node_refused: bool
    def __init__(self, cause: _Optional[_Union[_sessions_pb2.Cause, str]] = ..., exit_code: _Optional[int] = ..., message: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ran_for: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., memory_peak_bytes: _Optional[int] = ..., node_refused: _Optional[bool] = ...) -> None: ...

class ReplicaReport(_message.Message):
    __slots__ = ("replica", "phase", "exit", "at", "placed_as", "waiting", "image", "python_version")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    PLACED_AS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    replica: ReplicaId
    phase: ReplicaPhase
    exit: ReplicaExit
    at: _timestamp_pb2.Timestamp
    placed_as: PlacedAs
    waiting: str
    image: str
    python_version: str
    def __init__(self, replica: _Optional[_Union[ReplicaId, _Mapping]] = ..., phase: _Optional[_Union[ReplicaPhase, str]] = ..., exit: _Optional[_Union[ReplicaExit, _Mapping]] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., placed_as: _Optional[_Union[PlacedAs, _Mapping]] = ..., waiting: _Optional[str] = ..., image: _Optional[str] = ..., python_version: _Optional[str] = ...) -> None: ...

class PlacedAs(_message.Message):
    __slots__ = ("session_name", "device_uuids", "started_at")
    SESSION_NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUIDS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    session_name: str
    device_uuids: _containers.RepeatedScalarFieldContainer[str]
    started_at: _timestamp_pb2.Timestamp
    def __init__(self, session_name: _Optional[str] = ..., device_uuids: _Optional[_Iterable[str]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class OrdersAccepted(_message.Message):
    __slots__ = ("term", "revision")
    TERM_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    term: int
    revision: int
    def __init__(self, term: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...

class ControlResponse(_message.Message):
    __slots__ = ("registered", "orders", "acknowledged", "open_tunnel", "control_planes", "image_order", "found_peers", "environment_order", "repair_order")
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    OPEN_TUNNEL_FIELD_NUMBER: _ClassVar[int]
    CONTROL_PLANES_FIELD_NUMBER: _ClassVar[int]
    IMAGE_ORDER_FIELD_NUMBER: _ClassVar[int]
    FOUND_PEERS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_ORDER_FIELD_NUMBER: _ClassVar[int]
    REPAIR_ORDER_FIELD_NUMBER: _ClassVar[int]
    registered: Registered
    orders: Orders
    acknowledged: ReportsAcknowledged
    open_tunnel: OpenTunnel
    control_planes: ControlPlanes
    image_order: ImageOrder
    found_peers: FoundPeers
    environment_order: EnvironmentOrder
    repair_order: RepairOrder
    def __init__(self, registered: _Optional[_Union[Registered, _Mapping]] = ..., orders: _Optional[_Union[Orders, _Mapping]] = ..., acknowledged: _Optional[_Union[ReportsAcknowledged, _Mapping]] = ..., open_tunnel: _Optional[_Union[OpenTunnel, _Mapping]] = ..., control_planes: _Optional[_Union[ControlPlanes, _Mapping]] = ..., image_order: _Optional[_Union[ImageOrder, _Mapping]] = ..., found_peers: _Optional[_Union[FoundPeers, _Mapping]] = ..., environment_order: _Optional[_Union[EnvironmentOrder, _Mapping]] = ..., repair_order: _Optional[_Union[RepairOrder, _Mapping]] = ...) -> None: ...

class ImageOrder(_message.Message):
    __slots__ = ("order_id", "action", "image", "owner_id", "registry_logins")
    ORDER_ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_LOGINS_FIELD_NUMBER: _ClassVar[int]
    order_id: str
    action: ImageAction
    image: str
    owner_id: str
    registry_logins: _containers.RepeatedCompositeFieldContainer[RegistryLogin]
    def __init__(self, order_id: _Optional[str] = ..., action: _Optional[_Union[ImageAction, str]] = ..., image: _Optional[str] = ..., owner_id: _Optional[str] = ..., registry_logins: _Optional[_Iterable[_Union[RegistryLogin, _Mapping]]] = ...) -> None: ...

class ImageReport(_message.Message):
    __slots__ = ("order_id", "status")
    ORDER_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    order_id: str
    status: _resources_pb2.ImageStatus
    def __init__(self, order_id: _Optional[str] = ..., status: _Optional[_Union[_resources_pb2.ImageStatus, _Mapping]] = ...) -> None: ...

class EnvironmentOrder(_message.Message):
    __slots__ = ("order_id", "remove", "owner_id", "build")
    ORDER_ID_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    order_id: str
    remove: str
    owner_id: str
    build: EnvironmentBuildOrder
    def __init__(self, order_id: _Optional[str] = ..., remove: _Optional[str] = ..., owner_id: _Optional[str] = ..., build: _Optional[_Union[EnvironmentBuildOrder, _Mapping]] = ...) -> None: ...

class EnvironmentBuildOrder(_message.Message):
    __slots__ = ("files", "build_id", "log_offset", "registry_logins", "cancel")
    FILES_FIELD_NUMBER: _ClassVar[int]
    BUILD_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_LOGINS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    files: _resources_pb2.EnvironmentFiles
    build_id: str
    log_offset: int
    registry_logins: _containers.RepeatedCompositeFieldContainer[RegistryLogin]
    cancel: bool
    def __init__(self, files: _Optional[_Union[_resources_pb2.EnvironmentFiles, _Mapping]] = ..., build_id: _Optional[str] = ..., log_offset: _Optional[int] = ..., registry_logins: _Optional[_Iterable[_Union[RegistryLogin, _Mapping]]] = ..., cancel: _Optional[bool] = ...) -> None: ...

class EnvironmentReport(_message.Message):
    __slots__ = ("order_id", "environments", "removed", "words", "build")
    ORDER_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    order_id: str
    environments: _containers.RepeatedCompositeFieldContainer[_resources_pb2.NodeEnvironment]
    removed: bool
    words: str
    build: _resources_pb2.EnvironmentBuild
    def __init__(self, order_id: _Optional[str] = ..., environments: _Optional[_Iterable[_Union[_resources_pb2.NodeEnvironment, _Mapping]]] = ..., removed: _Optional[bool] = ..., words: _Optional[str] = ..., build: _Optional[_Union[_resources_pb2.EnvironmentBuild, _Mapping]] = ...) -> None: ...

class RepairOrder(_message.Message):
    __slots__ = ("order_id", "root", "digests", "replica", "folder")
    ORDER_ID_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    order_id: str
    root: str
    digests: _containers.RepeatedScalarFieldContainer[str]
    replica: ReplicaId
    folder: str
    def __init__(self, order_id: _Optional[str] = ..., root: _Optional[str] = ..., digests: _Optional[_Iterable[str]] = ..., replica: _Optional[_Union[ReplicaId, _Mapping]] = ..., folder: _Optional[str] = ...) -> None: ...

class RepairReport(_message.Message):
    __slots__ = ("order_id", "sent", "words")
    ORDER_ID_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    order_id: str
    sent: int
    words: str
    def __init__(self, order_id: _Optional[str] = ..., sent: _Optional[int] = ..., words: _Optional[str] = ...) -> None: ...

class ControlPlanes(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class Registered(_message.Message):
    __slots__ = ("cluster_id", "heartbeat_interval", "silent_after", "term", "starts_anew", "control_planes", "finds_peers", "locates_blobs")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    SILENT_AFTER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    STARTS_ANEW_FIELD_NUMBER: _ClassVar[int]
    CONTROL_PLANES_FIELD_NUMBER: _ClassVar[int]
    FINDS_PEERS_FIELD_NUMBER: _ClassVar[int]
    LOCATES_BLOBS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    heartbeat_interval: _duration_pb2.Duration
    silent_after: _duration_pb2.Duration
    term: int
    starts_anew: bool
    control_planes: ControlPlanes
    finds_peers: bool
    locates_blobs: bool
    def __init__(self, cluster_id: _Optional[str] = ..., heartbeat_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., silent_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., term: _Optional[int] = ..., starts_anew: _Optional[bool] = ..., control_planes: _Optional[_Union[ControlPlanes, _Mapping]] = ..., finds_peers: _Optional[bool] = ..., locates_blobs: _Optional[bool] = ...) -> None: ...

class Orders(_message.Message):
    __slots__ = ("term", "revision", "assignments", "more", "sent_at")
    TERM_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_FIELD_NUMBER: _ClassVar[int]
    term: int
    revision: int
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    more: bool
    sent_at: _timestamp_pb2.Timestamp
    def __init__(self, term: _Optional[int] = ..., revision: _Optional[int] = ..., assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., more: _Optional[bool] = ..., sent_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("replica", "session_name", "owner", "spec", "device_uuids", "resources", "hosts", "stop", "secrets", "owner_id", "built_after", "change", "knobs", "made", "registry_logins")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    SESSION_NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUIDS_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    BUILT_AFTER_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_LOGINS_FIELD_NUMBER: _ClassVar[int]
    replica: ReplicaId
    session_name: str
    owner: str
    spec: _sessions_pb2.SessionSpec
    device_uuids: _containers.RepeatedScalarFieldContainer[str]
    resources: _resources_pb2.Resources
    hosts: _containers.RepeatedScalarFieldContainer[str]
    stop: StopOrder
    secrets: _containers.RepeatedCompositeFieldContainer[SecretValue]
    owner_id: str
    built_after: _timestamp_pb2.Timestamp
    change: _sessions_pb2.ProgramChange
    knobs: _containers.RepeatedCompositeFieldContainer[_sessions_pb2.KnobValue]
    made: _containers.RepeatedCompositeFieldContainer[_sessions_pb2.ProgramChange]
    registry_logins: _containers.RepeatedCompositeFieldContainer[RegistryLogin]
    def __init__(self, replica: _Optional[_Union[ReplicaId, _Mapping]] = ..., session_name: _Optional[str] = ..., owner: _Optional[str] = ..., spec: _Optional[_Union[_sessions_pb2.SessionSpec, _Mapping]] = ..., device_uuids: _Optional[_Iterable[str]] = ..., resources: _Optional[_Union[_resources_pb2.Resources, _Mapping]] = ..., hosts: _Optional[_Iterable[str]] = ..., stop: _Optional[_Union[StopOrder, _Mapping]] = ..., secrets: _Optional[_Iterable[_Union[SecretValue, _Mapping]]] = ..., owner_id: _Optional[str] = ..., built_after: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., change: _Optional[_Union[_sessions_pb2.ProgramChange, _Mapping]] = ..., knobs: _Optional[_Iterable[_Union[_sessions_pb2.KnobValue, _Mapping]]] = ..., made: _Optional[_Iterable[_Union[_sessions_pb2.ProgramChange, _Mapping]]] = ..., registry_logins: _Optional[_Iterable[_Union[RegistryLogin, _Mapping]]] = ...) -> None: ...

class RegistryLogin(_message.Message):
    __slots__ = ("registry", "user", "password", "version")
    REGISTRY_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    registry: str
    user: str
    password: str
    version: int
    def __init__(self, registry: _Optional[str] = ..., user: _Optional[str] = ..., password: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class SecretValue(_message.Message):
    __slots__ = ("variable", "value", "problem")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    variable: str
    value: str
    problem: str
    def __init__(self, variable: _Optional[str] = ..., value: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class StopOrder(_message.Message):
    __slots__ = ("grace", "cause", "reason", "notice")
    GRACE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    grace: _duration_pb2.Duration
    cause: _sessions_pb2.Cause
    reason: str
    notice: _duration_pb2.Duration
    def __init__(self, grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., cause: _Optional[_Union[_sessions_pb2.Cause, str]] = ..., reason: _Optional[str] = ..., notice: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ReportsAcknowledged(_message.Message):
    __slots__ = ("reports",)
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    reports: _containers.RepeatedCompositeFieldContainer[ReplicaReport]
    def __init__(self, reports: _Optional[_Iterable[_Union[ReplicaReport, _Mapping]]] = ...) -> None: ...

class OpenTunnel(_message.Message):
    __slots__ = ("tunnel_id", "replica", "service", "only_checks", "user", "direct_key", "relay", "ssh_entrance")
    TUNNEL_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    ONLY_CHECKS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    DIRECT_KEY_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    SSH_ENTRANCE_FIELD_NUMBER: _ClassVar[int]
    tunnel_id: str
    replica: ReplicaId
    service: str
    only_checks: bool
    user: str
    direct_key: bytes
    relay: _sessions_pb2.RelayWay
    ssh_entrance: SshEntrance
    def __init__(self, tunnel_id: _Optional[str] = ..., replica: _Optional[_Union[ReplicaId, _Mapping]] = ..., service: _Optional[str] = ..., only_checks: _Optional[bool] = ..., user: _Optional[str] = ..., direct_key: _Optional[bytes] = ..., relay: _Optional[_Union[_sessions_pb2.RelayWay, _Mapping]] = ..., ssh_entrance: _Optional[_Union[SshEntrance, _Mapping]] = ...) -> None: ...

class SshEntrance(_message.Message):
    __slots__ = ("host_key", "certificate", "authorized_keys")
    HOST_KEY_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORIZED_KEYS_FIELD_NUMBER: _ClassVar[int]
    host_key: bytes
    certificate: str
    authorized_keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, host_key: _Optional[bytes] = ..., certificate: _Optional[str] = ..., authorized_keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class StreamKey(_message.Message):
    __slots__ = ("replica", "channel", "writer")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    replica: ReplicaId
    channel: Channel
    writer: int
    def __init__(self, replica: _Optional[_Union[ReplicaId, _Mapping]] = ..., channel: _Optional[_Union[Channel, str]] = ..., writer: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("stream", "first", "last", "records", "data", "gap")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    stream: StreamKey
    first: int
    last: int
    records: _containers.RepeatedScalarFieldContainer[bytes]
    data: bytes
    gap: bool
    def __init__(self, stream: _Optional[_Union[StreamKey, _Mapping]] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., records: _Optional[_Iterable[bytes]] = ..., data: _Optional[bytes] = ..., gap: _Optional[bool] = ...) -> None: ...

class ReplicaSample(_message.Message):
    __slots__ = ("replica", "cpu_cores", "memory_used_bytes", "process_count")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    CPU_CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    replica: ReplicaId
    cpu_cores: float
    memory_used_bytes: int
    process_count: int
    def __init__(self, replica: _Optional[_Union[ReplicaId, _Mapping]] = ..., cpu_cores: _Optional[float] = ..., memory_used_bytes: _Optional[int] = ..., process_count: _Optional[int] = ...) -> None: ...

class NodeSample(_message.Message):
    __slots__ = ("sequence", "boot_id", "at", "devices", "cpu_percent", "memory_used_bytes", "disk_note", "replicas")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CPU_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_NOTE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    boot_id: str
    at: _timestamp_pb2.Timestamp
    devices: _containers.RepeatedCompositeFieldContainer[_resources_pb2.DeviceSample]
    cpu_percent: float
    memory_used_bytes: int
    disk_note: str
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaSample]
    def __init__(self, sequence: _Optional[int] = ..., boot_id: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[_resources_pb2.DeviceSample, _Mapping]]] = ..., cpu_percent: _Optional[float] = ..., memory_used_bytes: _Optional[int] = ..., disk_note: _Optional[str] = ..., replicas: _Optional[_Iterable[_Union[ReplicaSample, _Mapping]]] = ...) -> None: ...

class IngestRequest(_message.Message):
    __slots__ = ("chunks", "sample")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    sample: NodeSample
    def __init__(self, chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ..., sample: _Optional[_Union[NodeSample, _Mapping]] = ...) -> None: ...

class Cursor(_message.Message):
    __slots__ = ("stream", "next")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    stream: StreamKey
    next: int
    def __init__(self, stream: _Optional[_Union[StreamKey, _Mapping]] = ..., next: _Optional[int] = ...) -> None: ...

class IngestResponse(_message.Message):
    __slots__ = ("acknowledged",)
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    acknowledged: _containers.RepeatedCompositeFieldContainer[Cursor]
    def __init__(self, acknowledged: _Optional[_Iterable[_Union[Cursor, _Mapping]]] = ...) -> None: ...

class TunnelRequest(_message.Message):
    __slots__ = ("tunnel_id", "data", "error", "end", "direct_socket", "relay_certificate")
    TUNNEL_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    DIRECT_SOCKET_FIELD_NUMBER: _ClassVar[int]
    RELAY_CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    tunnel_id: str
    data: bytes
    error: str
    end: bool
    direct_socket: str
    relay_certificate: bytes
    def __init__(self, tunnel_id: _Optional[str] = ..., data: _Optional[bytes] = ..., error: _Optional[str] = ..., end: _Optional[bool] = ..., direct_socket: _Optional[str] = ..., relay_certificate: _Optional[bytes] = ...) -> None: ...

class TunnelResponse(_message.Message):
    __slots__ = ("data", "end", "gone")
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    end: bool
    gone: bool
    def __init__(self, data: _Optional[bytes] = ..., end: _Optional[bool] = ..., gone: _Optional[bool] = ...) -> None: ...
