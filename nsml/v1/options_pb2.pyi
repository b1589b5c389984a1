from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Caller(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CALLER_UNSPECIFIED: _ClassVar[Caller]
    CALLER_ANONYMOUS: _ClassVar[Caller]
    CALLER_USER: _ClassVar[Caller]
    CALLER_ADMIN: _ClassVar[Caller]
    CALLER_NODE: _ClassVar[Caller]
    CALLER_PEER: _ClassVar[Caller]
    CALLER_JUMP_HOST: _ClassVar[Caller]

class Throttle(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    THROTTLE_UNSPECIFIED: _ClassVar[Throttle]
    THROTTLE_STORE: _ClassVar[Throttle]
    THROTTLE_HISTORY: _ClassVar[Throttle]
CALLER_UNSPECIFIED: Caller
CALLER_ANONYMOUS: Caller
CALLER_USER: Caller
CALLER_ADMIN: Caller
CALLER_NODE: Caller
CALLER_PEER: Caller
CALLER_JUMP_HOST: Caller
THROTTLE_UNSPECIFIED: Throttle
THROTTLE_STORE: Throttle
THROTTLE_HISTORY: Throttle
ACCESS_FIELD_NUMBER: _ClassVar[int]
access: _descriptor.FieldDescriptor
AUDIT_FIELD_NUMBER: _ClassVar[int]
audit: _descriptor.FieldDescriptor
PREFER_LEADER_FIELD_NUMBER: _ClassVar[int]
prefer_leader: _descriptor.FieldDescriptor
THROTTLE_FIELD_NUMBER: _ClassVar[int]
throttle: _descriptor.FieldDescriptor

class Access(_message.Message):
    __slots__ = ("callers", "rule")
    CALLERS_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    callers: _containers.RepeatedScalarFieldContainer[Caller]
    rule: str
    def __init__(self, callers: _Optional[_Iterable[_Union[Caller, str]]] = ..., rule: _Optional[str] = ...) -> None: ...

class Audit(_message.Message):
    __slots__ = ("target", "answer", "dry_run", "is_frequent")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    IS_FREQUENT_FIELD_NUMBER: _ClassVar[int]
    target: str
    answer: str
    dry_run: str
    is_frequent: bool
    def __init__(self, target: _Optional[str] = ..., answer: _Optional[str] = ..., dry_run: _Optional[str] = ..., is_frequent: _Optional[bool] = ...) -> None: ...
