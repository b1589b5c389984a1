"""Times and spans: seconds here, messages in the contract."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp


def timestamp(seconds: float) -> Timestamp | None:
    """Unix seconds as a message; None for 0, which means never."""
    if not seconds:
        return None
    nanos = round(seconds * 1e9)
    return Timestamp(seconds=nanos // 10**9, nanos=nanos % 10**9)


def duration(seconds: float) -> Duration:
    """Seconds as a message."""
    nanos = round(seconds * 1e9)
    return Duration(seconds=nanos // 10**9, nanos=nanos % 10**9)


def seconds_of(message: Timestamp | Duration) -> float:
    """A time or span in seconds."""
    return message.seconds + message.nanos / 1e9
