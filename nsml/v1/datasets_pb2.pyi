import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from nsml.v1 import resources_pb2 as _resources_pb2
from nsml.v1 import sessions_pb2 as _sessions_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PartAccess(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PART_ACCESS_UNSPECIFIED: _ClassVar[PartAccess]
    PART_ACCESS_OPEN: _ClassVar[PartAccess]
    PART_ACCESS_OWNER: _ClassVar[PartAccess]
    PART_ACCESS_HIDDEN: _ClassVar[PartAccess]
PART_ACCESS_UNSPECIFIED: PartAccess
PART_ACCESS_OPEN: PartAccess
PART_ACCESS_OWNER: PartAccess
PART_ACCESS_HIDDEN: PartAccess

class Dataset(_message.Message):
    __slots__ = ("name", "owner", "team", "visibility", "version", "digest", "size_bytes", "file_count", "message", "updated_at", "description", "tags", "version_count", "last_used_at", "live_sessions", "removed_at", "restorable_until", "parts", "in_place", "lineage")
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
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    VERSION_COUNT_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_AT_FIELD_NUMBER: _ClassVar[int]
    LIVE_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_AT_FIELD_NUMBER: _ClassVar[int]
    RESTORABLE_UNTIL_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    IN_PLACE_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
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
    description: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    version_count: int
    last_used_at: _timestamp_pb2.Timestamp
    live_sessions: int
    removed_at: _timestamp_pb2.Timestamp
    restorable_until: _timestamp_pb2.Timestamp
    parts: _containers.RepeatedCompositeFieldContainer[DatasetPart]
    in_place: str
    lineage: DatasetLineage
    def __init__(self, name: _Optional[str] = ..., owner: _Optional[str] = ..., team: _Optional[str] = ..., visibility: _Optional[_Union[_resources_pb2.Visibility, str]] = ..., version: _Optional[int] = ..., digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., file_count: _Optional[int] = ..., message: _Optional[str] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., description: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., version_count: _Optional[int] = ..., last_used_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., live_sessions: _Optional[int] = ..., removed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., restorable_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., parts: _Optional[_Iterable[_Union[DatasetPart, _Mapping]]] = ..., in_place: _Optional[str] = ..., lineage: _Optional[_Union[DatasetLineage, _Mapping]] = ...) -> None: ...

class DatasetLineage(_message.Message):
    __slots__ = ("session", "session_id", "attempt", "code", "environment_lock", "command", "datasets", "withheld_datasets")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_LOCK_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_DATASETS_FIELD_NUMBER: _ClassVar[int]
    session: str
    session_id: str
    attempt: int
    code: str
    environment_lock: str
    command: _containers.RepeatedScalarFieldContainer[str]
    datasets: _containers.RepeatedCompositeFieldContainer[_sessions_pb2.DatasetReference]
    withheld_datasets: int
    def __init__(self, session: _Optional[str] = ..., session_id: _Optional[str] = ..., attempt: _Optional[int] = ..., code: _Optional[str] = ..., environment_lock: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., datasets: _Optional[_Iterable[_Union[_sessions_pb2.DatasetReference, _Mapping]]] = ..., withheld_datasets: _Optional[int] = ...) -> None: ...

class DatasetPart(_message.Message):
    __slots__ = ("path", "access", "digest", "size_bytes", "file_count")
    PATH_FIELD_NUMBER: _ClassVar[int]
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_COUNT_FIELD_NUMBER: _ClassVar[int]
    path: str
    access: PartAccess
    digest: str
    size_bytes: int
    file_count: int
    def __init__(self, path: _Optional[str] = ..., access: _Optional[_Union[PartAccess, str]] = ..., digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., file_count: _Optional[int] = ...) -> None: ...

class DatasetUse(_message.Message):
    __slots__ = ("live_sessions", "queued_sessions", "names", "ended_sessions", "ended_names")
    LIVE_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    ENDED_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    ENDED_NAMES_FIELD_NUMBER: _ClassVar[int]
    live_sessions: int
    queued_sessions: int
    names: _containers.RepeatedScalarFieldContainer[str]
    ended_sessions: int
    ended_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, live_sessions: _Optional[int] = ..., queued_sessions: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., ended_sessions: _Optional[int] = ..., ended_names: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateDatasetVersionRequest(_message.Message):
    __slots__ = ("name", "digest", "visibility", "message", "validate_only", "parts", "in_place", "in_place_bytes", "in_place_files")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    IN_PLACE_FIELD_NUMBER: _ClassVar[int]
    IN_PLACE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IN_PLACE_FILES_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    visibility: _resources_pb2.Visibility
    message: str
    validate_only: bool
    parts: _containers.RepeatedCompositeFieldContainer[DatasetPart]
    in_place: str
    in_place_bytes: int
    in_place_files: int
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., visibility: _Optional[_Union[_resources_pb2.Visibility, str]] = ..., message: _Optional[str] = ..., validate_only: _Optional[bool] = ..., parts: _Optional[_Iterable[_Union[DatasetPart, _Mapping]]] = ..., in_place: _Optional[str] = ..., in_place_bytes: _Optional[int] = ..., in_place_files: _Optional[int] = ...) -> None: ...

