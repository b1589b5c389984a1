import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from nsml.v1 import resources_pb2 as _resources_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Dataset(_message.Message):
    __slots__ = ("name", "owner", "team", "visibility", "version", "digest", "size_bytes", "file_count", "message", "updated_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    owner: str
    team: str
    visibility: _resources_pb2.Visibility
    version: int
    digest: str
    size_bytes: int
    file_count: int
    message: str
    updated_at: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., owner: _Optional[str] = ..., team: _Optional[str] = ..., visibility: _Optional[_Union[_resources_pb2.Visibility, str]] = ..., version: _Optional[int] = ..., digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., file_count: _Optional[int] = ..., message: _Optional[str] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class CreateDatasetVersionRequest(_message.Message):
    __slots__ = ("name", "digest", "visibility", "message", "validate_only")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    visibility: _resources_pb2.Visibility
    message: str
    validate_only: bool
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., visibility: _Optional[_Union[_resources_pb2.Visibility, str]] = ..., message: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class CreateDatasetVersionResponse(_message.Message):
    __slots__ = ("dataset", "created")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    dataset: Dataset
    created: bool
    def __init__(self, dataset: _Optional[_Union[Dataset, _Mapping]] = ..., created: _Optional[bool] = ...) -> None: ...

class ListDatasetsRequest(_message.Message):
    __slots__ = ("name_glob", "page_size", "cursor")
    NAME_GLOB_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    name_glob: str
    page_size: int
    cursor: str
    def __init__(self, name_glob: _Optional[str] = ..., page_size: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListDatasetsResponse(_message.Message):
    __slots__ = ("datasets", "next_cursor")
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    datasets: _containers.RepeatedCompositeFieldContainer[Dataset]
    next_cursor: str
    def __init__(self, datasets: _Optional[_Iterable[_Union[Dataset, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class GetDatasetRequest(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class GetDatasetResponse(_message.Message):
    __slots__ = ("dataset",)
    DATASET_FIELD_NUMBER: _ClassVar[int]
    dataset: Dataset
    def __init__(self, dataset: _Optional[_Union[Dataset, _Mapping]] = ...) -> None: ...

class RemoveDatasetRequest(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class RemoveDatasetResponse(_message.Message):
    __slots__ = ("removed", "live_sessions")
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    LIVE_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    removed: int
    live_sessions: int
    def __init__(self, removed: _Optional[int] = ..., live_sessions: _Optional[int] = ...) -> None: ...
