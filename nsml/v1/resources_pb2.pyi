import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Visibility(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VISIBILITY_UNSPECIFIED: _ClassVar[Visibility]
    VISIBILITY_PRIVATE: _ClassVar[Visibility]
    VISIBILITY_TEAM: _ClassVar[Visibility]
    VISIBILITY_PUBLIC: _ClassVar[Visibility]

class Isolation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ISOLATION_UNSPECIFIED: _ClassVar[Isolation]
    ISOLATION_NONE: _ClassVar[Isolation]
    ISOLATION_USER: _ClassVar[Isolation]
    ISOLATION_NAMESPACE: _ClassVar[Isolation]
    ISOLATION_CONTAINER: _ClassVar[Isolation]

class Network(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NETWORK_UNSPECIFIED: _ClassVar[Network]
    NETWORK_OWN: _ClassVar[Network]
    NETWORK_HOST: _ClassVar[Network]
    NETWORK_NONE: _ClassVar[Network]

class Keeping(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEEPING_UNSPECIFIED: _ClassVar[Keeping]
    KEEPING_NONE: _ClassVar[Keeping]
    KEEPING_WATCHED: _ClassVar[Keeping]
    KEEPING_GROUP: _ClassVar[Keeping]

class ImageState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IMAGE_STATE_UNSPECIFIED: _ClassVar[ImageState]
    IMAGE_STATE_PULLING: _ClassVar[ImageState]
    IMAGE_STATE_PRESENT: _ClassVar[ImageState]
    IMAGE_STATE_FAILED: _ClassVar[ImageState]
    IMAGE_STATE_REMOVED: _ClassVar[ImageState]
    IMAGE_STATE_ABSENT: _ClassVar[ImageState]
    IMAGE_STATE_KEPT: _ClassVar[ImageState]

class EnvironmentBuildState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENVIRONMENT_BUILD_STATE_UNSPECIFIED: _ClassVar[EnvironmentBuildState]
    ENVIRONMENT_BUILD_STATE_UNKNOWN: _ClassVar[EnvironmentBuildState]
    ENVIRONMENT_BUILD_STATE_RUNNING: _ClassVar[EnvironmentBuildState]
    ENVIRONMENT_BUILD_STATE_DONE: _ClassVar[EnvironmentBuildState]
    ENVIRONMENT_BUILD_STATE_FAILED: _ClassVar[EnvironmentBuildState]
VISIBILITY_UNSPECIFIED: Visibility
VISIBILITY_PRIVATE: Visibility
VISIBILITY_TEAM: Visibility
VISIBILITY_PUBLIC: Visibility
ISOLATION_UNSPECIFIED: Isolation
ISOLATION_NONE: Isolation
ISOLATION_USER: Isolation
ISOLATION_NAMESPACE: Isolation
ISOLATION_CONTAINER: Isolation
NETWORK_UNSPECIFIED: Network
NETWORK_OWN: Network
NETWORK_HOST: Network
NETWORK_NONE: Network
KEEPING_UNSPECIFIED: Keeping
KEEPING_NONE: Keeping
KEEPING_WATCHED: Keeping
KEEPING_GROUP: Keeping
IMAGE_STATE_UNSPECIFIED: ImageState
IMAGE_STATE_PULLING: ImageState
IMAGE_STATE_PRESENT: ImageState
IMAGE_STATE_FAILED: ImageState
IMAGE_STATE_REMOVED: ImageState
IMAGE_STATE_ABSENT: ImageState
IMAGE_STATE_KEPT: ImageState
ENVIRONMENT_BUILD_STATE_UNSPECIFIED: EnvironmentBuildState
ENVIRONMENT_BUILD_STATE_UNKNOWN: EnvironmentBuildState
ENVIRONMENT_BUILD_STATE_RUNNING: EnvironmentBuildState
ENVIRONMENT_BUILD_STATE_DONE: EnvironmentBuildState
ENVIRONMENT_BUILD_STATE_FAILED: EnvironmentBuildState

class Resources(_message.Message):
    __slots__ = ("gpu_thousandths", "cpu_thousandths", "memory_bytes")
    GPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    CPU_THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    gpu_thousandths: int
    cpu_thousandths: int
    memory_bytes: int
    def __init__(self, gpu_thousandths: _Optional[int] = ..., cpu_thousandths: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class Device(_message.Message):
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

class DeviceSample(_message.Message):
    __slots__ = ("uuid", "utilization_percent", "memory_used_bytes", "power_watts", "temperature_celsius", "clock_mhz", "memory_clock_mhz", "ecc_corrected", "ecc_uncorrected", "last_xid", "process_count", "throttled")
    UUID_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MHZ_FIELD_NUMBER: _ClassVar[int]
    MEMORY_CLOCK_MHZ_FIELD_NUMBER: _ClassVar[int]
    ECC_CORRECTED_FIELD_NUMBER: _ClassVar[int]
    ECC_UNCORRECTED_FIELD_NUMBER: _ClassVar[int]
    LAST_XID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    utilization_percent: float
    memory_used_bytes: int
    power_watts: float
    temperature_celsius: float
    clock_mhz: int
    memory_clock_mhz: int
    ecc_corrected: int
    ecc_uncorrected: int
    last_xid: int
    process_count: int
    throttled: str
    def __init__(self, uuid: _Optional[str] = ..., utilization_percent: _Optional[float] = ..., memory_used_bytes: _Optional[int] = ..., power_watts: _Optional[float] = ..., temperature_celsius: _Optional[float] = ..., clock_mhz: _Optional[int] = ..., memory_clock_mhz: _Optional[int] = ..., ecc_corrected: _Optional[int] = ..., ecc_uncorrected: _Optional[int] = ..., last_xid: _Optional[int] = ..., process_count: _Optional[int] = ..., throttled: _Optional[str] = ...) -> None: ...

class KeptLimits(_message.Message):
    __slots__ = ("memory", "cpus", "processes", "disk", "note")
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    memory: Keeping
    cpus: Keeping
    processes: Keeping
    disk: Keeping
    note: str
    def __init__(self, memory: _Optional[_Union[Keeping, str]] = ..., cpus: _Optional[_Union[Keeping, str]] = ..., processes: _Optional[_Union[Keeping, str]] = ..., disk: _Optional[_Union[Keeping, str]] = ..., note: _Optional[str] = ...) -> None: ...

class NodeEnvironment(_message.Message):
    __slots__ = ("key", "owner", "owner_id", "for_all", "package_count", "bytes", "shared_bytes", "built_at", "used_at", "sessions", "hidden_sessions")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    FOR_ALL_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUILT_AT_FIELD_NUMBER: _ClassVar[int]
    USED_AT_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    key: str
    owner: str
    owner_id: str
    for_all: bool
    package_count: int
    bytes: int
    shared_bytes: int
    built_at: _timestamp_pb2.Timestamp
    used_at: _timestamp_pb2.Timestamp
    sessions: _containers.RepeatedScalarFieldContainer[str]
    hidden_sessions: int
    def __init__(self, key: _Optional[str] = ..., owner: _Optional[str] = ..., owner_id: _Optional[str] = ..., for_all: _Optional[bool] = ..., package_count: _Optional[int] = ..., bytes: _Optional[int] = ..., shared_bytes: _Optional[int] = ..., built_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., used_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., sessions: _Optional[_Iterable[str]] = ..., hidden_sessions: _Optional[int] = ...) -> None: ...

class EnvironmentFiles(_message.Message):
    __slots__ = ("texts", "entry", "refresh", "dockerfile", "build_arguments", "context")
    class TextsEntry(_message.Message):
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
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    REFRESH_FIELD_NUMBER: _ClassVar[int]
    DOCKERFILE_FIELD_NUMBER: _ClassVar[int]
    BUILD_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.ScalarMap[str, str]
    entry: str
    refresh: bool
    dockerfile: str
    build_arguments: _containers.ScalarMap[str, str]
    context: _containers.RepeatedCompositeFieldContainer[ContextFile]
    def __init__(self, texts: _Optional[_Mapping[str, str]] = ..., entry: _Optional[str] = ..., refresh: _Optional[bool] = ..., dockerfile: _Optional[str] = ..., build_arguments: _Optional[_Mapping[str, str]] = ..., context: _Optional[_Iterable[_Union[ContextFile, _Mapping]]] = ...) -> None: ...

class ContextFile(_message.Message):
    __slots__ = ("path", "content", "executable")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    path: str
    content: bytes
    executable: bool
    def __init__(self, path: _Optional[str] = ..., content: _Optional[bytes] = ..., executable: _Optional[bool] = ...) -> None: ...

class EnvironmentBuild(_message.Message):
    __slots__ = ("build_id", "state", "words", "log", "log_offset", "key", "was_there", "lock")
    BUILD_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    WAS_THERE_FIELD_NUMBER: _ClassVar[int]
    LOCK_FIELD_NUMBER: _ClassVar[int]
    build_id: str
    state: EnvironmentBuildState
    words: str
    log: bytes
    log_offset: int
    key: str
    was_there: bool
    lock: str
    def __init__(self, build_id: _Optional[str] = ..., state: _Optional[_Union[EnvironmentBuildState, str]] = ..., words: _Optional[str] = ..., log: _Optional[bytes] = ..., log_offset: _Optional[int] = ..., key: _Optional[str] = ..., was_there: _Optional[bool] = ..., lock: _Optional[str] = ...) -> None: ...

class ImageStatus(_message.Message):
    __slots__ = ("image", "state", "words", "bytes", "fetched")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    image: str
    state: ImageState
    words: str
    bytes: int
    fetched: bool
    def __init__(self, image: _Optional[str] = ..., state: _Optional[_Union[ImageState, str]] = ..., words: _Optional[str] = ..., bytes: _Optional[int] = ..., fetched: _Optional[bool] = ...) -> None: ...
