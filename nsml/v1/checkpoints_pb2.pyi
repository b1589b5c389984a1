import datetime

from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CheckpointState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECKPOINT_STATE_UNSPECIFIED: _ClassVar[CheckpointState]
    CHECKPOINT_STATE_SAVED: _ClassVar[CheckpointState]
    CHECKPOINT_STATE_DURABLE: _ClassVar[CheckpointState]
    CHECKPOINT_STATE_LOST: _ClassVar[CheckpointState]
CHECKPOINT_STATE_UNSPECIFIED: CheckpointState
CHECKPOINT_STATE_SAVED: CheckpointState
CHECKPOINT_STATE_DURABLE: CheckpointState
CHECKPOINT_STATE_LOST: CheckpointState

class Checkpoint(_message.Message):
    __slots__ = ("name", "session", "state", "digest", "size_bytes", "file_count", "saved_at", "elapsed_s", "summary", "step", "why_lost", "attempt", "content_saved_at", "summary_names", "tags", "users", "hidden_users", "node")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SAVED_AT_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WHY_LOST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_SAVED_AT_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_NAMES_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_USERS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    name: str
    session: str
    state: CheckpointState
    digest: str
    size_bytes: int
    file_count: int
    saved_at: _timestamp_pb2.Timestamp
    elapsed_s: float
    summary: _struct_pb2.Struct
    step: float
    why_lost: str
    attempt: int
    content_saved_at: _timestamp_pb2.Timestamp
    summary_names: _containers.RepeatedScalarFieldContainer[str]
    tags: _containers.RepeatedScalarFieldContainer[str]
    users: _containers.RepeatedCompositeFieldContainer[CheckpointUser]
    hidden_users: int
    node: str
    def __init__(self, name: _Optional[str] = ..., session: _Optional[str] = ..., state: _Optional[_Union[CheckpointState, str]] = ..., digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., file_count: _Optional[int] = ..., saved_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., elapsed_s: _Optional[float] = ..., summary: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., step: _Optional[float] = ..., why_lost: _Optional[str] = ..., attempt: _Optional[int] = ..., content_saved_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., summary_names: _Optional[_Iterable[str]] = ..., tags: _Optional[_Iterable[str]] = ..., users: _Optional[_Iterable[_Union[CheckpointUser, _Mapping]]] = ..., hidden_users: _Optional[int] = ..., node: _Optional[str] = ...) -> None: ...

class CheckpointUser(_message.Message):
    __slots__ = ("session", "used_at")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    USED_AT_FIELD_NUMBER: _ClassVar[int]
    session: str
    used_at: _timestamp_pb2.Timestamp
    def __init__(self, session: _Optional[str] = ..., used_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ("session", "for_session", "page_size", "cursor")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FOR_SESSION_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    session: str
    for_session: str
    page_size: int
    cursor: str
    def __init__(self, session: _Optional[str] = ..., for_session: _Optional[str] = ..., page_size: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListCheckpointsResponse(_message.Message):
    __slots__ = ("checkpoints", "next_cursor", "keep", "removed_count", "removed_bytes")
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    REMOVED_COUNT_FIELD_NUMBER: _ClassVar[int]
    REMOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    next_cursor: str
    keep: str
    removed_count: int
    removed_bytes: int
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ..., next_cursor: _Optional[str] = ..., keep: _Optional[str] = ..., removed_count: _Optional[int] = ..., removed_bytes: _Optional[int] = ...) -> None: ...

class GetCheckpointRequest(_message.Message):
    __slots__ = ("session", "name", "for_session")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FOR_SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    name: str
    for_session: str
    def __init__(self, session: _Optional[str] = ..., name: _Optional[str] = ..., for_session: _Optional[str] = ...) -> None: ...

class GetCheckpointResponse(_message.Message):
    __slots__ = ("checkpoint",)
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: Checkpoint
    def __init__(self, checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ...) -> None: ...

class CommitCheckpointRequest(_message.Message):
    __slots__ = ("session_id", "attempt", "name", "digest", "size_bytes", "file_count", "saved_at", "why_lost", "held")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SAVED_AT_FIELD_NUMBER: _ClassVar[int]
    WHY_LOST_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    attempt: int
    name: str
    digest: str
    size_bytes: int
    file_count: int
    saved_at: _timestamp_pb2.Timestamp
    why_lost: str
    held: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session_id: _Optional[str] = ..., attempt: _Optional[int] = ..., name: _Optional[str] = ..., digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., file_count: _Optional[int] = ..., saved_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., why_lost: _Optional[str] = ..., held: _Optional[_Iterable[str]] = ...) -> None: ...

class CommitCheckpointResponse(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, removed: _Optional[_Iterable[str]] = ...) -> None: ...

class RemoveCheckpointsRequest(_message.Message):
    __slots__ = ("session", "names", "including_tagged")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    INCLUDING_TAGGED_FIELD_NUMBER: _ClassVar[int]
    session: str
    names: _containers.RepeatedScalarFieldContainer[str]
    including_tagged: bool
    def __init__(self, session: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., including_tagged: _Optional[bool] = ...) -> None: ...

class RemoveCheckpointsResponse(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, removed: _Optional[_Iterable[str]] = ...) -> None: ...

class TagCheckpointRequest(_message.Message):
    __slots__ = ("session", "name", "tag")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    session: str
    name: str
    tag: str
    def __init__(self, session: _Optional[str] = ..., name: _Optional[str] = ..., tag: _Optional[str] = ...) -> None: ...

class TagCheckpointResponse(_message.Message):
    __slots__ = ("checkpoint", "moved_from")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    MOVED_FROM_FIELD_NUMBER: _ClassVar[int]
    checkpoint: Checkpoint
    moved_from: str
    def __init__(self, checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., moved_from: _Optional[str] = ...) -> None: ...

class UntagCheckpointRequest(_message.Message):
    __slots__ = ("session", "tag")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    session: str
    tag: str
    def __init__(self, session: _Optional[str] = ..., tag: _Optional[str] = ...) -> None: ...

class UntagCheckpointResponse(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...
