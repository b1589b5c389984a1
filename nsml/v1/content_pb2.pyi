from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RepairStorageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RepairStorageResponse(_message.Message):
    __slots__ = ("blobs", "bytes", "damaged", "broken")
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    blobs: int
    bytes: int
    damaged: int
    broken: BrokenContent
    def __init__(self, blobs: _Optional[int] = ..., bytes: _Optional[int] = ..., damaged: _Optional[int] = ..., broken: _Optional[_Union[BrokenContent, _Mapping]] = ...) -> None: ...

class RepairContentRequest(_message.Message):
    __slots__ = ("digest", "is_from_start")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    IS_FROM_START_FIELD_NUMBER: _ClassVar[int]
    digest: str
    is_from_start: bool
    def __init__(self, digest: _Optional[str] = ..., is_from_start: _Optional[bool] = ...) -> None: ...

class RepairContentResponse(_message.Message):
    __slots__ = ("repaired", "lost", "lost_digests", "reasons", "is_partial", "nodes_in_vain")
    REPAIRED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    LOST_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    IS_PARTIAL_FIELD_NUMBER: _ClassVar[int]
    NODES_IN_VAIN_FIELD_NUMBER: _ClassVar[int]
    repaired: _containers.RepeatedCompositeFieldContainer[RepairedBlob]
    lost: int
    lost_digests: _containers.RepeatedScalarFieldContainer[str]
    reasons: _containers.RepeatedScalarFieldContainer[str]
    is_partial: bool
    nodes_in_vain: int
    def __init__(self, repaired: _Optional[_Iterable[_Union[RepairedBlob, _Mapping]]] = ..., lost: _Optional[int] = ..., lost_digests: _Optional[_Iterable[str]] = ..., reasons: _Optional[_Iterable[str]] = ..., is_partial: _Optional[bool] = ..., nodes_in_vain: _Optional[int] = ...) -> None: ...

class RepairedBlob(_message.Message):
    __slots__ = ("digest", "source")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    digest: str
    source: str
    def __init__(self, digest: _Optional[str] = ..., source: _Optional[str] = ...) -> None: ...

class VerifyStorageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VerifyStorageResponse(_message.Message):
    __slots__ = ("blobs", "bytes", "damaged", "broken")
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    blobs: int
    bytes: int
    damaged: int
    broken: BrokenContent
    def __init__(self, blobs: _Optional[int] = ..., bytes: _Optional[int] = ..., damaged: _Optional[int] = ..., broken: _Optional[_Union[BrokenContent, _Mapping]] = ...) -> None: ...

class BrokenContent(_message.Message):
    __slots__ = ("kind", "owner", "names", "digest", "lost", "repaired")
    KIND_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_FIELD_NUMBER: _ClassVar[int]
    kind: str
    owner: str
    names: _containers.RepeatedScalarFieldContainer[str]
    digest: str
    lost: int
    repaired: _containers.RepeatedCompositeFieldContainer[RepairedBlob]
    def __init__(self, kind: _Optional[str] = ..., owner: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., digest: _Optional[str] = ..., lost: _Optional[int] = ..., repaired: _Optional[_Iterable[_Union[RepairedBlob, _Mapping]]] = ...) -> None: ...

class FindMissingBlobsRequest(_message.Message):
    __slots__ = ("digests", "root", "bases", "session_id", "bytes", "project")
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    BASES_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedScalarFieldContainer[str]
    root: str
    bases: _containers.RepeatedScalarFieldContainer[str]
    session_id: str
    bytes: int
    project: str
    def __init__(self, digests: _Optional[_Iterable[str]] = ..., root: _Optional[str] = ..., bases: _Optional[_Iterable[str]] = ..., session_id: _Optional[str] = ..., bytes: _Optional[int] = ..., project: _Optional[str] = ...) -> None: ...

class FindMissingBlobsResponse(_message.Message):
    __slots__ = ("missing", "room")
    MISSING_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    missing: _containers.RepeatedScalarFieldContainer[str]
    room: int
    def __init__(self, missing: _Optional[_Iterable[str]] = ..., room: _Optional[int] = ...) -> None: ...

class Blob(_message.Message):
    __slots__ = ("digest", "data", "last")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    digest: str
    data: bytes
    last: bool
    def __init__(self, digest: _Optional[str] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class PutBlobsRequest(_message.Message):
    __slots__ = ("blobs", "session_id")
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    blobs: _containers.RepeatedCompositeFieldContainer[Blob]
    session_id: str
    def __init__(self, blobs: _Optional[_Iterable[_Union[Blob, _Mapping]]] = ..., session_id: _Optional[str] = ...) -> None: ...

class PutBlobsResponse(_message.Message):
    __slots__ = ("stored",)
    STORED_FIELD_NUMBER: _ClassVar[int]
    stored: int
    def __init__(self, stored: _Optional[int] = ...) -> None: ...

class GetBlobsRequest(_message.Message):
    __slots__ = ("root", "digests")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    root: str
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, root: _Optional[str] = ..., digests: _Optional[_Iterable[str]] = ...) -> None: ...

class LocateBlobsRequest(_message.Message):
    __slots__ = ("root", "digests")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    root: str
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, root: _Optional[str] = ..., digests: _Optional[_Iterable[str]] = ...) -> None: ...

class LocateBlobsResponse(_message.Message):
    __slots__ = ("packs", "authority")
    PACKS_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    packs: _containers.RepeatedCompositeFieldContainer[LocatedPack]
    authority: bytes
    def __init__(self, packs: _Optional[_Iterable[_Union[LocatedPack, _Mapping]]] = ..., authority: _Optional[bytes] = ...) -> None: ...

class LocatedPack(_message.Message):
    __slots__ = ("url", "blobs")
    URL_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    url: str
    blobs: _containers.RepeatedCompositeFieldContainer[LocatedBlob]
    def __init__(self, url: _Optional[str] = ..., blobs: _Optional[_Iterable[_Union[LocatedBlob, _Mapping]]] = ...) -> None: ...

class LocatedBlob(_message.Message):
    __slots__ = ("index", "start", "stored")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    index: int
    start: int
    stored: int
    def __init__(self, index: _Optional[int] = ..., start: _Optional[int] = ..., stored: _Optional[int] = ...) -> None: ...

class GetBlobsResponse(_message.Message):
    __slots__ = ("blobs",)
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    blobs: _containers.RepeatedCompositeFieldContainer[Blob]
    def __init__(self, blobs: _Optional[_Iterable[_Union[Blob, _Mapping]]] = ...) -> None: ...
