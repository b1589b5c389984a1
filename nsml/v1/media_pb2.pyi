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

class MediaState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEDIA_STATE_UNSPECIFIED: _ClassVar[MediaState]
    MEDIA_STATE_SAVED: _ClassVar[MediaState]
    MEDIA_STATE_DURABLE: _ClassVar[MediaState]
    MEDIA_STATE_LOST: _ClassVar[MediaState]
MEDIA_STATE_UNSPECIFIED: MediaState
MEDIA_STATE_SAVED: MediaState
MEDIA_STATE_DURABLE: MediaState
MEDIA_STATE_LOST: MediaState

class Media(_message.Message):
    __slots__ = ("name", "kind", "state", "time", "step", "attempt", "rank", "content_type", "caption", "facts", "size_bytes", "root", "file", "why_lost")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    CAPTION_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    WHY_LOST_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    state: MediaState
    time: _timestamp_pb2.Timestamp
    step: float
    attempt: int
    rank: int
    content_type: str
    caption: str
    facts: _struct_pb2.Struct
    size_bytes: int
    root: str
    file: str
    why_lost: str
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., state: _Optional[_Union[MediaState, str]] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., step: _Optional[float] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., content_type: _Optional[str] = ..., caption: _Optional[str] = ..., facts: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., size_bytes: _Optional[int] = ..., root: _Optional[str] = ..., file: _Optional[str] = ..., why_lost: _Optional[str] = ...) -> None: ...

class ListMediaRequest(_message.Message):
    __slots__ = ("session", "names", "kind", "first_step", "last_step", "page_size", "cursor")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    session: str
    names: _containers.RepeatedScalarFieldContainer[str]
    kind: str
    first_step: float
    last_step: float
    page_size: int
    cursor: str
    def __init__(self, session: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., kind: _Optional[str] = ..., first_step: _Optional[float] = ..., last_step: _Optional[float] = ..., page_size: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListMediaResponse(_message.Message):
    __slots__ = ("media", "next_cursor", "session", "is_full")
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    IS_FULL_FIELD_NUMBER: _ClassVar[int]
    media: _containers.RepeatedCompositeFieldContainer[Media]
    next_cursor: str
    session: str
    is_full: bool
    def __init__(self, media: _Optional[_Iterable[_Union[Media, _Mapping]]] = ..., next_cursor: _Optional[str] = ..., session: _Optional[str] = ..., is_full: _Optional[bool] = ...) -> None: ...

class MediaContent(_message.Message):
    __slots__ = ("file", "size_bytes", "why_lost")
    FILE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WHY_LOST_FIELD_NUMBER: _ClassVar[int]
    file: str
    size_bytes: int
    why_lost: str
    def __init__(self, file: _Optional[str] = ..., size_bytes: _Optional[int] = ..., why_lost: _Optional[str] = ...) -> None: ...

class CommitMediaRequest(_message.Message):
    __slots__ = ("session_id", "attempt", "rank", "root", "files")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    attempt: int
    rank: int
    root: str
    files: _containers.RepeatedCompositeFieldContainer[MediaContent]
    def __init__(self, session_id: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., root: _Optional[str] = ..., files: _Optional[_Iterable[_Union[MediaContent, _Mapping]]] = ...) -> None: ...

class CommitMediaResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
