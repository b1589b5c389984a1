import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from nsml.v1 import resources_pb2 as _resources_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_STATE_UNSPECIFIED: _ClassVar[SessionState]
    SESSION_STATE_QUEUED: _ClassVar[SessionState]
    SESSION_STATE_PREPARING: _ClassVar[SessionState]
    SESSION_STATE_RUNNING: _ClassVar[SessionState]
    SESSION_STATE_PAUSED: _ClassVar[SessionState]
    SESSION_STATE_UNKNOWN: _ClassVar[SessionState]
    SESSION_STATE_STOPPING: _ClassVar[SessionState]
    SESSION_STATE_FINALIZING: _ClassVar[SessionState]
    SESSION_STATE_SUCCEEDED: _ClassVar[SessionState]
    SESSION_STATE_FAILED: _ClassVar[SessionState]
    SESSION_STATE_STOPPED: _ClassVar[SessionState]
    SESSION_STATE_HELD: _ClassVar[SessionState]

class HeldCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HELD_CAUSE_UNSPECIFIED: _ClassVar[HeldCause]
    HELD_CAUSE_START_FAILURES: _ClassVar[HeldCause]
    HELD_CAUSE_NODE_LOSSES: _ClassVar[HeldCause]
    HELD_CAUSE_AFTER: _ClassVar[HeldCause]

class OriginKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORIGIN_KIND_UNSPECIFIED: _ClassVar[OriginKind]
    ORIGIN_KIND_RERUN: _ClassVar[OriginKind]
    ORIGIN_KIND_FORK: _ClassVar[OriginKind]
    ORIGIN_KIND_RESUME: _ClassVar[OriginKind]
    ORIGIN_KIND_SWEEP: _ClassVar[OriginKind]
    ORIGIN_KIND_SUBMISSION: _ClassVar[OriginKind]
    ORIGIN_KIND_INFER: _ClassVar[OriginKind]

class SessionStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_STAGE_UNSPECIFIED: _ClassVar[SessionStage]
    SESSION_STAGE_PREDICT: _ClassVar[SessionStage]
    SESSION_STAGE_PREDICT_TEST: _ClassVar[SessionStage]
    SESSION_STAGE_EVALUATE: _ClassVar[SessionStage]
    SESSION_STAGE_INFER: _ClassVar[SessionStage]

class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAUSE_UNSPECIFIED: _ClassVar[Cause]
    CAUSE_COMPLETED: _ClassVar[Cause]
    CAUSE_PROGRAM_FAILED: _ClassVar[Cause]
    CAUSE_STOP_REQUESTED: _ClassVar[Cause]
    CAUSE_TIME_LIMIT: _ClassVar[Cause]
    CAUSE_OUT_OF_MEMORY: _ClassVar[Cause]
    CAUSE_ENVIRONMENT_FAILED: _ClassVar[Cause]
    CAUSE_DATA_FAILED: _ClassVar[Cause]
    CAUSE_START_FAILED: _ClassVar[Cause]
    CAUSE_NODE_LOST: _ClassVar[Cause]
    CAUSE_LOST_AFTER: _ClassVar[Cause]
    CAUSE_GANG_MEMBER_FAILED: _ClassVar[Cause]
    CAUSE_PREEMPTED: _ClassVar[Cause]
    CAUSE_LIMIT_EXCEEDED: _ClassVar[Cause]
    CAUSE_PORT_TAKEN: _ClassVar[Cause]
    CAUSE_NODE_REFUSED: _ClassVar[Cause]

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_IDLE: _ClassVar[Priority]
    PRIORITY_LOW: _ClassVar[Priority]
    PRIORITY_NORMAL: _ClassVar[Priority]
    PRIORITY_HIGH: _ClassVar[Priority]

