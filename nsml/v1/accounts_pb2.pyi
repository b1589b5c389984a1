import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_MEMBER: _ClassVar[Role]
    ROLE_ADMIN: _ClassVar[Role]

class KeptKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEPT_KIND_UNSPECIFIED: _ClassVar[KeptKind]
    KEPT_KIND_DATASETS: _ClassVar[KeptKind]
    KEPT_KIND_CHECKPOINTS: _ClassVar[KeptKind]
    KEPT_KIND_CODE: _ClassVar[KeptKind]
    KEPT_KIND_MEDIA: _ClassVar[KeptKind]
    KEPT_KIND_LOGS: _ClassVar[KeptKind]
    KEPT_KIND_UNUSED: _ClassVar[KeptKind]
    KEPT_KIND_ARTIFACTS: _ClassVar[KeptKind]
ROLE_UNSPECIFIED: Role
ROLE_MEMBER: Role
ROLE_ADMIN: Role
KEPT_KIND_UNSPECIFIED: KeptKind
KEPT_KIND_DATASETS: KeptKind
KEPT_KIND_CHECKPOINTS: KeptKind
KEPT_KIND_CODE: KeptKind
KEPT_KIND_MEDIA: KeptKind
KEPT_KIND_LOGS: KeptKind
KEPT_KIND_UNUSED: KeptKind
KEPT_KIND_ARTIFACTS: KeptKind

class User(_message.Message):
    __slots__ = ("name", "role", "team", "created_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: Role
    team: str
    created_at: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., team: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class GetCallerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetCallerResponse(_message.Message):
    __slots__ = ("user", "node", "cluster_id")
    USER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    user: User
    node: str
    cluster_id: str
    def __init__(self, user: _Optional[_Union[User, _Mapping]] = ..., node: _Optional[str] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class CreateUserRequest(_message.Message):
    __slots__ = ("name", "role", "team", "restore")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: Role
    team: str
    restore: bool
    def __init__(self, name: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., team: _Optional[str] = ..., restore: _Optional[bool] = ...) -> None: ...

class CreateUserResponse(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: User
    def __init__(self, user: _Optional[_Union[User, _Mapping]] = ...) -> None: ...

class ListUsersRequest(_message.Message):
    __slots__ = ("page_size", "cursor")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    cursor: str
    def __init__(self, page_size: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListUsersResponse(_message.Message):
    __slots__ = ("users", "next_cursor")
    USERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[User]
    next_cursor: str
    def __init__(self, users: _Optional[_Iterable[_Union[User, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class DeleteUserRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteUserResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UpdateUserRequest(_message.Message):
    __slots__ = ("name", "kept_bytes", "default_kept")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_KEPT_FIELD_NUMBER: _ClassVar[int]
    name: str
    kept_bytes: int
    default_kept: bool
    def __init__(self, name: _Optional[str] = ..., kept_bytes: _Optional[int] = ..., default_kept: _Optional[bool] = ...) -> None: ...

class UpdateUserResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KeptOfKind(_message.Message):
    __slots__ = ("kind", "bytes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: KeptKind
    bytes: int
    def __init__(self, kind: _Optional[_Union[KeptKind, str]] = ..., bytes: _Optional[int] = ...) -> None: ...

class KeptItem(_message.Message):
    __slots__ = ("name", "kind", "is_live", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    IS_LIVE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: KeptKind
    is_live: bool
    bytes: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[KeptKind, str]] = ..., is_live: _Optional[bool] = ..., bytes: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("user", "kept_bytes", "limit_bytes", "is_own_limit", "kinds", "sent_bytes", "counted_at", "is_being_counted", "largest", "is_full")
    USER_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_OWN_LIMIT_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    COUNTED_AT_FIELD_NUMBER: _ClassVar[int]
    IS_BEING_COUNTED_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    IS_FULL_FIELD_NUMBER: _ClassVar[int]
    user: str
    kept_bytes: int
    limit_bytes: int
    is_own_limit: bool
    kinds: _containers.RepeatedCompositeFieldContainer[KeptOfKind]
    sent_bytes: int
    counted_at: _timestamp_pb2.Timestamp
    is_being_counted: bool
    largest: _containers.RepeatedCompositeFieldContainer[KeptItem]
    is_full: bool
    def __init__(self, user: _Optional[str] = ..., kept_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., is_own_limit: _Optional[bool] = ..., kinds: _Optional[_Iterable[_Union[KeptOfKind, _Mapping]]] = ..., sent_bytes: _Optional[int] = ..., counted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., is_being_counted: _Optional[bool] = ..., largest: _Optional[_Iterable[_Union[KeptItem, _Mapping]]] = ..., is_full: _Optional[bool] = ...) -> None: ...

class GetUsageRequest(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: str
    def __init__(self, user: _Optional[str] = ...) -> None: ...

class GetUsageResponse(_message.Message):
    __slots__ = ("usage",)
    USAGE_FIELD_NUMBER: _ClassVar[int]
    usage: Usage
    def __init__(self, usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class ListUsageRequest(_message.Message):
    __slots__ = ("page_size", "cursor")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    cursor: str
    def __init__(self, page_size: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListUsageResponse(_message.Message):
    __slots__ = ("usage", "next_cursor")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    usage: _containers.RepeatedCompositeFieldContainer[Usage]
    next_cursor: str
    def __init__(self, usage: _Optional[_Iterable[_Union[Usage, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class CreateTokenRequest(_message.Message):
    __slots__ = ("user", "valid_for")
    USER_FIELD_NUMBER: _ClassVar[int]
    VALID_FOR_FIELD_NUMBER: _ClassVar[int]
    user: str
    valid_for: _duration_pb2.Duration
    def __init__(self, user: _Optional[str] = ..., valid_for: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class CreateTokenResponse(_message.Message):
    __slots__ = ("token", "expires_at", "address")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    token: str
    expires_at: _timestamp_pb2.Timestamp
    address: str
    def __init__(self, token: _Optional[str] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., address: _Optional[str] = ...) -> None: ...

class RevokeTokenRequest(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: str
    def __init__(self, user: _Optional[str] = ...) -> None: ...

class RevokeTokenResponse(_message.Message):
    __slots__ = ("revoked",)
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    revoked: int
    def __init__(self, revoked: _Optional[int] = ...) -> None: ...

class CreateJoinTokenRequest(_message.Message):
    __slots__ = ("valid_for",)
    VALID_FOR_FIELD_NUMBER: _ClassVar[int]
    valid_for: _duration_pb2.Duration
    def __init__(self, valid_for: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class CreateJoinTokenResponse(_message.Message):
    __slots__ = ("token", "expires_at", "address")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    token: str
    expires_at: _timestamp_pb2.Timestamp
    address: str
    def __init__(self, token: _Optional[str] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., address: _Optional[str] = ...) -> None: ...

class JoinNodeRequest(_message.Message):
    __slots__ = ("secret", "node", "signing_request")
    SECRET_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    secret: str
    node: str
    signing_request: bytes
    def __init__(self, secret: _Optional[str] = ..., node: _Optional[str] = ..., signing_request: _Optional[bytes] = ...) -> None: ...

class JoinNodeResponse(_message.Message):
    __slots__ = ("certificate", "authority", "agent_address")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    AGENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    authority: bytes
    agent_address: str
    def __init__(self, certificate: _Optional[bytes] = ..., authority: _Optional[bytes] = ..., agent_address: _Optional[str] = ...) -> None: ...
