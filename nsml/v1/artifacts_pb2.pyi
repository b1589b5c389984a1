import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ArtifactState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ARTIFACT_STATE_UNSPECIFIED: _ClassVar[ArtifactState]
    ARTIFACT_STATE_SAVED: _ClassVar[ArtifactState]
    ARTIFACT_STATE_DURABLE: _ClassVar[ArtifactState]
    ARTIFACT_STATE_LOST: _ClassVar[ArtifactState]
ARTIFACT_STATE_UNSPECIFIED: ArtifactState
ARTIFACT_STATE_SAVED: ArtifactState
ARTIFACT_STATE_DURABLE: ArtifactState
ARTIFACT_STATE_LOST: ArtifactState

class Artifact(_message.Message):
    __slots__ = ("name", "version", "session", "state", "digest", "size_bytes", "file_count", "saved_at", "step", "attempt", "rank", "node", "why_lost", "note", "expires_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SAVED_AT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    WHY_LOST_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    session: str
    state: ArtifactState
    digest: str
    size_bytes: int
    file_count: int
    saved_at: _timestamp_pb2.Timestamp
    step: float
    attempt: int
    rank: int
    node: str
    why_lost: str
    note: str
    expires_at: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., session: _Optional[str] = ..., state: _Optional[_Union[ArtifactState, str]] = ..., digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., file_count: _Optional[int] = ..., saved_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., step: _Optional[float] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., node: _Optional[str] = ..., why_lost: _Optional[str] = ..., note: _Optional[str] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListArtifactsRequest(_message.Message):
    __slots__ = ("session", "name", "page_size", "cursor")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    session: str
    name: str
    page_size: int
    cursor: str
    def __init__(self, session: _Optional[str] = ..., name: _Optional[str] = ..., page_size: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListArtifactsResponse(_message.Message):
    __slots__ = ("artifacts", "next_cursor", "removed", "expired")
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    artifacts: _containers.RepeatedCompositeFieldContainer[Artifact]
    next_cursor: str
    removed: int
    expired: int
    def __init__(self, artifacts: _Optional[_Iterable[_Union[Artifact, _Mapping]]] = ..., next_cursor: _Optional[str] = ..., removed: _Optional[int] = ..., expired: _Optional[int] = ...) -> None: ...

class FindArtifactRequest(_message.Message):
    __slots__ = ("session_id", "name")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    name: str
    def __init__(self, session_id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class FindArtifactResponse(_message.Message):
    __slots__ = ("artifact",)
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    artifact: Artifact
    def __init__(self, artifact: _Optional[_Union[Artifact, _Mapping]] = ...) -> None: ...

class ArtifactVersion(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class RemoveArtifactsRequest(_message.Message):
    __slots__ = ("session", "versions")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    session: str
    versions: _containers.RepeatedCompositeFieldContainer[ArtifactVersion]
    def __init__(self, session: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[ArtifactVersion, _Mapping]]] = ...) -> None: ...

class RemoveArtifactsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommitArtifactRequest(_message.Message):
    __slots__ = ("session_id", "attempt", "rank", "folder", "name", "digest", "size_bytes", "file_count", "saved_at", "step", "why_lost", "left_out")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SAVED_AT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WHY_LOST_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    attempt: int
    rank: int
    folder: str
    name: str
    digest: str
    size_bytes: int
    file_count: int
    saved_at: _timestamp_pb2.Timestamp
    step: float
    why_lost: str
    left_out: str
    def __init__(self, session_id: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., folder: _Optional[str] = ..., name: _Optional[str] = ..., digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., file_count: _Optional[int] = ..., saved_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., step: _Optional[float] = ..., why_lost: _Optional[str] = ..., left_out: _Optional[str] = ...) -> None: ...

class CommitArtifactResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...
