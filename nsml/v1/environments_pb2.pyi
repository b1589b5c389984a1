from nsml.v1 import sessions_pb2 as _sessions_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

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

class RecordEnvironmentLockResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
