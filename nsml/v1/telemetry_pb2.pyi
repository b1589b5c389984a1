import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadTelemetryRequest(_message.Message):
    __slots__ = ("session", "node", "cluster", "since", "until", "width")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    session: str
    node: str
    cluster: bool
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    width: int
    def __init__(self, session: _Optional[str] = ..., node: _Optional[str] = ..., cluster: _Optional[bool] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., width: _Optional[int] = ...) -> None: ...

class ReadTelemetryResponse(_message.Message):
    __slots__ = ("since", "until", "series", "left_out", "left_out_replicas")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    series: _containers.RepeatedCompositeFieldContainer[TelemetrySeries]
    left_out: int
    left_out_replicas: int
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., series: _Optional[_Iterable[_Union[TelemetrySeries, _Mapping]]] = ..., left_out: _Optional[int] = ..., left_out_replicas: _Optional[int] = ...) -> None: ...

class TelemetrySeries(_message.Message):
    __slots__ = ("node", "device_uuid", "thousandths", "attempt", "at", "figures", "device_index", "simulated", "rank")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    THOUSANDTHS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    node: str
    device_uuid: str
    thousandths: int
    attempt: int
    at: _containers.RepeatedScalarFieldContainer[float]
    figures: _containers.RepeatedCompositeFieldContainer[Figure]
    device_index: int
    simulated: bool
    rank: int
    def __init__(self, node: _Optional[str] = ..., device_uuid: _Optional[str] = ..., thousandths: _Optional[int] = ..., attempt: _Optional[int] = ..., at: _Optional[_Iterable[float]] = ..., figures: _Optional[_Iterable[_Union[Figure, _Mapping]]] = ..., device_index: _Optional[int] = ..., simulated: _Optional[bool] = ..., rank: _Optional[int] = ...) -> None: ...

class Figure(_message.Message):
    __slots__ = ("name", "least", "most", "mean")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    name: str
    least: _containers.RepeatedScalarFieldContainer[float]
    most: _containers.RepeatedScalarFieldContainer[float]
    mean: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., least: _Optional[_Iterable[float]] = ..., most: _Optional[_Iterable[float]] = ..., mean: _Optional[_Iterable[float]] = ...) -> None: ...
