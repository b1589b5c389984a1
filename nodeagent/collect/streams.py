"""Streams of the agent: their ids, acknowledged cursors, and items."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from nodeagent.folders import ReplicaId

GAP_COST = 1000
"""Average number of a file's records per gap reported at its position,"""
MAX_GAP_CREDIT = 8 * GAP_COST
"""and how many may be saved up. Each is a chunk, and ends one."""


class Channel(enum.StrEnum):
    """Content of a stream. `STATE` is for the agent's own records."""

    METRIC = "metric"
    LOG = "log"
    STATE = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamId:
    """One ordered series of one replica. `writer` is the record file's number, 0 for the log.

    A record file is one stream of channel METRIC, whatever kinds of records it has: they share
    its sequence numbers.
    """

    replica_id: ReplicaId
    channel: Channel
    writer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The progress of a stream.

    `last` is the position of the last element: a record from 1, or a byte of the log from 0; one
    less than the first if nothing was read. `offset` is where reading continues in the file.

    For record files: `lost` records before `offset` are missing and not reported yet, and `gap_credit`
    decides when they are (see `RecordFile`). Both depend on the file alone, as do positions: records
    read again from an acknowledged cursor get the same positions.
    """

    last: int
    offset: int
    lost: int = 0
    gap_credit: int = MAX_GAP_CREDIT

    @property
    def number(self) -> int:
        """The sequence number of the last frame read."""
        return self.last + self.lost

    @classmethod
    def start(cls, channel: Channel) -> Cursor:
        """Return the cursor before the first element."""
        return cls(last=-1 if channel is Channel.LOG else 0, offset=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Consecutive elements `first`..`last`; `cursor` is stored once they are acknowledged.

    Records have their JSON payloads in `records`; logs their bytes in `text`.
    """

    stream: StreamId
    first: int
    last: int
    records: tuple[bytes, ...] = ()
    text: bytes = b""
    cursor: Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Lost elements `first`..`last`, with the reason for the session's user."""

    stream: StreamId
    first: int
    last: int
    reason: str
    cursor: Cursor


Item: TypeAlias = Batch | Gap

_ITEM_BYTES = 1024
_RECORD_BYTES = 64


def held_bytes(item: Item) -> int:
    """Estimate an item's memory: a program can write many nearly empty ones."""
    match item:
        case Batch():
            content = len(item.text) + sum(map(len, item.records))
            return _ITEM_BYTES + _RECORD_BYTES * len(item.records) + content
        case Gap():
            return _ITEM_BYTES
