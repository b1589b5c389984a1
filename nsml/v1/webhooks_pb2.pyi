import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WebhookEvent(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WEBHOOK_EVENT_UNSPECIFIED: _ClassVar[WebhookEvent]
    WEBHOOK_EVENT_ENDED: _ClassVar[WebhookEvent]
    WEBHOOK_EVENT_FAILED: _ClassVar[WebhookEvent]
    WEBHOOK_EVENT_IDLE: _ClassVar[WebhookEvent]
WEBHOOK_EVENT_UNSPECIFIED: WebhookEvent
WEBHOOK_EVENT_ENDED: WebhookEvent
WEBHOOK_EVENT_FAILED: WebhookEvent
WEBHOOK_EVENT_IDLE: WebhookEvent

class Webhook(_message.Message):
    __slots__ = ("origin", "set_at", "events")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    SET_AT_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    origin: str
    set_at: _timestamp_pb2.Timestamp
    events: _containers.RepeatedScalarFieldContainer[WebhookEvent]
    def __init__(self, origin: _Optional[str] = ..., set_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., events: _Optional[_Iterable[_Union[WebhookEvent, str]]] = ...) -> None: ...

class SetWebhookRequest(_message.Message):
    __slots__ = ("url", "events")
    URL_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    url: str
    events: _containers.RepeatedScalarFieldContainer[WebhookEvent]
    def __init__(self, url: _Optional[str] = ..., events: _Optional[_Iterable[_Union[WebhookEvent, str]]] = ...) -> None: ...

class SetWebhookResponse(_message.Message):
    __slots__ = ("webhook",)
    WEBHOOK_FIELD_NUMBER: _ClassVar[int]
    webhook: Webhook
    def __init__(self, webhook: _Optional[_Union[Webhook, _Mapping]] = ...) -> None: ...

class GetWebhookRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetWebhookResponse(_message.Message):
    __slots__ = ("webhook",)
    WEBHOOK_FIELD_NUMBER: _ClassVar[int]
    webhook: Webhook
    def __init__(self, webhook: _Optional[_Union[Webhook, _Mapping]] = ...) -> None: ...

class RemoveWebhookRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveWebhookResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TestWebhookRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TestWebhookResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: int
    def __init__(self, status: _Optional[int] = ...) -> None: ...
