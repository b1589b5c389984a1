import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from nsml.v1 import artifacts_pb2 as _artifacts_pb2
from nsml.v1 import checkpoints_pb2 as _checkpoints_pb2
from nsml.v1 import media_pb2 as _media_pb2
from nsml.v1 import sessions_pb2 as _sessions_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadSessionStreamsRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class ReadSessionStreamsResponse(_message.Message):
    __slots__ = ("part",)
    PART_FIELD_NUMBER: _ClassVar[int]
    part: StreamPart
    def __init__(self, part: _Optional[_Union[StreamPart, _Mapping]] = ...) -> None: ...

class StreamPart(_message.Message):
    __slots__ = ("attempt", "rank", "writer", "is_log", "first", "last", "records", "data", "is_lost", "received_at")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    IS_LOG_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    IS_LOST_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_AT_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    rank: int
    writer: int
    is_log: bool
    first: int
    last: int
    records: _containers.RepeatedScalarFieldContainer[bytes]
    data: bytes
    is_lost: bool
    received_at: _timestamp_pb2.Timestamp
    def __init__(self, attempt: _Optional[int] = ..., rank: _Optional[int] = ..., writer: _Optional[int] = ..., is_log: _Optional[bool] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., records: _Optional[_Iterable[bytes]] = ..., data: _Optional[bytes] = ..., is_lost: _Optional[bool] = ..., received_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class RestoredSession(_message.Message):
    __slots__ = ("session", "platform", "environment_lock", "validate_only")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_LOCK_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    session: _sessions_pb2.Session
    platform: str
    environment_lock: str
    validate_only: bool
    def __init__(self, session: _Optional[_Union[_sessions_pb2.Session, _Mapping]] = ..., platform: _Optional[str] = ..., environment_lock: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class RestoreSessionRequest(_message.Message):
    __slots__ = ("session", "checkpoint", "artifact", "media", "part", "is_whole")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    session: RestoredSession
    checkpoint: _checkpoints_pb2.Checkpoint
    artifact: _artifacts_pb2.Artifact
    media: _media_pb2.Media
    part: StreamPart
    is_whole: bool
    def __init__(self, session: _Optional[_Union[RestoredSession, _Mapping]] = ..., checkpoint: _Optional[_Union[_checkpoints_pb2.Checkpoint, _Mapping]] = ..., artifact: _Optional[_Union[_artifacts_pb2.Artifact, _Mapping]] = ..., media: _Optional[_Union[_media_pb2.Media, _Mapping]] = ..., part: _Optional[_Union[StreamPart, _Mapping]] = ..., is_whole: _Optional[bool] = ...) -> None: ...

class RestoreSessionResponse(_message.Message):
    __slots__ = ("session", "was_there")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    WAS_THERE_FIELD_NUMBER: _ClassVar[int]
    session: _sessions_pb2.Session
    was_there: bool
    def __init__(self, session: _Optional[_Union[_sessions_pb2.Session, _Mapping]] = ..., was_there: _Optional[bool] = ...) -> None: ...
