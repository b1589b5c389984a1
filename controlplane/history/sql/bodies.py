"""What a stored chunk holds: a frame (nsml.content.framing) of log bytes, or of joined records."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from controlplane.history.values import Channel, Gap, Recorded
from nsml.content.framing import frame, unframe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from controlplane.history.values import Chunk

LOG_PIECE_BYTES = 256 << 10
_MAX_BODY_BYTES = 64 << 20
_LENGTH = struct.Struct("<I")


class Row(NamedTuple):
    """A stored part of a stream; without a body it is a gap."""

    first: int
    last: int
    received_at: float
    body: bytes | None


def content(body: bytes) -> bytes:
    """The bytes of a log's chunk, or its joined records."""
    return unframe(body, max_bytes=_MAX_BODY_BYTES)


def pieces(chunk: Chunk, low: int, high: int) -> Iterator[tuple[int, int, bytes | None]]:
    """The rows that positions [low, high] of a chunk become: first, last, body."""
    start, end = low - chunk.first, high - chunk.first + 1
    if chunk.is_gap:
        yield low, high, None
    elif chunk.stream.channel is Channel.LOG:
        for at in range(start, end, LOG_PIECE_BYTES):
            piece = chunk.data[at : min(at + LOG_PIECE_BYTES, end)]
            first = chunk.first + at
            yield first, first + len(piece) - 1, frame(piece)
    else:
        yield low, high, frame(_join(chunk.records[start:end]))


def part(row: Row, channel: Channel, start: int) -> Recorded | Gap:
    """A row as readers see it, trimmed to begin at `start`."""
    first = max(row.first, start)
    if row.body is None:
        return Gap(first, row.last)
    whole = content(row.body)
    if channel is Channel.LOG:
        data = whole[first - row.first :]
        return Recorded(first=first, last=row.last, received_at=row.received_at, data=data)
    records = split(whole)[first - row.first :]
    return Recorded(first=first, last=row.last, received_at=row.received_at, records=records)


def weight(part: Recorded | Gap) -> int:
    """How much of a page's room a part takes."""
    if isinstance(part, Gap):
        return 1
    return len(part.data) + sum(map(len, part.records))


def _join(records: Sequence[bytes]) -> bytes:
    """Records as one body: each with its length before it, 4 bytes little-endian."""
    return b"".join(part for record in records for part in (_LENGTH.pack(len(record)), record))


def split(body: bytes) -> tuple[bytes, ...]:
    """The records that were joined."""
    records = []
    at = 0
    while at < len(body):
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        records.append(body[at : at + length])
        at += length
    return tuple(records)
