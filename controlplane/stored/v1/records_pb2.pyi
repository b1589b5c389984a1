from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionRecord(_message.Message):
    __slots__ = ("id", "name", "owner", "project", "team", "visibility", "spec", "state", "attempt", "replicas", "created_at", "started_at", "ended_at", "end", "memo", "command", "request_id", "request_digest", "stop", "bad_attempts", "attempts", "not_before", "term", "progress", "settling", "avoids", "usage", "episodes", "owner_id", "resume", "durable", "held_cause", "origin", "changes", "git", "imported", "competition_teams")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MEMO_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    BAD_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    NOT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SETTLING_FIELD_NUMBER: _ClassVar[int]
    AVOIDS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    HELD_CAUSE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    GIT_FIELD_NUMBER: _ClassVar[int]
    IMPORTED_FIELD_NUMBER: _ClassVar[int]
    COMPETITION_TEAMS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    owner: str
    project: str
    team: str
    visibility: int
    spec: SpecRecord
    state: str
    attempt: int
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaRecord]
    created_at: float
    started_at: float
    ended_at: float
    end: EndRecord
    memo: str
    command: _containers.RepeatedScalarFieldContainer[str]
    request_id: str
    request_digest: bytes
    stop: StopRecord
    bad_attempts: int
    attempts: _containers.RepeatedCompositeFieldContainer[AttemptRecord]
    not_before: float
    term: int
    progress: ProgressRecord
    settling: _containers.RepeatedScalarFieldContainer[int]
    avoids: _containers.RepeatedScalarFieldContainer[str]
    usage: UsageRecord
    episodes: _containers.RepeatedCompositeFieldContainer[EpisodeRecord]
    owner_id: str
    resume: ResumeRecord
    durable: DurableRecord
    held_cause: str
    origin: OriginRecord
    changes: _containers.RepeatedCompositeFieldContainer[ChangeRecord]
    git: GitFactsRecord
    imported: ImportedFromRecord
    competition_teams: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., owner: _Optional[str] = ..., project: _Optional[str] = ..., team: _Optional[str] = ..., visibility: _Optional[int] = ..., spec: _Optional[_Union[SpecRecord, _Mapping]] = ..., state: _Optional[str] = ..., attempt: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[ReplicaRecord, _Mapping]]] = ..., created_at: _Optional[float] = ..., started_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., end: _Optional[_Union[EndRecord, _Mapping]] = ..., memo: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., request_id: _Optional[str] = ..., request_digest: _Optional[bytes] = ..., stop: _Optional[_Union[StopRecord, _Mapping]] = ..., bad_attempts: _Optional[int] = ..., attempts: _Optional[_Iterable[_Union[AttemptRecord, _Mapping]]] = ..., not_before: _Optional[float] = ..., term: _Optional[int] = ..., progress: _Optional[_Union[ProgressRecord, _Mapping]] = ..., settling: _Optional[_Iterable[int]] = ..., avoids: _Optional[_Iterable[str]] = ..., usage: _Optional[_Union[UsageRecord, _Mapping]] = ..., episodes: _Optional[_Iterable[_Union[EpisodeRecord, _Mapping]]] = ..., owner_id: _Optional[str] = ..., resume: _Optional[_Union[ResumeRecord, _Mapping]] = ..., durable: _Optional[_Union[DurableRecord, _Mapping]] = ..., held_cause: _Optional[str] = ..., origin: _Optional[_Union[OriginRecord, _Mapping]] = ..., changes: _Optional[_Iterable[_Union[ChangeRecord, _Mapping]]] = ..., git: _Optional[_Union[GitFactsRecord, _Mapping]] = ..., imported: _Optional[_Union[ImportedFromRecord, _Mapping]] = ..., competition_teams: _Optional[_Iterable[str]] = ...) -> None: ...

class KnobRecord(_message.Message):
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

class KnobChangeRecord(_message.Message):
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

