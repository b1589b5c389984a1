from nsml.v1 import resources_pb2 as _resources_pb2
from nsml.v1 import sessions_pb2 as _sessions_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BuildEnvironmentRequest(_message.Message):
    __slots__ = ("node", "files")
    NODE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    node: str
    files: _resources_pb2.EnvironmentFiles
    def __init__(self, node: _Optional[str] = ..., files: _Optional[_Union[_resources_pb2.EnvironmentFiles, _Mapping]] = ...) -> None: ...

class BuildEnvironmentResponse(_message.Message):
    __slots__ = ("build",)
    BUILD_FIELD_NUMBER: _ClassVar[int]
    build: _resources_pb2.EnvironmentBuild
    def __init__(self, build: _Optional[_Union[_resources_pb2.EnvironmentBuild, _Mapping]] = ...) -> None: ...

class GetEnvironmentBuildRequest(_message.Message):
    __slots__ = ("node", "build_id", "log_offset", "cancel")
    NODE_FIELD_NUMBER: _ClassVar[int]
    BUILD_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    node: str
    build_id: str
    log_offset: int
    cancel: bool
    def __init__(self, node: _Optional[str] = ..., build_id: _Optional[str] = ..., log_offset: _Optional[int] = ..., cancel: _Optional[bool] = ...) -> None: ...

class GetEnvironmentBuildResponse(_message.Message):
    __slots__ = ("build",)
    BUILD_FIELD_NUMBER: _ClassVar[int]
    build: _resources_pb2.EnvironmentBuild
    def __init__(self, build: _Optional[_Union[_resources_pb2.EnvironmentBuild, _Mapping]] = ...) -> None: ...

class ListEnvironmentsRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class ListEnvironmentsResponse(_message.Message):
    __slots__ = ("environments",)
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    environments: _containers.RepeatedCompositeFieldContainer[_resources_pb2.NodeEnvironment]
    def __init__(self, environments: _Optional[_Iterable[_Union[_resources_pb2.NodeEnvironment, _Mapping]]] = ...) -> None: ...

class RemoveEnvironmentRequest(_message.Message):
    __slots__ = ("node", "key")
    NODE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    node: str
    key: str
    def __init__(self, node: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class RemoveEnvironmentResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetEnvironmentLockRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class GetEnvironmentLockResponse(_message.Message):
    __slots__ = ("lock",)
    LOCK_FIELD_NUMBER: _ClassVar[int]
    lock: _sessions_pb2.EnvironmentLock
    def __init__(self, lock: _Optional[_Union[_sessions_pb2.EnvironmentLock, _Mapping]] = ...) -> None: ...

class RecordEnvironmentLockRequest(_message.Message):
    __slots__ = ("session_id", "attempt", "content")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    attempt: int
    content: str
    def __init__(self, session_id: _Optional[str] = ..., attempt: _Optional[int] = ..., content: _Optional[str] = ...) -> None: ...

class ProposeEnvironmentLockRequest(_message.Message):
    __slots__ = ("session_id", "attempt", "content")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    attempt: int
    content: str
    def __init__(self, session_id: _Optional[str] = ..., attempt: _Optional[int] = ..., content: _Optional[str] = ...) -> None: ...

class ProposeEnvironmentLockResponse(_message.Message):
    __slots__ = ("lock",)
    LOCK_FIELD_NUMBER: _ClassVar[int]
    lock: _sessions_pb2.EnvironmentLock
    def __init__(self, lock: _Optional[_Union[_sessions_pb2.EnvironmentLock, _Mapping]] = ...) -> None: ...

class RecordEnvironmentLockResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
