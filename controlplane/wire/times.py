"""Times and durations: seconds here, messages in the contract."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from controlplane.history.records import LATEST_TIME


def timestamp(seconds: float) -> Timestamp | None:
    """Return Unix seconds as a message; None for 0, which means never."""
    if not seconds:
        return None
    nanos = round(seconds * 1e9)
    return Timestamp(seconds=nanos // 10**9, nanos=nanos % 10**9)


def duration(seconds: float) -> Duration:
    """Return seconds as a message."""
    made = Duration()
    made.FromNanoseconds(round(seconds * 1e9))
    return made


def time_of(message: Timestamp) -> float:
    """Return Unix seconds; 0, which means never, for values outside the valid range."""
    seconds = seconds_of(message)
    return seconds if 0 <= seconds < LATEST_TIME else 0.0


def seconds_of(message: Timestamp | Duration) -> float:
    """Return a time or duration in seconds."""
    return message.seconds + message.nanos / 1e9
