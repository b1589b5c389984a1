import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegistryAccess(_message.Message):
    __slots__ = ("registry", "registry_user", "updated_at")
    REGISTRY_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_USER_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    registry: str
    registry_user: str
    updated_at: _timestamp_pb2.Timestamp
    def __init__(self, registry: _Optional[str] = ..., registry_user: _Optional[str] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SetRegistryLoginRequest(_message.Message):
    __slots__ = ("registry", "registry_user", "password")
    REGISTRY_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_USER_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    registry: str
    registry_user: str
    password: bytes
    def __init__(self, registry: _Optional[str] = ..., registry_user: _Optional[str] = ..., password: _Optional[bytes] = ...) -> None: ...

class SetRegistryLoginResponse(_message.Message):
    __slots__ = ("login",)
    LOGIN_FIELD_NUMBER: _ClassVar[int]
    login: RegistryAccess
    def __init__(self, login: _Optional[_Union[RegistryAccess, _Mapping]] = ...) -> None: ...

class ListRegistryLoginsRequest(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: str
    def __init__(self, user: _Optional[str] = ...) -> None: ...

class ListRegistryLoginsResponse(_message.Message):
    __slots__ = ("logins",)
    LOGINS_FIELD_NUMBER: _ClassVar[int]
    logins: _containers.RepeatedCompositeFieldContainer[RegistryAccess]
    def __init__(self, logins: _Optional[_Iterable[_Union[RegistryAccess, _Mapping]]] = ...) -> None: ...

class RemoveRegistryLoginRequest(_message.Message):
    __slots__ = ("registry", "user")
    REGISTRY_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    registry: str
    user: str
    def __init__(self, registry: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class RemoveRegistryLoginResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Secret(_message.Message):
    __slots__ = ("name", "size_bytes", "created_at", "updated_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    created_at: _timestamp_pb2.Timestamp
    updated_at: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SetSecretRequest(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class SetSecretResponse(_message.Message):
    __slots__ = ("secret",)
    SECRET_FIELD_NUMBER: _ClassVar[int]
    secret: Secret
    def __init__(self, secret: _Optional[_Union[Secret, _Mapping]] = ...) -> None: ...

class ListSecretsRequest(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: str
    def __init__(self, user: _Optional[str] = ...) -> None: ...

class ListSecretsResponse(_message.Message):
    __slots__ = ("secrets",)
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    secrets: _containers.RepeatedCompositeFieldContainer[Secret]
    def __init__(self, secrets: _Optional[_Iterable[_Union[Secret, _Mapping]]] = ...) -> None: ...

class RemoveSecretRequest(_message.Message):
    __slots__ = ("name", "user")
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    name: str
    user: str
    def __init__(self, name: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class RemoveSecretResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
