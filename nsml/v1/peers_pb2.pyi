from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PeerOffer(_message.Message):
    __slots__ = ("address", "certificate", "key")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    address: str
    certificate: bytes
    key: bytes
    def __init__(self, address: _Optional[str] = ..., certificate: _Optional[bytes] = ..., key: _Optional[bytes] = ...) -> None: ...

class PeerCapability(_message.Message):
    __slots__ = ("root", "expires_at", "mac")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    root: str
    expires_at: int
    mac: bytes
    def __init__(self, root: _Optional[str] = ..., expires_at: _Optional[int] = ..., mac: _Optional[bytes] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("node", "address", "certificate", "capability")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    node: str
    address: str
    certificate: bytes
    capability: PeerCapability
    def __init__(self, node: _Optional[str] = ..., address: _Optional[str] = ..., certificate: _Optional[bytes] = ..., capability: _Optional[_Union[PeerCapability, _Mapping]] = ...) -> None: ...

class GetChunksRequest(_message.Message):
    __slots__ = ("capability", "chunks")
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    capability: PeerCapability
    chunks: _containers.RepeatedCompositeFieldContainer[WantedChunk]
    def __init__(self, capability: _Optional[_Union[PeerCapability, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[WantedChunk, _Mapping]]] = ...) -> None: ...

class WantedChunk(_message.Message):
    __slots__ = ("path", "offset", "size", "digest")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    path: str
    offset: int
    size: int
    digest: bytes
    def __init__(self, path: _Optional[str] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class GetChunksResponse(_message.Message):
    __slots__ = ("chunks",)
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[PeerChunk]
    def __init__(self, chunks: _Optional[_Iterable[_Union[PeerChunk, _Mapping]]] = ...) -> None: ...

class PeerChunk(_message.Message):
    __slots__ = ("data", "missing")
    DATA_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    missing: bool
    def __init__(self, data: _Optional[bytes] = ..., missing: _Optional[bool] = ...) -> None: ...
