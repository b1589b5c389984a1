import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateBackupRequest(_message.Message):
    __slots__ = ("without_objects",)
    WITHOUT_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    without_objects: bool
    def __init__(self, without_objects: _Optional[bool] = ...) -> None: ...

class CreateBackupResponse(_message.Message):
    __slots__ = ("header", "part")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    header: BackupHeader
    part: BackupPart
    def __init__(self, header: _Optional[_Union[BackupHeader, _Mapping]] = ..., part: _Optional[_Union[BackupPart, _Mapping]] = ...) -> None: ...

class BackupHeader(_message.Message):
    __slots__ = ("cluster_id", "version", "data_version", "revision", "taken_at")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TAKEN_AT_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    version: str
    data_version: int
    revision: int
    taken_at: _timestamp_pb2.Timestamp
    def __init__(self, cluster_id: _Optional[str] = ..., version: _Optional[str] = ..., data_version: _Optional[int] = ..., revision: _Optional[int] = ..., taken_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class BackupPart(_message.Message):
    __slots__ = ("name", "data", "digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    data: bytes
    digest: str
    def __init__(self, name: _Optional[str] = ..., data: _Optional[bytes] = ..., digest: _Optional[str] = ...) -> None: ...

class GetBackupBlobsRequest(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, digests: _Optional[_Iterable[str]] = ...) -> None: ...

class GetBackupBlobsResponse(_message.Message):
    __slots__ = ("digest", "data", "last", "lost")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    digest: str
    data: bytes
    last: bool
    lost: str
    def __init__(self, digest: _Optional[str] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ..., lost: _Optional[str] = ...) -> None: ...
