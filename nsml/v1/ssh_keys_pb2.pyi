import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SshKey(_message.Message):
    __slots__ = ("name", "public_key", "fingerprint", "added_at", "used_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    ADDED_AT_FIELD_NUMBER: _ClassVar[int]
    USED_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    public_key: str
    fingerprint: str
    added_at: _timestamp_pb2.Timestamp
    used_at: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., public_key: _Optional[str] = ..., fingerprint: _Optional[str] = ..., added_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., used_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class AddSshKeyRequest(_message.Message):
    __slots__ = ("public_key", "name")
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    public_key: str
    name: str
    def __init__(self, public_key: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class AddSshKeyResponse(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: SshKey
    def __init__(self, key: _Optional[_Union[SshKey, _Mapping]] = ...) -> None: ...

class ListSshKeysRequest(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: str
    def __init__(self, user: _Optional[str] = ...) -> None: ...

class ListSshKeysResponse(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[SshKey]
    def __init__(self, keys: _Optional[_Iterable[_Union[SshKey, _Mapping]]] = ...) -> None: ...

class RemoveSshKeyRequest(_message.Message):
    __slots__ = ("name", "user")
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    name: str
    user: str
    def __init__(self, name: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class RemoveSshKeyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetSshKeyUserRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetSshKeyUserResponse(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: str
    def __init__(self, user: _Optional[str] = ...) -> None: ...

class GetJumpHostRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetJumpHostResponse(_message.Message):
    __slots__ = ("address", "host_key", "authority", "other_addresses")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_KEY_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    OTHER_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    address: str
    host_key: str
    authority: str
    other_addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, address: _Optional[str] = ..., host_key: _Optional[str] = ..., authority: _Optional[str] = ..., other_addresses: _Optional[_Iterable[str]] = ...) -> None: ...