class CreateDatasetVersionResponse(_message.Message):
    __slots__ = ("dataset", "created")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    dataset: Dataset
    created: bool
    def __init__(self, dataset: _Optional[_Union[Dataset, _Mapping]] = ..., created: _Optional[bool] = ...) -> None: ...

class ListDatasetsRequest(_message.Message):
    __slots__ = ("name_glob", "page_size", "cursor", "words", "removed")
    NAME_GLOB_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    name_glob: str
    page_size: int
    cursor: str
    words: _containers.RepeatedScalarFieldContainer[str]
    removed: bool
    def __init__(self, name_glob: _Optional[str] = ..., page_size: _Optional[int] = ..., cursor: _Optional[str] = ..., words: _Optional[_Iterable[str]] = ..., removed: _Optional[bool] = ...) -> None: ...

class ListDatasetsResponse(_message.Message):
    __slots__ = ("datasets", "next_cursor")
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    datasets: _containers.RepeatedCompositeFieldContainer[Dataset]
    next_cursor: str
    def __init__(self, datasets: _Optional[_Iterable[_Union[Dataset, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class GetDatasetRequest(_message.Message):
    __slots__ = ("name", "version", "tag")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    tag: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., tag: _Optional[str] = ...) -> None: ...

class GetDatasetResponse(_message.Message):
    __slots__ = ("dataset", "use")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    dataset: Dataset
    use: DatasetUse
    def __init__(self, dataset: _Optional[_Union[Dataset, _Mapping]] = ..., use: _Optional[_Union[DatasetUse, _Mapping]] = ...) -> None: ...

class ListDatasetVersionsRequest(_message.Message):
    __slots__ = ("name", "with_removed", "page_size", "cursor")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WITH_REMOVED_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    with_removed: bool
    page_size: int
    cursor: str
    def __init__(self, name: _Optional[str] = ..., with_removed: _Optional[bool] = ..., page_size: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListDatasetVersionsResponse(_message.Message):
    __slots__ = ("versions", "next_cursor")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[Dataset]
    next_cursor: str
    def __init__(self, versions: _Optional[_Iterable[_Union[Dataset, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class UpdateDatasetRequest(_message.Message):
    __slots__ = ("name", "visibility", "description", "parts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    visibility: _resources_pb2.Visibility
    description: str
    parts: _containers.RepeatedCompositeFieldContainer[DatasetPart]
    def __init__(self, name: _Optional[str] = ..., visibility: _Optional[_Union[_resources_pb2.Visibility, str]] = ..., description: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[DatasetPart, _Mapping]]] = ...) -> None: ...

class UpdateDatasetResponse(_message.Message):
    __slots__ = ("dataset",)
    DATASET_FIELD_NUMBER: _ClassVar[int]
    dataset: Dataset
    def __init__(self, dataset: _Optional[_Union[Dataset, _Mapping]] = ...) -> None: ...

class TagDatasetVersionRequest(_message.Message):
    __slots__ = ("name", "version", "tag", "new_tag")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    NEW_TAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    tag: str
    new_tag: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., tag: _Optional[str] = ..., new_tag: _Optional[str] = ...) -> None: ...

class TagDatasetVersionResponse(_message.Message):
    __slots__ = ("dataset", "version_before")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    VERSION_BEFORE_FIELD_NUMBER: _ClassVar[int]
    dataset: Dataset
    version_before: int
    def __init__(self, dataset: _Optional[_Union[Dataset, _Mapping]] = ..., version_before: _Optional[int] = ...) -> None: ...

class UntagDatasetVersionRequest(_message.Message):
    __slots__ = ("name", "tag")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    tag: str
    def __init__(self, name: _Optional[str] = ..., tag: _Optional[str] = ...) -> None: ...

class UntagDatasetVersionResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class RemoveDatasetRequest(_message.Message):
    __slots__ = ("name", "version", "tag")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    tag: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., tag: _Optional[str] = ...) -> None: ...

class RemoveDatasetResponse(_message.Message):
    __slots__ = ("removed", "live_sessions", "restorable_until")
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    LIVE_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    RESTORABLE_UNTIL_FIELD_NUMBER: _ClassVar[int]
    removed: int
    live_sessions: int
    restorable_until: _timestamp_pb2.Timestamp
    def __init__(self, removed: _Optional[int] = ..., live_sessions: _Optional[int] = ..., restorable_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class RestoreDatasetRequest(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class RestoreDatasetResponse(_message.Message):
    __slots__ = ("dataset", "versions")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    dataset: Dataset
    versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dataset: _Optional[_Union[Dataset, _Mapping]] = ..., versions: _Optional[_Iterable[int]] = ...) -> None: ...
