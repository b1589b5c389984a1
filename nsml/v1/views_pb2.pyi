import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ViewKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VIEW_KIND_UNSPECIFIED: _ClassVar[ViewKind]
    VIEW_KIND_TENSORBOARD: _ClassVar[ViewKind]
    VIEW_KIND_VISDOM: _ClassVar[ViewKind]
    VIEW_KIND_DASHBOARD: _ClassVar[ViewKind]
VIEW_KIND_UNSPECIFIED: ViewKind
VIEW_KIND_TENSORBOARD: ViewKind
VIEW_KIND_VISDOM: ViewKind
VIEW_KIND_DASHBOARD: ViewKind

class View(_message.Message):
    __slots__ = ("id", "owner", "sessions", "opened_at", "used_at", "kind")
    ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    OPENED_AT_FIELD_NUMBER: _ClassVar[int]
    USED_AT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    id: str
    owner: str
    sessions: _containers.RepeatedScalarFieldContainer[str]
    opened_at: _timestamp_pb2.Timestamp
    used_at: _timestamp_pb2.Timestamp
    kind: ViewKind
    def __init__(self, id: _Optional[str] = ..., owner: _Optional[str] = ..., sessions: _Optional[_Iterable[str]] = ..., opened_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., used_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kind: _Optional[_Union[ViewKind, str]] = ...) -> None: ...

class OpenViewRequest(_message.Message):
    __slots__ = ("sessions", "kind")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedScalarFieldContainer[str]
    kind: ViewKind
    def __init__(self, sessions: _Optional[_Iterable[str]] = ..., kind: _Optional[_Union[ViewKind, str]] = ...) -> None: ...

class OpenViewResponse(_message.Message):
    __slots__ = ("view", "url")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    view: View
    url: str
    def __init__(self, view: _Optional[_Union[View, _Mapping]] = ..., url: _Optional[str] = ...) -> None: ...

class ListViewsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListViewsResponse(_message.Message):
    __slots__ = ("views",)
    VIEWS_FIELD_NUMBER: _ClassVar[int]
    views: _containers.RepeatedCompositeFieldContainer[View]
    def __init__(self, views: _Optional[_Iterable[_Union[View, _Mapping]]] = ...) -> None: ...

class StopViewRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class StopViewResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
