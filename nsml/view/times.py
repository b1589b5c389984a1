"""Times in messages: as Unix seconds, and as text for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsml.common.units import moment

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp


def seconds_of(message: Timestamp | Duration) -> float:
    """Convert a timestamp to Unix seconds, or a duration to seconds."""
    return float(message.seconds + message.nanos / 1e9)


def moment_of(message: Any, field: str) -> str | None:
    """Return a timestamp of a message in RFC 3339; None if it is unset."""
    return moment(seconds_of(getattr(message, field))) if message.HasField(field) else None