class ChangeMemberRecord(_message.Message):
    __slots__ = ("rank", "local_rank", "state", "position", "knobs", "reason")
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    KNOBS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    rank: int
    local_rank: int
    state: str
    position: int
    knobs: _containers.RepeatedCompositeFieldContainer[KnobChangeRecord]
    reason: str
    def __init__(self, rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., state: _Optional[str] = ..., position: _Optional[int] = ..., knobs: _Optional[_Iterable[_Union[KnobChangeRecord, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class ChangeRecord(_message.Message):
    __slots__ = ("number", "kind", "attempt", "asked_by", "asked_at", "phase", "values", "checkpoint", "checkpoint_session", "limit_s", "asked_at_step", "wait_s", "counter", "at", "tries", "since", "reason", "members", "ended_at")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_SESSION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_STEP_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    TRIES_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    number: int
    kind: str
    attempt: int
    asked_by: str
    asked_at: float
    phase: str
    values: _containers.ScalarMap[str, str]
    checkpoint: str
    checkpoint_session: str
    limit_s: float
    asked_at_step: int
    wait_s: float
    counter: str
    at: int
    tries: int
    since: float
    reason: str
    members: _containers.RepeatedCompositeFieldContainer[ChangeMemberRecord]
    ended_at: float
    def __init__(self, number: _Optional[int] = ..., kind: _Optional[str] = ..., attempt: _Optional[int] = ..., asked_by: _Optional[str] = ..., asked_at: _Optional[float] = ..., phase: _Optional[str] = ..., values: _Optional[_Mapping[str, str]] = ..., checkpoint: _Optional[str] = ..., checkpoint_session: _Optional[str] = ..., limit_s: _Optional[float] = ..., asked_at_step: _Optional[int] = ..., wait_s: _Optional[float] = ..., counter: _Optional[str] = ..., at: _Optional[int] = ..., tries: _Optional[int] = ..., since: _Optional[float] = ..., reason: _Optional[str] = ..., members: _Optional[_Iterable[_Union[ChangeMemberRecord, _Mapping]]] = ..., ended_at: _Optional[float] = ...) -> None: ...

class OriginRecord(_message.Message):
    __slots__ = ("kind", "session_id", "name")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    kind: str
    session_id: str
    name: str
    def __init__(self, kind: _Optional[str] = ..., session_id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ImportedFromRecord(_message.Message):
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
    restored_at: float
    def __init__(self, platform: _Optional[str] = ..., session_id: _Optional[str] = ..., name: _Optional[str] = ..., owner: _Optional[str] = ..., restored_at: _Optional[float] = ...) -> None: ...

class GitFactsRecord(_message.Message):
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

class InitialCheckpointRecord(_message.Message):
    __slots__ = ("session_id", "name", "digest", "session_name", "saved_at")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SESSION_NAME_FIELD_NUMBER: _ClassVar[int]
    SAVED_AT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    name: str
    digest: str
    session_name: str
    saved_at: float
    def __init__(self, session_id: _Optional[str] = ..., name: _Optional[str] = ..., digest: _Optional[str] = ..., session_name: _Optional[str] = ..., saved_at: _Optional[float] = ...) -> None: ...

class DurableRecord(_message.Message):
    __slots__ = ("attempt", "until")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    until: float
    def __init__(self, attempt: _Optional[int] = ..., until: _Optional[float] = ...) -> None: ...

class ResumeRecord(_message.Message):
    __slots__ = ("attempt", "checkpoint", "digest")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    checkpoint: str
    digest: str
    def __init__(self, attempt: _Optional[int] = ..., checkpoint: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class EpisodeRecord(_message.Message):
    __slots__ = ("kind", "since", "until", "reason")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    kind: str
    since: float
    until: float
    reason: str
    def __init__(self, kind: _Optional[str] = ..., since: _Optional[float] = ..., until: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class ProgressRecord(_message.Message):
    __slots__ = ("is_resumable", "saved_at")
    IS_RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    SAVED_AT_FIELD_NUMBER: _ClassVar[int]
    is_resumable: bool
    saved_at: float
    def __init__(self, is_resumable: _Optional[bool] = ..., saved_at: _Optional[float] = ...) -> None: ...

class SpecRecord(_message.Message):
    __slots__ = ("entry", "args", "argv", "bundle_digest", "datasets", "resources", "replica_count", "environment", "image", "time_limit_s", "grace_s", "retry_count", "lost_after_s", "limits", "secrets", "priority", "preemptible", "gpu_model", "pod", "network", "refresh_environment", "labels", "idle_limit_s", "knobs", "initial_checkpoint", "after", "keep_checkpoints", "environment_lock", "output_datasets", "allow_changed_data", "keep_files", "no_keep_files", "keep_files_by_default", "dockerfile", "build_arguments", "needs_conda", "stage", "submission_id", "log_metrics", "launcher")
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
    TIME_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    RETRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOST_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIBLE_FIELD_NUMBER: _ClassVar[int]
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    REFRESH_ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    IDLE_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
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
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_METRICS_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_FIELD_NUMBER: _ClassVar[int]
    entry: str
    args: _containers.RepeatedScalarFieldContainer[str]
    argv: _containers.RepeatedScalarFieldContainer[str]
    bundle_digest: str
    datasets: _containers.RepeatedCompositeFieldContainer[DatasetRecord]
    resources: ResourcesRecord
    replica_count: int
    environment: _containers.ScalarMap[str, str]
    image: str
    time_limit_s: float
    grace_s: float
    retry_count: int
    lost_after_s: float
    limits: LimitsRecord
    secrets: _containers.RepeatedCompositeFieldContainer[SecretUseRecord]
    priority: int
    preemptible: bool
    gpu_model: str
    pod: str
    network: str
    refresh_environment: bool
    labels: _containers.ScalarMap[str, str]
    idle_limit_s: float
    knobs: _containers.RepeatedCompositeFieldContainer[KnobRecord]
    initial_checkpoint: InitialCheckpointRecord
    after: _containers.RepeatedCompositeFieldContainer[AfterRecord]
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
    stage: str
    submission_id: str
    log_metrics: _containers.RepeatedScalarFieldContainer[str]
    launcher: str
    def __init__(self, entry: _Optional[str] = ..., args: _Optional[_Iterable[str]] = ..., argv: _Optional[_Iterable[str]] = ..., bundle_digest: _Optional[str] = ..., datasets: _Optional[_Iterable[_Union[DatasetRecord, _Mapping]]] = ..., resources: _Optional[_Union[ResourcesRecord, _Mapping]] = ..., replica_count: _Optional[int] = ..., environment: _Optional[_Mapping[str, str]] = ..., image: _Optional[str] = ..., time_limit_s: _Optional[float] = ..., grace_s: _Optional[float] = ..., retry_count: _Optional[int] = ..., lost_after_s: _Optional[float] = ..., limits: _Optional[_Union[LimitsRecord, _Mapping]] = ..., secrets: _Optional[_Iterable[_Union[SecretUseRecord, _Mapping]]] = ..., priority: _Optional[int] = ..., preemptible: _Optional[bool] = ..., gpu_model: _Optional[str] = ..., pod: _Optional[str] = ..., network: _Optional[str] = ..., refresh_environment: _Optional[bool] = ..., labels: _Optional[_Mapping[str, str]] = ..., idle_limit_s: _Optional[float] = ..., knobs: _Optional[_Iterable[_Union[KnobRecord, _Mapping]]] = ..., initial_checkpoint: _Optional[_Union[InitialCheckpointRecord, _Mapping]] = ..., after: _Optional[_Iterable[_Union[AfterRecord, _Mapping]]] = ..., keep_checkpoints: _Optional[str] = ..., environment_lock: _Optional[str] = ..., output_datasets: _Optional[_Iterable[str]] = ..., allow_changed_data: _Optional[bool] = ..., keep_files: _Optional[bool] = ..., no_keep_files: _Optional[bool] = ..., keep_files_by_default: _Optional[bool] = ..., dockerfile: _Optional[str] = ..., build_arguments: _Optional[_Mapping[str, str]] = ..., needs_conda: _Optional[bool] = ..., stage: _Optional[str] = ..., submission_id: _Optional[str] = ..., log_metrics: _Optional[_Iterable[str]] = ..., launcher: _Optional[str] = ...) -> None: ...

class AfterRecord(_message.Message):
    __slots__ = ("session_id", "name", "is_any")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    IS_ANY_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    name: str
    is_any: bool
    def __init__(self, session_id: _Optional[str] = ..., name: _Optional[str] = ..., is_any: _Optional[bool] = ...) -> None: ...

class LimitsRecord(_message.Message):
    __slots__ = ("shm_bytes", "disk_bytes", "process_count")
    SHM_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    shm_bytes: int
    disk_bytes: int
    process_count: int
    def __init__(self, shm_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., process_count: _Optional[int] = ...) -> None: ...

class SecretUseRecord(_message.Message):
    __slots__ = ("name", "variable")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    variable: str
    def __init__(self, name: _Optional[str] = ..., variable: _Optional[str] = ...) -> None: ...

class DatasetRecord(_message.Message):
    __slots__ = ("owner", "name", "version", "digest", "streamed", "folder", "in_place", "size_bytes")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STREAMED_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    IN_PLACE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    owner: str
    name: str
    version: int
    digest: str
    streamed: bool
    folder: str
    in_place: str
    size_bytes: int
    def __init__(self, owner: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[int] = ..., digest: _Optional[str] = ..., streamed: _Optional[bool] = ..., folder: _Optional[str] = ..., in_place: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class ResourcesRecord(_message.Message):
    __slots__ = ("gpu_thousandths", "cpu_thousandths", "memory_bytes")
    GPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    CPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    gpu_thousandths: int
    cpu_thousandths: int
    memory_bytes: int
    def __init__(self, gpu_thousandths: _Optional[int] = ..., cpu_thousandths: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class ReplicaRecord(_message.Message):
    __slots__ = ("rank", "node", "devices", "resources", "phase", "exit", "started_at", "heard_at", "near_data", "waiting", "image", "python_version")
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    HEARD_AT_FIELD_NUMBER: _ClassVar[int]
    NEAR_DATA_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    rank: int
    node: str
    devices: _containers.RepeatedCompositeFieldContainer[DeviceRecord]
    resources: ResourcesRecord
    phase: str
    exit: ExitRecord
    started_at: float
    heard_at: float
    near_data: bool
    waiting: str
    image: str
    python_version: str
    def __init__(self, rank: _Optional[int] = ..., node: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[DeviceRecord, _Mapping]]] = ..., resources: _Optional[_Union[ResourcesRecord, _Mapping]] = ..., phase: _Optional[str] = ..., exit: _Optional[_Union[ExitRecord, _Mapping]] = ..., started_at: _Optional[float] = ..., heard_at: _Optional[float] = ..., near_data: _Optional[bool] = ..., waiting: _Optional[str] = ..., image: _Optional[str] = ..., python_version: _Optional[str] = ...) -> None: ...

class ExitRecord(_message.Message):
    __slots__ = ("cause", "exit_code", "message", "started_at", "ended_at", "ran_for_s", "memory_peak_bytes")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    RAN_FOR_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    cause: str
    exit_code: int
    message: str
    started_at: float
    ended_at: float
    ran_for_s: float
    memory_peak_bytes: int
    def __init__(self, cause: _Optional[str] = ..., exit_code: _Optional[int] = ..., message: _Optional[str] = ..., started_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., ran_for_s: _Optional[float] = ..., memory_peak_bytes: _Optional[int] = ...) -> None: ...

class DeviceRecord(_message.Message):
    __slots__ = ("uuid", "index", "model", "memory_bytes", "simulated", "withheld", "parent_uuid", "driver_version", "cuda_version")
    UUID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    PARENT_UUID_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    CUDA_VERSION_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    index: int
    model: str
    memory_bytes: int
    simulated: bool
    withheld: str
    parent_uuid: str
    driver_version: str
    cuda_version: str
    def __init__(self, uuid: _Optional[str] = ..., index: _Optional[int] = ..., model: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., simulated: _Optional[bool] = ..., withheld: _Optional[str] = ..., parent_uuid: _Optional[str] = ..., driver_version: _Optional[str] = ..., cuda_version: _Optional[str] = ...) -> None: ...

class EndRecord(_message.Message):
    __slots__ = ("cause", "exit_code", "rank", "message")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    cause: str
    exit_code: int
    rank: int
    message: str
    def __init__(self, cause: _Optional[str] = ..., exit_code: _Optional[int] = ..., rank: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class StopRecord(_message.Message):
    __slots__ = ("grace_s", "cause", "reason", "asked_by", "came_first", "notice_s", "asked_at")
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    CAME_FIRST_FIELD_NUMBER: _ClassVar[int]
    NOTICE_S_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    grace_s: float
    cause: str
    reason: str
    asked_by: str
    came_first: bool
    notice_s: float
    asked_at: float
    def __init__(self, grace_s: _Optional[float] = ..., cause: _Optional[str] = ..., reason: _Optional[str] = ..., asked_by: _Optional[str] = ..., came_first: _Optional[bool] = ..., notice_s: _Optional[float] = ..., asked_at: _Optional[float] = ...) -> None: ...

class AttemptRecord(_message.Message):
    __slots__ = ("number", "cause", "placed_at", "ended_at", "gpu_thousandths", "held_s", "nodes", "reason", "devices", "simulated", "gpu_models", "durable_until", "driver_versions", "python_versions")
    class GpuModelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    PLACED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    GPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    HELD_S_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    GPU_MODELS_FIELD_NUMBER: _ClassVar[int]
    DURABLE_UNTIL_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    number: int
    cause: str
    placed_at: float
    ended_at: float
    gpu_thousandths: int
    held_s: float
    nodes: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    devices: _containers.RepeatedCompositeFieldContainer[HeldDeviceRecord]
    simulated: bool
    gpu_models: _containers.ScalarMap[str, int]
    durable_until: float
    driver_versions: _containers.RepeatedScalarFieldContainer[str]
    python_versions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, number: _Optional[int] = ..., cause: _Optional[str] = ..., placed_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., gpu_thousandths: _Optional[int] = ..., held_s: _Optional[float] = ..., nodes: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[HeldDeviceRecord, _Mapping]]] = ..., simulated: _Optional[bool] = ..., gpu_models: _Optional[_Mapping[str, int]] = ..., durable_until: _Optional[float] = ..., driver_versions: _Optional[_Iterable[str]] = ..., python_versions: _Optional[_Iterable[str]] = ...) -> None: ...

class HeldDeviceRecord(_message.Message):
    __slots__ = ("node", "uuid", "thousandths")
    NODE_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    node: str
    uuid: str
    thousandths: int
    def __init__(self, node: _Optional[str] = ..., uuid: _Optional[str] = ..., thousandths: _Optional[int] = ...) -> None: ...

class UsageRecord(_message.Message):
    __slots__ = ("device_seconds", "utilization", "utilization_peak", "memory_peak", "watt_hours")
    DEVICE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PEAK_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PEAK_FIELD_NUMBER: _ClassVar[int]
    WATT_HOURS_FIELD_NUMBER: _ClassVar[int]
    device_seconds: float
    utilization: float
    utilization_peak: float
    memory_peak: float
    watt_hours: float
    def __init__(self, device_seconds: _Optional[float] = ..., utilization: _Optional[float] = ..., utilization_peak: _Optional[float] = ..., memory_peak: _Optional[float] = ..., watt_hours: _Optional[float] = ...) -> None: ...

class AllocationRecord(_message.Message):
    __slots__ = ("node", "replicas", "term")
    NODE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    node: str
    replicas: _containers.RepeatedCompositeFieldContainer[AllocatedReplica]
    term: int
    def __init__(self, node: _Optional[str] = ..., replicas: _Optional[_Iterable[_Union[AllocatedReplica, _Mapping]]] = ..., term: _Optional[int] = ...) -> None: ...

class AllocatedReplica(_message.Message):
    __slots__ = ("session_id", "attempt", "rank", "devices", "cpu_thousandths", "memory_bytes", "placed_at")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PLACED_AT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    attempt: int
    rank: int
    devices: _containers.RepeatedCompositeFieldContainer[DeviceShare]
    cpu_thousandths: int
    memory_bytes: int
    placed_at: float
    def __init__(self, session_id: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[DeviceShare, _Mapping]]] = ..., cpu_thousandths: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., placed_at: _Optional[float] = ...) -> None: ...

class DeviceShare(_message.Message):
    __slots__ = ("uuid", "thousandths")
    UUID_FIELD_NUMBER: _ClassVar[int]
    THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    thousandths: int
    def __init__(self, uuid: _Optional[str] = ..., thousandths: _Optional[int] = ...) -> None: ...

class NodeRecord(_message.Message):
    __slots__ = ("name", "boot_id", "agent_version", "isolation", "devices", "cpu_thousandths", "memory_bytes", "pod", "host", "owner", "device_note", "draining", "registered_at", "drain", "fence", "hold", "gang_network", "limits", "only_owner", "isolation_note", "setting_note", "networks", "not_ready", "engine_note", "shared_roots", "abilities", "python_version", "data_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NOTE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_AT_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    GANG_NETWORK_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ONLY_OWNER_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_NOTE_FIELD_NUMBER: _ClassVar[int]
    SETTING_NOTE_FIELD_NUMBER: _ClassVar[int]
    NETWORKS_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_FIELD_NUMBER: _ClassVar[int]
    ENGINE_NOTE_FIELD_NUMBER: _ClassVar[int]
    SHARED_ROOTS_FIELD_NUMBER: _ClassVar[int]
    ABILITIES_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    boot_id: str
    agent_version: str
    isolation: str
    devices: _containers.RepeatedCompositeFieldContainer[DeviceRecord]
    cpu_thousandths: int
    memory_bytes: int
    pod: str
    host: str
    owner: str
    device_note: str
    draining: bool
    registered_at: float
    drain: DrainRecord
    fence: FenceRecord
    hold: HoldRecord
    gang_network: str
    limits: KeptLimitsRecord
    only_owner: str
    isolation_note: str
    setting_note: str
    networks: _containers.RepeatedScalarFieldContainer[str]
    not_ready: str
    engine_note: str
    shared_roots: _containers.RepeatedScalarFieldContainer[str]
    abilities: _containers.RepeatedScalarFieldContainer[str]
    python_version: str
    data_bytes: int
    def __init__(self, name: _Optional[str] = ..., boot_id: _Optional[str] = ..., agent_version: _Optional[str] = ..., isolation: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[DeviceRecord, _Mapping]]] = ..., cpu_thousandths: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., pod: _Optional[str] = ..., host: _Optional[str] = ..., owner: _Optional[str] = ..., device_note: _Optional[str] = ..., draining: _Optional[bool] = ..., registered_at: _Optional[float] = ..., drain: _Optional[_Union[DrainRecord, _Mapping]] = ..., fence: _Optional[_Union[FenceRecord, _Mapping]] = ..., hold: _Optional[_Union[HoldRecord, _Mapping]] = ..., gang_network: _Optional[str] = ..., limits: _Optional[_Union[KeptLimitsRecord, _Mapping]] = ..., only_owner: _Optional[str] = ..., isolation_note: _Optional[str] = ..., setting_note: _Optional[str] = ..., networks: _Optional[_Iterable[str]] = ..., not_ready: _Optional[str] = ..., engine_note: _Optional[str] = ..., shared_roots: _Optional[_Iterable[str]] = ..., abilities: _Optional[_Iterable[str]] = ..., python_version: _Optional[str] = ..., data_bytes: _Optional[int] = ...) -> None: ...

class DrainRecord(_message.Message):
    __slots__ = ("asked_by", "reason", "asked_at", "move_at")
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    MOVE_AT_FIELD_NUMBER: _ClassVar[int]
    asked_by: str
    reason: str
    asked_at: float
    move_at: float
    def __init__(self, asked_by: _Optional[str] = ..., reason: _Optional[str] = ..., asked_at: _Optional[float] = ..., move_at: _Optional[float] = ...) -> None: ...

class FenceRecord(_message.Message):
    __slots__ = ("boot_id", "asked_by", "reason", "asked_at", "replicas")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    asked_by: str
    reason: str
    asked_at: float
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaKey]
    def __init__(self, boot_id: _Optional[str] = ..., asked_by: _Optional[str] = ..., reason: _Optional[str] = ..., asked_at: _Optional[float] = ..., replicas: _Optional[_Iterable[_Union[ReplicaKey, _Mapping]]] = ...) -> None: ...

class HoldRecord(_message.Message):
    __slots__ = ("found_at", "term", "revision", "replicas", "lifted_by", "foreign")
    FOUND_AT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LIFTED_BY_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_FIELD_NUMBER: _ClassVar[int]
    found_at: float
    term: int
    revision: int
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaKey]
    lifted_by: str
    foreign: _containers.RepeatedCompositeFieldContainer[ForeignReplicaRecord]
    def __init__(self, found_at: _Optional[float] = ..., term: _Optional[int] = ..., revision: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[ReplicaKey, _Mapping]]] = ..., lifted_by: _Optional[str] = ..., foreign: _Optional[_Iterable[_Union[ForeignReplicaRecord, _Mapping]]] = ...) -> None: ...