class Launcher(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LAUNCHER_UNSPECIFIED: _ClassVar[Launcher]
    LAUNCHER_TORCHRUN: _ClassVar[Launcher]
    LAUNCHER_ACCELERATE: _ClassVar[Launcher]
    LAUNCHER_DEEPSPEED: _ClassVar[Launcher]
    LAUNCHER_MPIRUN: _ClassVar[Launcher]
    LAUNCHER_RAY: _ClassVar[Launcher]
    LAUNCHER_JAX: _ClassVar[Launcher]

class ProgramChangeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROGRAM_CHANGE_KIND_UNSPECIFIED: _ClassVar[ProgramChangeKind]
    PROGRAM_CHANGE_KIND_SET: _ClassVar[ProgramChangeKind]
    PROGRAM_CHANGE_KIND_PAUSE: _ClassVar[ProgramChangeKind]
    PROGRAM_CHANGE_KIND_CONTINUE: _ClassVar[ProgramChangeKind]
    PROGRAM_CHANGE_KIND_LOAD: _ClassVar[ProgramChangeKind]

class ProgramChangePhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROGRAM_CHANGE_PHASE_UNSPECIFIED: _ClassVar[ProgramChangePhase]
    PROGRAM_CHANGE_PHASE_ASK: _ClassVar[ProgramChangePhase]
    PROGRAM_CHANGE_PHASE_PREPARE: _ClassVar[ProgramChangePhase]
    PROGRAM_CHANGE_PHASE_COMMIT: _ClassVar[ProgramChangePhase]
    PROGRAM_CHANGE_PHASE_APPLIED: _ClassVar[ProgramChangePhase]
    PROGRAM_CHANGE_PHASE_DIVIDED: _ClassVar[ProgramChangePhase]
    PROGRAM_CHANGE_PHASE_WITHDRAWN: _ClassVar[ProgramChangePhase]

class MemberState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMBER_STATE_UNSPECIFIED: _ClassVar[MemberState]
    MEMBER_STATE_UNKNOWN: _ClassVar[MemberState]
    MEMBER_STATE_ASKED: _ClassVar[MemberState]
    MEMBER_STATE_REFUSED: _ClassVar[MemberState]
    MEMBER_STATE_PREPARED: _ClassVar[MemberState]
    MEMBER_STATE_LATE: _ClassVar[MemberState]
    MEMBER_STATE_WAITING: _ClassVar[MemberState]
    MEMBER_STATE_APPLIED: _ClassVar[MemberState]
    MEMBER_STATE_DONE: _ClassVar[MemberState]
    MEMBER_STATE_MISSED: _ClassVar[MemberState]
    MEMBER_STATE_FAILED: _ClassVar[MemberState]

class EpisodeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EPISODE_KIND_UNSPECIFIED: _ClassVar[EpisodeKind]
    EPISODE_KIND_IDLE: _ClassVar[EpisodeKind]
    EPISODE_KIND_ZOMBIE: _ClassVar[EpisodeKind]

class SeriesAxis(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERIES_AXIS_UNSPECIFIED: _ClassVar[SeriesAxis]
    SERIES_AXIS_STEP: _ClassVar[SeriesAxis]
    SERIES_AXIS_RELATIVE: _ClassVar[SeriesAxis]
    SERIES_AXIS_WALL: _ClassVar[SeriesAxis]

class ThreadState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    THREAD_STATE_UNSPECIFIED: _ClassVar[ThreadState]
    THREAD_STATE_ACTIVE: _ClassVar[ThreadState]
    THREAD_STATE_IDLE: _ClassVar[ThreadState]
SESSION_STATE_UNSPECIFIED: SessionState
SESSION_STATE_QUEUED: SessionState
SESSION_STATE_PREPARING: SessionState
SESSION_STATE_RUNNING: SessionState
SESSION_STATE_PAUSED: SessionState
SESSION_STATE_UNKNOWN: SessionState
SESSION_STATE_STOPPING: SessionState
SESSION_STATE_FINALIZING: SessionState
SESSION_STATE_SUCCEEDED: SessionState
SESSION_STATE_FAILED: SessionState
SESSION_STATE_STOPPED: SessionState
SESSION_STATE_HELD: SessionState
HELD_CAUSE_UNSPECIFIED: HeldCause
HELD_CAUSE_START_FAILURES: HeldCause
HELD_CAUSE_NODE_LOSSES: HeldCause
HELD_CAUSE_AFTER: HeldCause
ORIGIN_KIND_UNSPECIFIED: OriginKind
ORIGIN_KIND_RERUN: OriginKind
ORIGIN_KIND_FORK: OriginKind
ORIGIN_KIND_RESUME: OriginKind
ORIGIN_KIND_SWEEP: OriginKind
ORIGIN_KIND_SUBMISSION: OriginKind
ORIGIN_KIND_INFER: OriginKind
SESSION_STAGE_UNSPECIFIED: SessionStage
SESSION_STAGE_PREDICT: SessionStage
SESSION_STAGE_PREDICT_TEST: SessionStage
SESSION_STAGE_EVALUATE: SessionStage
SESSION_STAGE_INFER: SessionStage
CAUSE_UNSPECIFIED: Cause
CAUSE_COMPLETED: Cause
CAUSE_PROGRAM_FAILED: Cause
CAUSE_STOP_REQUESTED: Cause
CAUSE_TIME_LIMIT: Cause
CAUSE_OUT_OF_MEMORY: Cause
CAUSE_ENVIRONMENT_FAILED: Cause
CAUSE_DATA_FAILED: Cause
CAUSE_START_FAILED: Cause
CAUSE_NODE_LOST: Cause
CAUSE_LOST_AFTER: Cause
CAUSE_GANG_MEMBER_FAILED: Cause
CAUSE_PREEMPTED: Cause
CAUSE_LIMIT_EXCEEDED: Cause
CAUSE_PORT_TAKEN: Cause
CAUSE_NODE_REFUSED: Cause
PRIORITY_UNSPECIFIED: Priority
PRIORITY_IDLE: Priority
PRIORITY_LOW: Priority
PRIORITY_NORMAL: Priority
PRIORITY_HIGH: Priority
LAUNCHER_UNSPECIFIED: Launcher
LAUNCHER_TORCHRUN: Launcher
LAUNCHER_ACCELERATE: Launcher
LAUNCHER_DEEPSPEED: Launcher
LAUNCHER_MPIRUN: Launcher
LAUNCHER_RAY: Launcher
LAUNCHER_JAX: Launcher
PROGRAM_CHANGE_KIND_UNSPECIFIED: ProgramChangeKind
PROGRAM_CHANGE_KIND_SET: ProgramChangeKind
PROGRAM_CHANGE_KIND_PAUSE: ProgramChangeKind
PROGRAM_CHANGE_KIND_CONTINUE: ProgramChangeKind
PROGRAM_CHANGE_KIND_LOAD: ProgramChangeKind
PROGRAM_CHANGE_PHASE_UNSPECIFIED: ProgramChangePhase
PROGRAM_CHANGE_PHASE_ASK: ProgramChangePhase
PROGRAM_CHANGE_PHASE_PREPARE: ProgramChangePhase
PROGRAM_CHANGE_PHASE_COMMIT: ProgramChangePhase
PROGRAM_CHANGE_PHASE_APPLIED: ProgramChangePhase
PROGRAM_CHANGE_PHASE_DIVIDED: ProgramChangePhase
PROGRAM_CHANGE_PHASE_WITHDRAWN: ProgramChangePhase
MEMBER_STATE_UNSPECIFIED: MemberState
MEMBER_STATE_UNKNOWN: MemberState
MEMBER_STATE_ASKED: MemberState
MEMBER_STATE_REFUSED: MemberState
MEMBER_STATE_PREPARED: MemberState
MEMBER_STATE_LATE: MemberState
MEMBER_STATE_WAITING: MemberState
MEMBER_STATE_APPLIED: MemberState
MEMBER_STATE_DONE: MemberState
MEMBER_STATE_MISSED: MemberState
MEMBER_STATE_FAILED: MemberState
EPISODE_KIND_UNSPECIFIED: EpisodeKind
EPISODE_KIND_IDLE: EpisodeKind
EPISODE_KIND_ZOMBIE: EpisodeKind
SERIES_AXIS_UNSPECIFIED: SeriesAxis
SERIES_AXIS_STEP: SeriesAxis
SERIES_AXIS_RELATIVE: SeriesAxis
SERIES_AXIS_WALL: SeriesAxis
THREAD_STATE_UNSPECIFIED: ThreadState
THREAD_STATE_ACTIVE: ThreadState
THREAD_STATE_IDLE: ThreadState

class Origin(_message.Message):
    __slots__ = ("kind", "session", "name")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    kind: OriginKind
    session: str
    name: str
    def __init__(self, kind: _Optional[_Union[OriginKind, str]] = ..., session: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ImportedFrom(_message.Message):
    __slots__ = ("platform", "session_id", "name", "owner", "restored_at")
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    RESTORED_AT_FIELD_NUMBER: _ClassVar[int]
    platform: str
    session_id: str
    name: str
    owner: str
    restored_at: _timestamp_pb2.Timestamp
    def __init__(self, platform: _Optional[str] = ..., session_id: _Optional[str] = ..., name: _Optional[str] = ..., owner: _Optional[str] = ..., restored_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DatasetReference(_message.Message):
    __slots__ = ("name", "version", "digest", "tag", "streamed", "folder", "in_place")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    STREAMED_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    IN_PLACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    digest: str
    tag: str
    streamed: bool
    folder: str
    in_place: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., digest: _Optional[str] = ..., tag: _Optional[str] = ..., streamed: _Optional[bool] = ..., folder: _Optional[str] = ..., in_place: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("shm_bytes", "disk_bytes", "process_count")
    SHM_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    shm_bytes: int
    disk_bytes: int
    process_count: int
    def __init__(self, shm_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., process_count: _Optional[int] = ...) -> None: ...

class InitialCheckpoint(_message.Message):
    __slots__ = ("session", "name", "digest", "session_name")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SESSION_NAME_FIELD_NUMBER: _ClassVar[int]
    session: str
    name: str
    digest: str
    session_name: str
    def __init__(self, session: _Optional[str] = ..., name: _Optional[str] = ..., digest: _Optional[str] = ..., session_name: _Optional[str] = ...) -> None: ...

class GitFacts(_message.Message):
    __slots__ = ("commit", "branch", "remote", "dirty")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    DIRTY_FIELD_NUMBER: _ClassVar[int]
    commit: str
    branch: str
    remote: str
    dirty: bool
    def __init__(self, commit: _Optional[str] = ..., branch: _Optional[str] = ..., remote: _Optional[str] = ..., dirty: _Optional[bool] = ...) -> None: ...

class SecretUse(_message.Message):
    __slots__ = ("name", "variable")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    variable: str
    def __init__(self, name: _Optional[str] = ..., variable: _Optional[str] = ...) -> None: ...

class SessionSpec(_message.Message):
    __slots__ = ("entry", "args", "argv", "bundle_digest", "datasets", "resources", "replica_count", "environment", "image", "time_limit", "grace", "retry_count", "lost_after", "no_queue", "limits", "secrets", "priority", "preemptible", "gpu_model", "pod", "network", "refresh_environment", "labels", "idle_limit", "knobs", "initial_checkpoint", "after", "keep_checkpoints", "environment_lock", "output_datasets", "allow_changed_data", "keep_files", "no_keep_files", "keep_files_by_default", "dockerfile", "build_arguments", "needs_conda", "stage", "launcher", "submission_id", "log_metrics")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class BuildArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    RETRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOST_AFTER_FIELD_NUMBER: _ClassVar[int]
    NO_QUEUE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIBLE_FIELD_NUMBER: _ClassVar[int]
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    REFRESH_ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    IDLE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    INITIAL_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    KEEP_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_LOCK_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_DATASETS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_CHANGED_DATA_FIELD_NUMBER: _ClassVar[int]
    KEEP_FILES_FIELD_NUMBER: _ClassVar[int]
    NO_KEEP_FILES_FIELD_NUMBER: _ClassVar[int]
    KEEP_FILES_BY_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    DOCKERFILE_FIELD_NUMBER: _ClassVar[int]
    BUILD_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    NEEDS_CONDA_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_METRICS_FIELD_NUMBER: _ClassVar[int]
    entry: str
    args: _containers.RepeatedScalarFieldContainer[str]
    argv: _containers.RepeatedScalarFieldContainer[str]
    bundle_digest: str
    datasets: _containers.RepeatedCompositeFieldContainer[DatasetReference]
    resources: _resources_pb2.Resources
    replica_count: int
    environment: _containers.ScalarMap[str, str]
    image: str
    time_limit: _duration_pb2.Duration
    grace: _duration_pb2.Duration
    retry_count: int
    lost_after: _duration_pb2.Duration
    no_queue: bool
    limits: Limits
    secrets: _containers.RepeatedCompositeFieldContainer[SecretUse]
    priority: Priority
    preemptible: bool
    gpu_model: str
    pod: str
    network: _resources_pb2.Network
    refresh_environment: bool
    labels: _containers.ScalarMap[str, str]
    idle_limit: _duration_pb2.Duration
    knobs: _containers.RepeatedCompositeFieldContainer[KnobValue]
    initial_checkpoint: InitialCheckpoint
    after: _containers.RepeatedCompositeFieldContainer[After]
    keep_checkpoints: str
    environment_lock: str
    output_datasets: _containers.RepeatedScalarFieldContainer[str]
    allow_changed_data: bool
    keep_files: bool
    no_keep_files: bool
    keep_files_by_default: bool
    dockerfile: str
    build_arguments: _containers.ScalarMap[str, str]
    needs_conda: bool
    stage: SessionStage
    launcher: Launcher
    submission_id: str
    log_metrics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, entry: _Optional[str] = ..., args: _Optional[_Iterable[str]] = ..., argv: _Optional[_Iterable[str]] = ..., bundle_digest: _Optional[str] = ..., datasets: _Optional[_Iterable[_Union[DatasetReference, _Mapping]]] = ..., resources: _Optional[_Union[_resources_pb2.Resources, _Mapping]] = ..., replica_count: _Optional[int] = ..., environment: _Optional[_Mapping[str, str]] = ..., image: _Optional[str] = ..., time_limit: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., retry_count: _Optional[int] = ..., lost_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., no_queue: _Optional[bool] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., secrets: _Optional[_Iterable[_Union[SecretUse, _Mapping]]] = ..., priority: _Optional[_Union[Priority, str]] = ..., preemptible: _Optional[bool] = ..., gpu_model: _Optional[str] = ..., pod: _Optional[str] = ..., network: _Optional[_Union[_resources_pb2.Network, str]] = ..., refresh_environment: _Optional[bool] = ..., labels: _Optional[_Mapping[str, str]] = ..., idle_limit: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., knobs: _Optional[_Iterable[_Union[KnobValue, _Mapping]]] = ..., initial_checkpoint: _Optional[_Union[InitialCheckpoint, _Mapping]] = ..., after: _Optional[_Iterable[_Union[After, _Mapping]]] = ..., keep_checkpoints: _Optional[str] = ..., environment_lock: _Optional[str] = ..., output_datasets: _Optional[_Iterable[str]] = ..., allow_changed_data: _Optional[bool] = ..., keep_files: _Optional[bool] = ..., no_keep_files: _Optional[bool] = ..., keep_files_by_default: _Optional[bool] = ..., dockerfile: _Optional[str] = ..., build_arguments: _Optional[_Mapping[str, str]] = ..., needs_conda: _Optional[bool] = ..., stage: _Optional[_Union[SessionStage, str]] = ..., launcher: _Optional[_Union[Launcher, str]] = ..., submission_id: _Optional[str] = ..., log_metrics: _Optional[_Iterable[str]] = ...) -> None: ...

class After(_message.Message):
    __slots__ = ("session", "name", "any_end")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ANY_END_FIELD_NUMBER: _ClassVar[int]
    session: str
    name: str
    any_end: bool
    def __init__(self, session: _Optional[str] = ..., name: _Optional[str] = ..., any_end: _Optional[bool] = ...) -> None: ...

class KnobValue(_message.Message):
    __slots__ = ("name", "value", "at", "counter")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    at: int
    counter: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., at: _Optional[int] = ..., counter: _Optional[str] = ...) -> None: ...

class KnobChange(_message.Message):
    __slots__ = ("name", "before", "after", "in_force")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    before: str
    after: str
    in_force: str
    def __init__(self, name: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ..., in_force: _Optional[str] = ...) -> None: ...

class ProgramChangeMember(_message.Message):
    __slots__ = ("rank", "local_rank", "state", "position", "knobs", "reason")
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    rank: int
    local_rank: int
    state: MemberState
    position: int
    knobs: _containers.RepeatedCompositeFieldContainer[KnobChange]
    reason: str
    def __init__(self, rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., state: _Optional[_Union[MemberState, str]] = ..., position: _Optional[int] = ..., knobs: _Optional[_Iterable[_Union[KnobChange, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class ProgramChange(_message.Message):
    __slots__ = ("number", "kind", "phase", "attempt", "asked_by", "asked_at", "values", "checkpoint", "checkpoint_session", "limit", "asked_at_step", "counter", "at", "reason", "members", "ended_at")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_SESSION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_STEP_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    number: int
    kind: ProgramChangeKind
    phase: ProgramChangePhase
    attempt: int
    asked_by: str
    asked_at: _timestamp_pb2.Timestamp
    values: _containers.ScalarMap[str, str]
    checkpoint: str
    checkpoint_session: str
    limit: _duration_pb2.Duration
    asked_at_step: int
    counter: str
    at: int
    reason: str
    members: _containers.RepeatedCompositeFieldContainer[ProgramChangeMember]
    ended_at: _timestamp_pb2.Timestamp
    def __init__(self, number: _Optional[int] = ..., kind: _Optional[_Union[ProgramChangeKind, str]] = ..., phase: _Optional[_Union[ProgramChangePhase, str]] = ..., attempt: _Optional[int] = ..., asked_by: _Optional[str] = ..., asked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., values: _Optional[_Mapping[str, str]] = ..., checkpoint: _Optional[str] = ..., checkpoint_session: _Optional[str] = ..., limit: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., asked_at_step: _Optional[int] = ..., counter: _Optional[str] = ..., at: _Optional[int] = ..., reason: _Optional[str] = ..., members: _Optional[_Iterable[_Union[ProgramChangeMember, _Mapping]]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("rank", "node", "devices", "resources", "near_data", "use", "image", "python_version")
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    NEAR_DATA_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    rank: int
    node: str
    devices: _containers.RepeatedCompositeFieldContainer[_resources_pb2.Device]
    resources: _resources_pb2.Resources
    near_data: bool
    use: ReplicaUse
    image: str
    python_version: str
    def __init__(self, rank: _Optional[int] = ..., node: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[_resources_pb2.Device, _Mapping]]] = ..., resources: _Optional[_Union[_resources_pb2.Resources, _Mapping]] = ..., near_data: _Optional[bool] = ..., use: _Optional[_Union[ReplicaUse, _Mapping]] = ..., image: _Optional[str] = ..., python_version: _Optional[str] = ...) -> None: ...

class EnvironmentLock(_message.Message):
    __slots__ = ("digest", "package_count", "content")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    digest: str
    package_count: int
    content: str
    def __init__(self, digest: _Optional[str] = ..., package_count: _Optional[int] = ..., content: _Optional[str] = ...) -> None: ...

class ReplicaUse(_message.Message):
    __slots__ = ("cpu_cores", "memory_used_bytes", "process_count")
    CPU_CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    cpu_cores: float
    memory_used_bytes: int
    process_count: int
    def __init__(self, cpu_cores: _Optional[float] = ..., memory_used_bytes: _Optional[int] = ..., process_count: _Optional[int] = ...) -> None: ...

class SessionEnd(_message.Message):
    __slots__ = ("cause", "exit_code", "rank", "message")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    cause: Cause
    exit_code: int
    rank: int
    message: str
    def __init__(self, cause: _Optional[_Union[Cause, str]] = ..., exit_code: _Optional[int] = ..., rank: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("id", "name", "owner", "project", "team", "visibility", "spec", "state", "waiting", "attempt", "replicas", "created_at", "started_at", "ended_at", "end", "memo", "summary", "summary_names", "summary_left_out", "checkpoint_count", "lost_checkpoint_count", "simulated", "revision", "command", "left_out_bytes", "progress", "avoids", "attempts", "stop", "usage", "episodes", "held_cause", "origin", "changes", "git", "environment_lock", "imported", "made_datasets", "training", "reported_config")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MEMO_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_NAMES_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOST_CHECKPOINT_COUNT_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    AVOIDS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    HELD_CAUSE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    GIT_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_LOCK_FIELD_NUMBER: _ClassVar[int]
    IMPORTED_FIELD_NUMBER: _ClassVar[int]
    MADE_DATASETS_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    REPORTED_CONFIG_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    owner: str
    project: str
    team: str
    visibility: _resources_pb2.Visibility
    spec: SessionSpec
    state: SessionState
    waiting: str
    attempt: int
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    created_at: _timestamp_pb2.Timestamp
    started_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    end: SessionEnd
    memo: str
    summary: _struct_pb2.Struct
    summary_names: _containers.RepeatedScalarFieldContainer[str]
    summary_left_out: int
    checkpoint_count: int
    lost_checkpoint_count: int
    simulated: bool
    revision: int
    command: _containers.RepeatedScalarFieldContainer[str]
    left_out_bytes: int
    progress: Progress
    avoids: _containers.RepeatedScalarFieldContainer[str]
    attempts: _containers.RepeatedCompositeFieldContainer[EndedAttempt]
    stop: SessionStop
    usage: SessionUsage
    episodes: _containers.RepeatedCompositeFieldContainer[Episode]
    held_cause: HeldCause
    origin: Origin
    changes: _containers.RepeatedCompositeFieldContainer[ProgramChange]
    git: GitFacts
    environment_lock: EnvironmentLock
    imported: ImportedFrom
    made_datasets: _containers.RepeatedCompositeFieldContainer[DatasetReference]
    training: TrainingProgress
    reported_config: ReportedConfig
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., owner: _Optional[str] = ..., project: _Optional[str] = ..., team: _Optional[str] = ..., visibility: _Optional[_Union[_resources_pb2.Visibility, str]] = ..., spec: _Optional[_Union[SessionSpec, _Mapping]] = ..., state: _Optional[_Union[SessionState, str]] = ..., waiting: _Optional[str] = ..., attempt: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end: _Optional[_Union[SessionEnd, _Mapping]] = ..., memo: _Optional[str] = ..., summary: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., summary_names: _Optional[_Iterable[str]] = ..., summary_left_out: _Optional[int] = ..., checkpoint_count: _Optional[int] = ..., lost_checkpoint_count: _Optional[int] = ..., simulated: _Optional[bool] = ..., revision: _Optional[int] = ..., command: _Optional[_Iterable[str]] = ..., left_out_bytes: _Optional[int] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., avoids: _Optional[_Iterable[str]] = ..., attempts: _Optional[_Iterable[_Union[EndedAttempt, _Mapping]]] = ..., stop: _Optional[_Union[SessionStop, _Mapping]] = ..., usage: _Optional[_Union[SessionUsage, _Mapping]] = ..., episodes: _Optional[_Iterable[_Union[Episode, _Mapping]]] = ..., held_cause: _Optional[_Union[HeldCause, str]] = ..., origin: _Optional[_Union[Origin, _Mapping]] = ..., changes: _Optional[_Iterable[_Union[ProgramChange, _Mapping]]] = ..., git: _Optional[_Union[GitFacts, _Mapping]] = ..., environment_lock: _Optional[_Union[EnvironmentLock, _Mapping]] = ..., imported: _Optional[_Union[ImportedFrom, _Mapping]] = ..., made_datasets: _Optional[_Iterable[_Union[DatasetReference, _Mapping]]] = ..., training: _Optional[_Union[TrainingProgress, _Mapping]] = ..., reported_config: _Optional[_Union[ReportedConfig, _Mapping]] = ...) -> None: ...

class ReportedConfig(_message.Message):
    __slots__ = ("runs", "is_cut")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    IS_CUT_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[ConfigOfRun]
    is_cut: bool
    def __init__(self, runs: _Optional[_Iterable[_Union[ConfigOfRun, _Mapping]]] = ..., is_cut: _Optional[bool] = ...) -> None: ...

class ConfigOfRun(_message.Message):
    __slots__ = ("origin", "run", "json")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    origin: str
    run: str
    json: str
    def __init__(self, origin: _Optional[str] = ..., run: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class Episode(_message.Message):
    __slots__ = ("kind", "since", "until", "reason")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    kind: EpisodeKind
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    reason: str
    def __init__(self, kind: _Optional[_Union[EpisodeKind, str]] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class SessionUsage(_message.Message):
    __slots__ = ("device_seconds", "utilization_percent", "utilization_peak_percent", "memory_peak_bytes", "watt_hours", "idle_since", "forgotten_attempts")
    DEVICE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PEAK_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    WATT_HOURS_FIELD_NUMBER: _ClassVar[int]
    IDLE_SINCE_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    device_seconds: float
    utilization_percent: float
    utilization_peak_percent: float
    memory_peak_bytes: int
    watt_hours: float
    idle_since: _timestamp_pb2.Timestamp
    forgotten_attempts: int
    def __init__(self, device_seconds: _Optional[float] = ..., utilization_percent: _Optional[float] = ..., utilization_peak_percent: _Optional[float] = ..., memory_peak_bytes: _Optional[int] = ..., watt_hours: _Optional[float] = ..., idle_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., forgotten_attempts: _Optional[int] = ...) -> None: ...

class SessionStop(_message.Message):
    __slots__ = ("cause", "reason", "asked_by", "until")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    cause: Cause
    reason: str
    asked_by: str
    until: _timestamp_pb2.Timestamp
    def __init__(self, cause: _Optional[_Union[Cause, str]] = ..., reason: _Optional[str] = ..., asked_by: _Optional[str] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class EndedAttempt(_message.Message):
    __slots__ = ("number", "cause", "reason", "placed_at", "ended_at", "nodes", "gpu_models", "durable_until", "driver_versions", "python_versions")
    class GpuModelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PLACED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    GPU_MODELS_FIELD_NUMBER: _ClassVar[int]
    DURABLE_UNTIL_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    number: int
    cause: Cause
    reason: str
    placed_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    nodes: _containers.RepeatedScalarFieldContainer[str]
    gpu_models: _containers.ScalarMap[str, int]
    durable_until: _timestamp_pb2.Timestamp
    driver_versions: _containers.RepeatedScalarFieldContainer[str]
    python_versions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, number: _Optional[int] = ..., cause: _Optional[_Union[Cause, str]] = ..., reason: _Optional[str] = ..., placed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., nodes: _Optional[_Iterable[str]] = ..., gpu_models: _Optional[_Mapping[str, int]] = ..., durable_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., driver_versions: _Optional[_Iterable[str]] = ..., python_versions: _Optional[_Iterable[str]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("resumable", "saved_at")
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    SAVED_AT_FIELD_NUMBER: _ClassVar[int]
    resumable: bool
    saved_at: _timestamp_pb2.Timestamp
    def __init__(self, resumable: _Optional[bool] = ..., saved_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class TrainingProgress(_message.Message):
    __slots__ = ("done", "of", "unit", "origin", "attempt", "reported_at", "ends_at", "next_report_at")
    DONE_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REPORTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDS_AT_FIELD_NUMBER: _ClassVar[int]
    NEXT_REPORT_AT_FIELD_NUMBER: _ClassVar[int]
    done: float
    of: float
    unit: str
    origin: str
    attempt: int
    reported_at: _timestamp_pb2.Timestamp
    ends_at: _timestamp_pb2.Timestamp
    next_report_at: _timestamp_pb2.Timestamp
    def __init__(self, done: _Optional[float] = ..., of: _Optional[float] = ..., unit: _Optional[str] = ..., origin: _Optional[str] = ..., attempt: _Optional[int] = ..., reported_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ends_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., next_report_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class CreateSessionRequest(_message.Message):
    __slots__ = ("request_id", "spec", "memo", "visibility", "project", "command", "validate_only", "origin", "git")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    MEMO_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    GIT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    spec: SessionSpec
    memo: str
    visibility: _resources_pb2.Visibility
    project: str
    command: _containers.RepeatedScalarFieldContainer[str]
    validate_only: bool
    origin: Origin
    git: GitFacts
    def __init__(self, request_id: _Optional[str] = ..., spec: _Optional[_Union[SessionSpec, _Mapping]] = ..., memo: _Optional[str] = ..., visibility: _Optional[_Union[_resources_pb2.Visibility, str]] = ..., project: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., validate_only: _Optional[bool] = ..., origin: _Optional[_Union[Origin, _Mapping]] = ..., git: _Optional[_Union[GitFacts, _Mapping]] = ...) -> None: ...

class CreateSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class GetSessionRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class GetSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class SessionFilter(_message.Message):
    __slots__ = ("owners", "states", "dataset", "name_glob", "text", "include_ended", "project", "without_submission_steps")
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    NAME_GLOB_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_ENDED_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_SUBMISSION_STEPS_FIELD_NUMBER: _ClassVar[int]
    owners: _containers.RepeatedScalarFieldContainer[str]
    states: _containers.RepeatedScalarFieldContainer[SessionState]
    dataset: str
    name_glob: str
    text: str
    include_ended: bool
    project: str
    without_submission_steps: bool
    def __init__(self, owners: _Optional[_Iterable[str]] = ..., states: _Optional[_Iterable[_Union[SessionState, str]]] = ..., dataset: _Optional[str] = ..., name_glob: _Optional[str] = ..., text: _Optional[str] = ..., include_ended: _Optional[bool] = ..., project: _Optional[str] = ..., without_submission_steps: _Optional[bool] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ("filter", "page_size", "cursor", "summary_names", "short")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_NAMES_FIELD_NUMBER: _ClassVar[int]
    SHORT_FIELD_NUMBER: _ClassVar[int]
    filter: SessionFilter
    page_size: int
    cursor: str
    summary_names: _containers.RepeatedScalarFieldContainer[str]
    short: bool
    def __init__(self, filter: _Optional[_Union[SessionFilter, _Mapping]] = ..., page_size: _Optional[int] = ..., cursor: _Optional[str] = ..., summary_names: _Optional[_Iterable[str]] = ..., short: _Optional[bool] = ...) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions", "next_cursor", "revision", "ended_missing")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ENDED_MISSING_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[Session]
    next_cursor: str
    revision: int
    ended_missing: bool
    def __init__(self, sessions: _Optional[_Iterable[_Union[Session, _Mapping]]] = ..., next_cursor: _Optional[str] = ..., revision: _Optional[int] = ..., ended_missing: _Optional[bool] = ...) -> None: ...

class WatchSessionsRequest(_message.Message):
    __slots__ = ("filter", "from_revision", "with_reports", "summary_names", "short")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    FROM_REVISION_FIELD_NUMBER: _ClassVar[int]
    WITH_REPORTS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_NAMES_FIELD_NUMBER: _ClassVar[int]
    SHORT_FIELD_NUMBER: _ClassVar[int]
    filter: SessionFilter
    from_revision: int
    with_reports: bool
    summary_names: _containers.RepeatedScalarFieldContainer[str]
    short: bool
    def __init__(self, filter: _Optional[_Union[SessionFilter, _Mapping]] = ..., from_revision: _Optional[int] = ..., with_reports: _Optional[bool] = ..., summary_names: _Optional[_Iterable[str]] = ..., short: _Optional[bool] = ...) -> None: ...

class WatchSessionsResponse(_message.Message):
    __slots__ = ("revision", "changed", "removed", "reset", "reports")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    changed: _containers.RepeatedCompositeFieldContainer[Session]
    removed: _containers.RepeatedScalarFieldContainer[str]
    reset: bool
    reports: _containers.RepeatedCompositeFieldContainer[SessionReport]
    def __init__(self, revision: _Optional[int] = ..., changed: _Optional[_Iterable[_Union[Session, _Mapping]]] = ..., removed: _Optional[_Iterable[str]] = ..., reset: _Optional[bool] = ..., reports: _Optional[_Iterable[_Union[SessionReport, _Mapping]]] = ...) -> None: ...

class SessionReport(_message.Message):
    __slots__ = ("session_id", "summary", "summary_names", "summary_left_out", "checkpoint_count", "lost_checkpoint_count", "saved_at", "usage", "uses", "training")
    class UsesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: ReplicaUse
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[ReplicaUse, _Mapping]] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_NAMES_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOST_CHECKPOINT_COUNT_FIELD_NUMBER: _ClassVar[int]
    SAVED_AT_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    summary: _struct_pb2.Struct
    summary_names: _containers.RepeatedScalarFieldContainer[str]
    summary_left_out: int
    checkpoint_count: int
    lost_checkpoint_count: int
    saved_at: _timestamp_pb2.Timestamp
    usage: SessionUsage
    uses: _containers.MessageMap[int, ReplicaUse]
    training: TrainingProgress
    def __init__(self, session_id: _Optional[str] = ..., summary: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., summary_names: _Optional[_Iterable[str]] = ..., summary_left_out: _Optional[int] = ..., checkpoint_count: _Optional[int] = ..., lost_checkpoint_count: _Optional[int] = ..., saved_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., usage: _Optional[_Union[SessionUsage, _Mapping]] = ..., uses: _Optional[_Mapping[int, ReplicaUse]] = ..., training: _Optional[_Union[TrainingProgress, _Mapping]] = ...) -> None: ...

class StopSessionRequest(_message.Message):
    __slots__ = ("session", "grace", "reason")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session: str
    grace: _duration_pb2.Duration
    reason: str
    def __init__(self, session: _Optional[str] = ..., grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class StopSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class RequeueSessionRequest(_message.Message):
    __slots__ = ("session", "reason", "force")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    session: str
    reason: str
    force: bool
    def __init__(self, session: _Optional[str] = ..., reason: _Optional[str] = ..., force: _Optional[bool] = ...) -> None: ...

class RequeueSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class RemoveSessionRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class RemoveSessionResponse(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ChangeProgramRequest(_message.Message):
    __slots__ = ("session", "kind", "values", "checkpoint", "checkpoint_session", "limit", "at", "wait", "withdraw")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_SESSION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    session: str
    kind: ProgramChangeKind
    values: _containers.ScalarMap[str, str]
    checkpoint: str
    checkpoint_session: str
    limit: _duration_pb2.Duration
    at: int
    wait: _duration_pb2.Duration
    withdraw: bool
    def __init__(self, session: _Optional[str] = ..., kind: _Optional[_Union[ProgramChangeKind, str]] = ..., values: _Optional[_Mapping[str, str]] = ..., checkpoint: _Optional[str] = ..., checkpoint_session: _Optional[str] = ..., limit: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., at: _Optional[int] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., withdraw: _Optional[bool] = ...) -> None: ...

class ChangeProgramResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class UpdateSessionRequest(_message.Message):
    __slots__ = ("session", "memo", "visibility")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MEMO_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_FIELD_NUMBER: _ClassVar[int]
    session: str
    memo: str
    visibility: _resources_pb2.Visibility
    def __init__(self, session: _Optional[str] = ..., memo: _Optional[str] = ..., visibility: _Optional[_Union[_resources_pb2.Visibility, str]] = ...) -> None: ...

class UpdateSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class ReadLogsRequest(_message.Message):
    __slots__ = ("session", "attempt", "rank", "offset", "tail_lines", "follow", "later_attempts", "since", "since_age", "until", "until_age", "times")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TAIL_LINES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    LATER_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SINCE_AGE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    UNTIL_AGE_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    session: str
    attempt: int
    rank: int
    offset: int
    tail_lines: int
    follow: bool
    later_attempts: bool
    since: _timestamp_pb2.Timestamp
    since_age: _duration_pb2.Duration
    until: _timestamp_pb2.Timestamp
    until_age: _duration_pb2.Duration
    times: bool
    def __init__(self, session: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., offset: _Optional[int] = ..., tail_lines: _Optional[int] = ..., follow: _Optional[bool] = ..., later_attempts: _Optional[bool] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., since_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., times: _Optional[bool] = ...) -> None: ...

class LogTime(_message.Message):
    __slots__ = ("offset", "time")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    offset: int
    time: _timestamp_pb2.Timestamp
    def __init__(self, offset: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ReadLogsResponse(_message.Message):
    __slots__ = ("offset", "data", "missing_bytes", "attempt", "times")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    MISSING_BYTES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    missing_bytes: int
    attempt: int
    times: _containers.RepeatedCompositeFieldContainer[LogTime]
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ..., missing_bytes: _Optional[int] = ..., attempt: _Optional[int] = ..., times: _Optional[_Iterable[_Union[LogTime, _Mapping]]] = ...) -> None: ...

class SearchLogsRequest(_message.Message):
    __slots__ = ("log", "pattern", "literal", "ignore_case", "invert", "context_lines", "line")
    LOG_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    LITERAL_FIELD_NUMBER: _ClassVar[int]
    IGNORE_CASE_FIELD_NUMBER: _ClassVar[int]
    INVERT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LINES_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    log: ReadLogsRequest
    pattern: str
    literal: bool
    ignore_case: bool
    invert: bool
    context_lines: int
    line: int
    def __init__(self, log: _Optional[_Union[ReadLogsRequest, _Mapping]] = ..., pattern: _Optional[str] = ..., literal: _Optional[bool] = ..., ignore_case: _Optional[bool] = ..., invert: _Optional[bool] = ..., context_lines: _Optional[int] = ..., line: _Optional[int] = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("offset", "text", "number", "is_context", "time", "match_begin", "match_end")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    IS_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    MATCH_BEGIN_FIELD_NUMBER: _ClassVar[int]
    MATCH_END_FIELD_NUMBER: _ClassVar[int]
    offset: int
    text: bytes
    number: int
    is_context: bool
    time: _timestamp_pb2.Timestamp
    match_begin: int
    match_end: int
    def __init__(self, offset: _Optional[int] = ..., text: _Optional[bytes] = ..., number: _Optional[int] = ..., is_context: _Optional[bool] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., match_begin: _Optional[int] = ..., match_end: _Optional[int] = ...) -> None: ...

class SearchLogsResponse(_message.Message):
    __slots__ = ("lines", "attempt", "next", "next_line", "missing_bytes")
    LINES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    NEXT_LINE_FIELD_NUMBER: _ClassVar[int]
    MISSING_BYTES_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[LogLine]
    attempt: int
    next: int
    next_line: int
    missing_bytes: int
    def __init__(self, lines: _Optional[_Iterable[_Union[LogLine, _Mapping]]] = ..., attempt: _Optional[int] = ..., next: _Optional[int] = ..., next_line: _Optional[int] = ..., missing_bytes: _Optional[int] = ...) -> None: ...

class ReadMetricsRequest(_message.Message):
    __slots__ = ("session", "names", "follow")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    session: str
    names: _containers.RepeatedScalarFieldContainer[str]
    follow: bool
    def __init__(self, session: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., follow: _Optional[bool] = ..., **kwargs) -> None: ...

class MetricPoint(_message.Message):
    __slots__ = ("name", "time", "step", "number", "json", "attempt", "rank", "origin")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    name: str
    time: _timestamp_pb2.Timestamp
    step: float
    number: float
    json: str
    attempt: int
    rank: int
    origin: str
    def __init__(self, name: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., step: _Optional[float] = ..., number: _Optional[float] = ..., json: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., origin: _Optional[str] = ...) -> None: ...

class ReadMetricsResponse(_message.Message):
    __slots__ = ("points", "next", "missing_reports", "let_go")
    POINTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    MISSING_REPORTS_FIELD_NUMBER: _ClassVar[int]
    LET_GO_FIELD_NUMBER: _ClassVar[int]
    points: _containers.RepeatedCompositeFieldContainer[MetricPoint]
    next: str
    missing_reports: int
    let_go: _timestamp_pb2.Timestamp
    def __init__(self, points: _Optional[_Iterable[_Union[MetricPoint, _Mapping]]] = ..., next: _Optional[str] = ..., missing_reports: _Optional[int] = ..., let_go: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ReadSeriesRequest(_message.Message):
    __slots__ = ("sessions", "names", "ranks", "attempts", "axis", "low", "high", "width", "all_attempts")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    AXIS_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    ALL_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedScalarFieldContainer[str]
    names: _containers.RepeatedScalarFieldContainer[str]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    axis: SeriesAxis
    low: float
    high: float
    width: int
    all_attempts: bool
    def __init__(self, sessions: _Optional[_Iterable[str]] = ..., names: _Optional[_Iterable[str]] = ..., ranks: _Optional[_Iterable[int]] = ..., attempts: _Optional[_Iterable[int]] = ..., axis: _Optional[_Union[SeriesAxis, str]] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., width: _Optional[int] = ..., all_attempts: _Optional[bool] = ...) -> None: ...

class Series(_message.Message):
    __slots__ = ("session_id", "name", "attempt", "rank", "start", "grain", "x_low", "x_high", "time", "low", "high", "mean", "last", "finite", "odd")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    GRAIN_FIELD_NUMBER: _ClassVar[int]
    X_LOW_FIELD_NUMBER: _ClassVar[int]
    X_HIGH_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FINITE_FIELD_NUMBER: _ClassVar[int]
    ODD_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    name: str
    attempt: int
    rank: int
    start: float
    grain: int
    x_low: _containers.RepeatedScalarFieldContainer[float]
    x_high: _containers.RepeatedScalarFieldContainer[float]
    time: _containers.RepeatedScalarFieldContainer[float]
    low: _containers.RepeatedScalarFieldContainer[float]
    high: _containers.RepeatedScalarFieldContainer[float]
    mean: _containers.RepeatedScalarFieldContainer[float]
    last: _containers.RepeatedScalarFieldContainer[float]
    finite: _containers.RepeatedScalarFieldContainer[int]
    odd: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_id: _Optional[str] = ..., name: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., start: _Optional[float] = ..., grain: _Optional[int] = ..., x_low: _Optional[_Iterable[float]] = ..., x_high: _Optional[_Iterable[float]] = ..., time: _Optional[_Iterable[float]] = ..., low: _Optional[_Iterable[float]] = ..., high: _Optional[_Iterable[float]] = ..., mean: _Optional[_Iterable[float]] = ..., last: _Optional[_Iterable[float]] = ..., finite: _Optional[_Iterable[int]] = ..., odd: _Optional[_Iterable[int]] = ...) -> None: ...

class ReadSeriesResponse(_message.Message):
    __slots__ = ("series", "left_out_points", "left_out_series", "missing_reports", "session_id", "let_go")
    SERIES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_POINTS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_SERIES_FIELD_NUMBER: _ClassVar[int]
    MISSING_REPORTS_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LET_GO_FIELD_NUMBER: _ClassVar[int]
    series: _containers.RepeatedCompositeFieldContainer[Series]
    left_out_points: int
    left_out_series: int
    missing_reports: int
    session_id: str
    let_go: _timestamp_pb2.Timestamp
    def __init__(self, series: _Optional[_Iterable[_Union[Series, _Mapping]]] = ..., left_out_points: _Optional[int] = ..., left_out_series: _Optional[int] = ..., missing_reports: _Optional[int] = ..., session_id: _Optional[str] = ..., let_go: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListMetricsRequest(_message.Message):
    __slots__ = ("session", "cursor")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    session: str
    cursor: str
    def __init__(self, session: _Optional[str] = ..., cursor: _Optional[str] = ...) -> None: ...

class Metric(_message.Message):
    __slots__ = ("name", "count", "origin")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    name: str
    count: int
    origin: str
    def __init__(self, name: _Optional[str] = ..., count: _Optional[int] = ..., origin: _Optional[str] = ...) -> None: ...

class ListMetricsResponse(_message.Message):
    __slots__ = ("metrics", "next_cursor", "let_go")
    METRICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    LET_GO_FIELD_NUMBER: _ClassVar[int]
    metrics: _containers.RepeatedCompositeFieldContainer[Metric]
    next_cursor: str
    let_go: _timestamp_pb2.Timestamp
    def __init__(self, metrics: _Optional[_Iterable[_Union[Metric, _Mapping]]] = ..., next_cursor: _Optional[str] = ..., let_go: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class TunnelTarget(_message.Message):
    __slots__ = ("session", "rank", "service", "only_checks", "boot_id", "uses_relay", "ssh_host")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    ONLY_CHECKS_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    USES_RELAY_FIELD_NUMBER: _ClassVar[int]
    SSH_HOST_FIELD_NUMBER: _ClassVar[int]
    session: str
    rank: int
    service: str
    only_checks: bool
    boot_id: str
    uses_relay: bool
    ssh_host: str
    def __init__(self, session: _Optional[str] = ..., rank: _Optional[int] = ..., service: _Optional[str] = ..., only_checks: _Optional[bool] = ..., boot_id: _Optional[str] = ..., uses_relay: _Optional[bool] = ..., ssh_host: _Optional[str] = ...) -> None: ...

class DirectWay(_message.Message):
    __slots__ = ("socket", "key", "relay")
    SOCKET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    socket: str
    key: bytes
    relay: RelayWay
    def __init__(self, socket: _Optional[str] = ..., key: _Optional[bytes] = ..., relay: _Optional[_Union[RelayWay, _Mapping]] = ...) -> None: ...

class RelayWay(_message.Message):
    __slots__ = ("address", "key", "certificate")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    address: str
    key: bytes
    certificate: bytes
    def __init__(self, address: _Optional[str] = ..., key: _Optional[bytes] = ..., certificate: _Optional[bytes] = ...) -> None: ...

class ReplicaProcesses(_message.Message):
    __slots__ = ("processes", "left_out", "unseen", "visitors")
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    VISITORS_FIELD_NUMBER: _ClassVar[int]
    processes: _containers.RepeatedCompositeFieldContainer[ReplicaProcess]
    left_out: int
    unseen: str
    visitors: _containers.RepeatedCompositeFieldContainer[Visitor]
    def __init__(self, processes: _Optional[_Iterable[_Union[ReplicaProcess, _Mapping]]] = ..., left_out: _Optional[int] = ..., unseen: _Optional[str] = ..., visitors: _Optional[_Iterable[_Union[Visitor, _Mapping]]] = ...) -> None: ...

class Visitor(_message.Message):
    __slots__ = ("user", "service", "age")
    USER_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    user: str
    service: str
    age: _duration_pb2.Duration
    def __init__(self, user: _Optional[str] = ..., service: _Optional[str] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ReplicaProcess(_message.Message):
    __slots__ = ("pid", "node_pid", "cpu_cores", "cpu_time", "memory_bytes", "age", "command", "is_cut", "devices")
    PID_FIELD_NUMBER: _ClassVar[int]
    NODE_PID_FIELD_NUMBER: _ClassVar[int]
    CPU_CORES_FIELD_NUMBER: _ClassVar[int]
    CPU_TIME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    IS_CUT_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    pid: int
    node_pid: int
    cpu_cores: float
    cpu_time: _duration_pb2.Duration
    memory_bytes: int
    age: _duration_pb2.Duration
    command: str
    is_cut: bool
    devices: _containers.RepeatedCompositeFieldContainer[ProcessDevice]
    def __init__(self, pid: _Optional[int] = ..., node_pid: _Optional[int] = ..., cpu_cores: _Optional[float] = ..., cpu_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., memory_bytes: _Optional[int] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., command: _Optional[str] = ..., is_cut: _Optional[bool] = ..., devices: _Optional[_Iterable[_Union[ProcessDevice, _Mapping]]] = ...) -> None: ...

class ProcessDevice(_message.Message):
    __slots__ = ("index", "memory_bytes")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    index: int
    memory_bytes: int
    def __init__(self, index: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class StacksRequest(_message.Message):
    __slots__ = ("with_locals",)
    WITH_LOCALS_FIELD_NUMBER: _ClassVar[int]
    with_locals: bool
    def __init__(self, with_locals: _Optional[bool] = ...) -> None: ...

class ReplicaStacks(_message.Message):
    __slots__ = ("processes", "left_out", "unseen")
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    processes: _containers.RepeatedCompositeFieldContainer[ProcessStacks]
    left_out: int
    unseen: str
    def __init__(self, processes: _Optional[_Iterable[_Union[ProcessStacks, _Mapping]]] = ..., left_out: _Optional[int] = ..., unseen: _Optional[str] = ...) -> None: ...

class ProcessStacks(_message.Message):
    __slots__ = ("pid", "node_pid", "command", "threads", "threads_left_out", "unseen")
    PID_FIELD_NUMBER: _ClassVar[int]
    NODE_PID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    THREADS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    pid: int
    node_pid: int
    command: str
    threads: _containers.RepeatedCompositeFieldContainer[ThreadStack]
    threads_left_out: int
    unseen: str
    def __init__(self, pid: _Optional[int] = ..., node_pid: _Optional[int] = ..., command: _Optional[str] = ..., threads: _Optional[_Iterable[_Union[ThreadStack, _Mapping]]] = ..., threads_left_out: _Optional[int] = ..., unseen: _Optional[str] = ...) -> None: ...

class ThreadStack(_message.Message):
    __slots__ = ("name", "holds_gil", "state", "frames", "frames_left_out")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOLDS_GIL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    FRAMES_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    name: str
    holds_gil: bool
    state: ThreadState
    frames: _containers.RepeatedCompositeFieldContainer[StackFrame]
    frames_left_out: int
    def __init__(self, name: _Optional[str] = ..., holds_gil: _Optional[bool] = ..., state: _Optional[_Union[ThreadState, str]] = ..., frames: _Optional[_Iterable[_Union[StackFrame, _Mapping]]] = ..., frames_left_out: _Optional[int] = ...) -> None: ...

class StackFrame(_message.Message):
    __slots__ = ("function", "file", "line", "locals")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    LOCALS_FIELD_NUMBER: _ClassVar[int]
    function: str
    file: str
    line: int
    locals: _containers.RepeatedCompositeFieldContainer[LocalVariable]
    def __init__(self, function: _Optional[str] = ..., file: _Optional[str] = ..., line: _Optional[int] = ..., locals: _Optional[_Iterable[_Union[LocalVariable, _Mapping]]] = ...) -> None: ...

class LocalVariable(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class TerminalSize(_message.Message):
    __slots__ = ("rows", "columns")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ...) -> None: ...

class ProgramRequest(_message.Message):
    __slots__ = ("start", "input", "input_end", "resize", "signal")
    START_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    INPUT_END_FIELD_NUMBER: _ClassVar[int]
    RESIZE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    start: StartProgram
    input: bytes
    input_end: bool
    resize: TerminalSize
    signal: int
    def __init__(self, start: _Optional[_Union[StartProgram, _Mapping]] = ..., input: _Optional[bytes] = ..., input_end: _Optional[bool] = ..., resize: _Optional[_Union[TerminalSize, _Mapping]] = ..., signal: _Optional[int] = ...) -> None: ...

class StartProgram(_message.Message):
    __slots__ = ("argv", "environment", "terminal")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ARGV_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    argv: _containers.RepeatedScalarFieldContainer[str]
    environment: _containers.ScalarMap[str, str]
    terminal: TerminalSize
    def __init__(self, argv: _Optional[_Iterable[str]] = ..., environment: _Optional[_Mapping[str, str]] = ..., terminal: _Optional[_Union[TerminalSize, _Mapping]] = ...) -> None: ...

class ProgramResponse(_message.Message):
    __slots__ = ("started", "refused", "output", "error_output", "ended", "taken")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ERROR_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    started: bool
    refused: str
    output: bytes
    error_output: bytes
    ended: ProgramEnded
    taken: int
    def __init__(self, started: _Optional[bool] = ..., refused: _Optional[str] = ..., output: _Optional[bytes] = ..., error_output: _Optional[bytes] = ..., ended: _Optional[_Union[ProgramEnded, _Mapping]] = ..., taken: _Optional[int] = ...) -> None: ...

class ProgramEnded(_message.Message):
    __slots__ = ("exit_code", "signal", "is_lost")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    IS_LOST_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    signal: int
    is_lost: bool
    def __init__(self, exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., is_lost: _Optional[bool] = ...) -> None: ...

class FilesRequest(_message.Message):
    __slots__ = ("path", "sends", "name", "keeps_in_step")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SENDS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEEPS_IN_STEP_FIELD_NUMBER: _ClassVar[int]
    path: bytes
    sends: bool
    name: bytes
    keeps_in_step: bool
    def __init__(self, path: _Optional[bytes] = ..., sends: _Optional[bool] = ..., name: _Optional[bytes] = ..., keeps_in_step: _Optional[bool] = ...) -> None: ...

class FilesResponse(_message.Message):
    __slots__ = ("started", "refused", "keeps_in_step")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    KEEPS_IN_STEP_FIELD_NUMBER: _ClassVar[int]
    started: bool
    refused: str
    keeps_in_step: bool
    def __init__(self, started: _Optional[bool] = ..., refused: _Optional[str] = ..., keeps_in_step: _Optional[bool] = ...) -> None: ...

class EvaluateRequest(_message.Message):
    __slots__ = ("expression", "limit", "wait", "local_rank")
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    expression: str
    limit: _duration_pb2.Duration
    wait: _duration_pb2.Duration
    local_rank: int
    def __init__(self, expression: _Optional[str] = ..., limit: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., local_rank: _Optional[int] = ...) -> None: ...

class EvaluateResponse(_message.Message):
    __slots__ = ("behind", "waits", "runs", "evaluated", "refused")
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    behind: str
    waits: bool
    runs: bool
    evaluated: Evaluated
    refused: str
    def __init__(self, behind: _Optional[str] = ..., waits: _Optional[bool] = ..., runs: _Optional[bool] = ..., evaluated: _Optional[_Union[Evaluated, _Mapping]] = ..., refused: _Optional[str] = ...) -> None: ...

class Evaluated(_message.Message):
    __slots__ = ("value", "output", "error", "is_late", "is_cut", "took", "hides")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    IS_LATE_FIELD_NUMBER: _ClassVar[int]
    IS_CUT_FIELD_NUMBER: _ClassVar[int]
    TOOK_FIELD_NUMBER: _ClassVar[int]
    HIDES_FIELD_NUMBER: _ClassVar[int]
    value: str
    output: str
    error: str
    is_late: bool
    is_cut: bool
    took: _duration_pb2.Duration
    hides: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, value: _Optional[str] = ..., output: _Optional[str] = ..., error: _Optional[str] = ..., is_late: _Optional[bool] = ..., is_cut: _Optional[bool] = ..., took: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., hides: _Optional[_Iterable[str]] = ...) -> None: ...

class SshAnswer(_message.Message):
    __slots__ = ("host_key", "refused")
    HOST_KEY_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    host_key: str
    refused: str
    def __init__(self, host_key: _Optional[str] = ..., refused: _Optional[str] = ...) -> None: ...

class OpenTunnelRequest(_message.Message):
    __slots__ = ("target", "data", "end")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    target: TunnelTarget
    data: bytes
    end: bool
    def __init__(self, target: _Optional[_Union[TunnelTarget, _Mapping]] = ..., data: _Optional[bytes] = ..., end: _Optional[bool] = ...) -> None: ...

class OpenTunnelResponse(_message.Message):
    __slots__ = ("data", "end", "gone", "direct")
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    DIRECT_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    end: bool
    gone: bool
    direct: DirectWay
    def __init__(self, data: _Optional[bytes] = ..., end: _Optional[bool] = ..., gone: _Optional[bool] = ..., direct: _Optional[_Union[DirectWay, _Mapping]] = ...) -> None: ...

class Shortage(_message.Message):
    __slots__ = ("what", "nodes")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    what: str
    nodes: int
    def __init__(self, what: _Optional[str] = ..., nodes: _Optional[int] = ...) -> None: ...

class Holder(_message.Message):
    __slots__ = ("session", "owner", "held", "nodes", "until")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    session: str
    owner: str
    held: int
    nodes: int
    until: _timestamp_pb2.Timestamp
    def __init__(self, session: _Optional[str] = ..., owner: _Optional[str] = ..., held: _Optional[int] = ..., nodes: _Optional[int] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class FairShare(_message.Message):
    __slots__ = ("account", "held_gpus", "lately_gpus", "weight", "value", "half_life", "is_partial")
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    HELD_GPUS_FIELD_NUMBER: _ClassVar[int]
    LATELY_GPUS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HALF_LIFE_FIELD_NUMBER: _ClassVar[int]
    IS_PARTIAL_FIELD_NUMBER: _ClassVar[int]
    account: str
    held_gpus: float
    lately_gpus: float
    weight: float
    value: float
    half_life: _duration_pb2.Duration
    is_partial: bool
    def __init__(self, account: _Optional[str] = ..., held_gpus: _Optional[float] = ..., lately_gpus: _Optional[float] = ..., weight: _Optional[float] = ..., value: _Optional[float] = ..., half_life: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., is_partial: _Optional[bool] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("place", "queued", "reason", "shortages", "never", "short", "holders", "expected_start", "share", "budget_renews", "room_is_held")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SHORTAGES_FIELD_NUMBER: _ClassVar[int]
    NEVER_FIELD_NUMBER: _ClassVar[int]
    SHORT_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_START_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    BUDGET_RENEWS_FIELD_NUMBER: _ClassVar[int]
    ROOM_IS_HELD_FIELD_NUMBER: _ClassVar[int]
    place: int
    queued: int
    reason: str
    shortages: _containers.RepeatedCompositeFieldContainer[Shortage]
    never: bool
    short: str
    holders: _containers.RepeatedCompositeFieldContainer[Holder]
    expected_start: _timestamp_pb2.Timestamp
    share: FairShare
    budget_renews: _timestamp_pb2.Timestamp
    room_is_held: bool
    def __init__(self, place: _Optional[int] = ..., queued: _Optional[int] = ..., reason: _Optional[str] = ..., shortages: _Optional[_Iterable[_Union[Shortage, _Mapping]]] = ..., never: _Optional[bool] = ..., short: _Optional[str] = ..., holders: _Optional[_Iterable[_Union[Holder, _Mapping]]] = ..., expected_start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., share: _Optional[_Union[FairShare, _Mapping]] = ..., budget_renews: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., room_is_held: _Optional[bool] = ...) -> None: ...

class WhatIf(_message.Message):
    __slots__ = ("gpu_thousandths", "cpu_thousandths", "memory_bytes", "replica_count", "priority", "time_limit", "gpu_model", "pod", "network")
    GPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    CPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_FIELD_NUMBER: _ClassVar[int]
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    gpu_thousandths: int
    cpu_thousandths: int
    memory_bytes: int
    replica_count: int
    priority: Priority
    time_limit: _duration_pb2.Duration
    gpu_model: str
    pod: str
    network: _resources_pb2.Network
    def __init__(self, gpu_thousandths: _Optional[int] = ..., cpu_thousandths: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., replica_count: _Optional[int] = ..., priority: _Optional[_Union[Priority, str]] = ..., time_limit: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., gpu_model: _Optional[str] = ..., pod: _Optional[str] = ..., network: _Optional[_Union[_resources_pb2.Network, str]] = ...) -> None: ...

class ExplainSessionRequest(_message.Message):
    __slots__ = ("session", "what_if")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    WHAT_IF_FIELD_NUMBER: _ClassVar[int]
    session: str
    what_if: WhatIf
    def __init__(self, session: _Optional[str] = ..., what_if: _Optional[_Union[WhatIf, _Mapping]] = ...) -> None: ...

class WhatIfAnswer(_message.Message):
    __slots__ = ("starts", "nodes", "waiting")
    STARTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    starts: bool
    nodes: _containers.RepeatedScalarFieldContainer[str]
    waiting: Waiting
    def __init__(self, starts: _Optional[bool] = ..., nodes: _Optional[_Iterable[str]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ...) -> None: ...

class ExplainSessionResponse(_message.Message):
    __slots__ = ("session", "waiting", "what_if")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WHAT_IF_FIELD_NUMBER: _ClassVar[int]
    session: Session
    waiting: Waiting
    what_if: WhatIfAnswer
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ..., what_if: _Optional[_Union[WhatIfAnswer, _Mapping]] = ...) -> None: ...

class ListQueueRequest(_message.Message):
    __slots__ = ("owners", "project", "page_size", "cursor")
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    owners: _containers.RepeatedScalarFieldContainer[str]
    project: str
    page_size: int
    cursor: str
    def __init__(self, owners: _Optional[_Iterable[str]] = ..., project: _Optional[str] = ..., page_size: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class QueuedSession(_message.Message):
    __slots__ = ("place", "session", "owner", "project", "resources", "replica_count", "priority", "gpu_model", "pod", "created_at", "reason", "expected_start", "share", "budget_renews", "room_is_held", "network")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_START_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    BUDGET_RENEWS_FIELD_NUMBER: _ClassVar[int]
    ROOM_IS_HELD_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    place: int
    session: str
    owner: str
    project: str
    resources: _resources_pb2.Resources
    replica_count: int
    priority: Priority
    gpu_model: str
    pod: str
    created_at: _timestamp_pb2.Timestamp
    reason: str
    expected_start: _timestamp_pb2.Timestamp
    share: float
    budget_renews: _timestamp_pb2.Timestamp
    room_is_held: bool
    network: _resources_pb2.Network
    def __init__(self, place: _Optional[int] = ..., session: _Optional[str] = ..., owner: _Optional[str] = ..., project: _Optional[str] = ..., resources: _Optional[_Union[_resources_pb2.Resources, _Mapping]] = ..., replica_count: _Optional[int] = ..., priority: _Optional[_Union[Priority, str]] = ..., gpu_model: _Optional[str] = ..., pod: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ..., expected_start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., share: _Optional[float] = ..., budget_renews: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., room_is_held: _Optional[bool] = ..., network: _Optional[_Union[_resources_pb2.Network, str]] = ...) -> None: ...

class ListQueueResponse(_message.Message):
    __slots__ = ("sessions", "next_cursor", "queued", "chosen", "asked_gpu_thousandths", "free_gpu_thousandths", "largest_hole", "largest_hole_node", "hidden")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    ASKED_GPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    FREE_GPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    LARGEST_HOLE_FIELD_NUMBER: _ClassVar[int]
    LARGEST_HOLE_NODE_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[QueuedSession]
    next_cursor: str
    queued: int
    chosen: int
    asked_gpu_thousandths: int
    free_gpu_thousandths: int
    largest_hole: int
    largest_hole_node: str
    hidden: int
    def __init__(self, sessions: _Optional[_Iterable[_Union[QueuedSession, _Mapping]]] = ..., next_cursor: _Optional[str] = ..., queued: _Optional[int] = ..., chosen: _Optional[int] = ..., asked_gpu_thousandths: _Optional[int] = ..., free_gpu_thousandths: _Optional[int] = ..., largest_hole: _Optional[int] = ..., largest_hole_node: _Optional[str] = ..., hidden: _Optional[int] = ...) -> None: ...