class ForeignReplicaRecord(_message.Message):
    __slots__ = ("replica", "session_name", "device_uuids", "started_at")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    SESSION_NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUIDS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    replica: ReplicaKey
    session_name: str
    device_uuids: _containers.RepeatedScalarFieldContainer[str]
    started_at: float
    def __init__(self, replica: _Optional[_Union[ReplicaKey, _Mapping]] = ..., session_name: _Optional[str] = ..., device_uuids: _Optional[_Iterable[str]] = ..., started_at: _Optional[float] = ...) -> None: ...

class ReplicaKey(_message.Message):
    __slots__ = ("session_id", "attempt", "rank")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    attempt: int
    rank: int
    def __init__(self, session_id: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class KeptLimitsRecord(_message.Message):
    __slots__ = ("memory", "cpus", "processes", "disk", "note")
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    memory: str
    cpus: str
    processes: str
    disk: str
    note: str
    def __init__(self, memory: _Optional[str] = ..., cpus: _Optional[str] = ..., processes: _Optional[str] = ..., disk: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class UserRecord(_message.Message):
    __slots__ = ("name", "role", "team", "created_at", "id", "removed_at", "kept_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    REMOVED_AT_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    team: str
    created_at: float
    id: str
    removed_at: float
    kept_bytes: int
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., team: _Optional[str] = ..., created_at: _Optional[float] = ..., id: _Optional[str] = ..., removed_at: _Optional[float] = ..., kept_bytes: _Optional[int] = ...) -> None: ...

class TokenRecord(_message.Message):
    __slots__ = ("user", "node", "expires_at", "created_at")
    USER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    user: str
    node: str
    expires_at: float
    created_at: float
    def __init__(self, user: _Optional[str] = ..., node: _Optional[str] = ..., expires_at: _Optional[float] = ..., created_at: _Optional[float] = ...) -> None: ...

class SshKeyRecord(_message.Message):
    __slots__ = ("user", "name", "public_key", "added_at", "used_at")
    USER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    ADDED_AT_FIELD_NUMBER: _ClassVar[int]
    USED_AT_FIELD_NUMBER: _ClassVar[int]
    user: str
    name: str
    public_key: str
    added_at: float
    used_at: float
    def __init__(self, user: _Optional[str] = ..., name: _Optional[str] = ..., public_key: _Optional[str] = ..., added_at: _Optional[float] = ..., used_at: _Optional[float] = ...) -> None: ...

class JoinTokenRecord(_message.Message):
    __slots__ = ("expires_at", "created_by")
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    expires_at: float
    created_by: str
    def __init__(self, expires_at: _Optional[float] = ..., created_by: _Optional[str] = ...) -> None: ...

class BarredKeyRecord(_message.Message):
    __slots__ = ("node", "barred_by", "barred_at")
    NODE_FIELD_NUMBER: _ClassVar[int]
    BARRED_BY_FIELD_NUMBER: _ClassVar[int]
    BARRED_AT_FIELD_NUMBER: _ClassVar[int]
    node: str
    barred_by: str
    barred_at: float
    def __init__(self, node: _Optional[str] = ..., barred_by: _Optional[str] = ..., barred_at: _Optional[float] = ...) -> None: ...

class SessionPointer(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class CounterRecord(_message.Message):
    __slots__ = ("last",)
    LAST_FIELD_NUMBER: _ClassVar[int]
    last: int
    def __init__(self, last: _Optional[int] = ...) -> None: ...

class SecretRecord(_message.Message):
    __slots__ = ("sealed", "key_id", "size_bytes", "created_at", "updated_at", "events", "registry_user")
    SEALED_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_USER_FIELD_NUMBER: _ClassVar[int]
    sealed: bytes
    key_id: str
    size_bytes: int
    created_at: float
    updated_at: float
    events: _containers.RepeatedScalarFieldContainer[str]
    registry_user: str
    def __init__(self, sealed: _Optional[bytes] = ..., key_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., created_at: _Optional[float] = ..., updated_at: _Optional[float] = ..., events: _Optional[_Iterable[str]] = ..., registry_user: _Optional[str] = ...) -> None: ...

class NoticeRecord(_message.Message):
    __slots__ = ("owner", "owner_id", "session_id", "event", "body", "recorded_at")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    RECORDED_AT_FIELD_NUMBER: _ClassVar[int]
    owner: str
    owner_id: str
    session_id: str
    event: str
    body: str
    recorded_at: float
    def __init__(self, owner: _Optional[str] = ..., owner_id: _Optional[str] = ..., session_id: _Optional[str] = ..., event: _Optional[str] = ..., body: _Optional[str] = ..., recorded_at: _Optional[float] = ...) -> None: ...

class ClusterRecord(_message.Message):
    __slots__ = ("id", "created_at", "coordination", "data_version", "written_by", "restores", "is_shared", "history", "objects", "history_mark", "objects_mark")
    ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    COORDINATION_FIELD_NUMBER: _ClassVar[int]
    DATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BY_FIELD_NUMBER: _ClassVar[int]
    RESTORES_FIELD_NUMBER: _ClassVar[int]
    IS_SHARED_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_MARK_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_MARK_FIELD_NUMBER: _ClassVar[int]
    id: str
    created_at: float
    coordination: str
    data_version: int
    written_by: str
    restores: _containers.RepeatedCompositeFieldContainer[RestoreRecord]
    is_shared: bool
    history: str
    objects: str
    history_mark: str
    objects_mark: str
    def __init__(self, id: _Optional[str] = ..., created_at: _Optional[float] = ..., coordination: _Optional[str] = ..., data_version: _Optional[int] = ..., written_by: _Optional[str] = ..., restores: _Optional[_Iterable[_Union[RestoreRecord, _Mapping]]] = ..., is_shared: _Optional[bool] = ..., history: _Optional[str] = ..., objects: _Optional[str] = ..., history_mark: _Optional[str] = ..., objects_mark: _Optional[str] = ...) -> None: ...

class RestoreRecord(_message.Message):
    __slots__ = ("after", "offset", "restored_at")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESTORED_AT_FIELD_NUMBER: _ClassVar[int]
    after: int
    offset: int
    restored_at: float
    def __init__(self, after: _Optional[int] = ..., offset: _Optional[int] = ..., restored_at: _Optional[float] = ...) -> None: ...

class SealedKeysRecord(_message.Message):
    __slots__ = ("sealed", "key_id")
    SEALED_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    sealed: bytes
    key_id: str
    def __init__(self, sealed: _Optional[bytes] = ..., key_id: _Optional[str] = ...) -> None: ...

class PlatformKeys(_message.Message):
    __slots__ = ("authority_certificate", "authority_key", "vault_keys")
    AUTHORITY_CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_KEY_FIELD_NUMBER: _ClassVar[int]
    VAULT_KEYS_FIELD_NUMBER: _ClassVar[int]
    authority_certificate: bytes
    authority_key: bytes
    vault_keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, authority_certificate: _Optional[bytes] = ..., authority_key: _Optional[bytes] = ..., vault_keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class MemberRecord(_message.Message):
    __slots__ = ("name", "version", "user_address", "agent_address", "local_address", "started_at", "instance", "settings", "findings", "jump_address")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    USER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    AGENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    JUMP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    user_address: str
    agent_address: str
    local_address: str
    started_at: float
    instance: str
    settings: _containers.ScalarMap[str, str]
    findings: _containers.RepeatedCompositeFieldContainer[FindingRecord]
    jump_address: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., user_address: _Optional[str] = ..., agent_address: _Optional[str] = ..., local_address: _Optional[str] = ..., started_at: _Optional[float] = ..., instance: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ..., findings: _Optional[_Iterable[_Union[FindingRecord, _Mapping]]] = ..., jump_address: _Optional[str] = ...) -> None: ...

class FindingRecord(_message.Message):
    __slots__ = ("name", "subject", "since", "evidence")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    subject: str
    since: float
    evidence: str
    def __init__(self, name: _Optional[str] = ..., subject: _Optional[str] = ..., since: _Optional[float] = ..., evidence: _Optional[str] = ...) -> None: ...

class ProjectRecord(_message.Message):
    __slots__ = ("name", "owner", "members", "created_at", "quota", "member_quota", "budget", "weight", "most_priority", "keep_checkpoints", "kept_bytes", "keep_files")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    MEMBER_QUOTA_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MOST_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    KEEP_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEEP_FILES_FIELD_NUMBER: _ClassVar[int]
    name: str
    owner: str
    members: _containers.RepeatedScalarFieldContainer[str]
    created_at: float
    quota: QuotaRecord
    member_quota: QuotaRecord
    budget: BudgetRecord
    weight: float
    most_priority: int
    keep_checkpoints: str
    kept_bytes: int
    keep_files: str
    def __init__(self, name: _Optional[str] = ..., owner: _Optional[str] = ..., members: _Optional[_Iterable[str]] = ..., created_at: _Optional[float] = ..., quota: _Optional[_Union[QuotaRecord, _Mapping]] = ..., member_quota: _Optional[_Union[QuotaRecord, _Mapping]] = ..., budget: _Optional[_Union[BudgetRecord, _Mapping]] = ..., weight: _Optional[float] = ..., most_priority: _Optional[int] = ..., keep_checkpoints: _Optional[str] = ..., kept_bytes: _Optional[int] = ..., keep_files: _Optional[str] = ...) -> None: ...

class QuotaRecord(_message.Message):
    __slots__ = ("gpu_thousandths", "cpu_thousandths", "memory_bytes", "sessions")
    GPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    CPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    gpu_thousandths: int
    cpu_thousandths: int
    memory_bytes: int
    sessions: int
    def __init__(self, gpu_thousandths: _Optional[int] = ..., cpu_thousandths: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., sessions: _Optional[int] = ...) -> None: ...

class TeamQuotaRecord(_message.Message):
    __slots__ = ("competition_id", "competition", "datasets", "gpu_thousandths", "merged")
    class MergedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    COMPETITION_ID_FIELD_NUMBER: _ClassVar[int]
    COMPETITION_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    GPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    MERGED_FIELD_NUMBER: _ClassVar[int]
    competition_id: str
    competition: str
    datasets: _containers.RepeatedScalarFieldContainer[str]
    gpu_thousandths: int
    merged: _containers.ScalarMap[str, str]
    def __init__(self, competition_id: _Optional[str] = ..., competition: _Optional[str] = ..., datasets: _Optional[_Iterable[str]] = ..., gpu_thousandths: _Optional[int] = ..., merged: _Optional[_Mapping[str, str]] = ...) -> None: ...

class BudgetRecord(_message.Message):
    __slots__ = ("gpu_seconds", "period_days", "anchor")
    GPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PERIOD_DAYS_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    gpu_seconds: float
    period_days: int
    anchor: float
    def __init__(self, gpu_seconds: _Optional[float] = ..., period_days: _Optional[int] = ..., anchor: _Optional[float] = ...) -> None: ...
