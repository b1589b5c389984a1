"""The body of a stored chunk: a frame (nsml.content.framing) of log bytes, or of joined records.

Or `0x02` and a digest: the log bytes are in that block (controlplane.history.blocks). Or `0x03` alone: the
records were deleted by retention (controlplane.history.sql.retention).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.history.errors import LogElsewhere
from controlplane.history.values import Channel, Gap, LetGo, Recorded
from nsml.content.framing import RAW, frame, unframe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from controlplane.history.blocks import Block, Blocks, Piece
    from controlplane.history.values import Chunk

LOG_PIECE_BYTES = 256 << 10
_MAX_BODY_BYTES = 64 << 20
_RECORDS_LEVEL = 1
"""Records differ only in digits: higher levels of zstd take longer without making them smaller."""
_LENGTH = struct.Struct("<I")
_LENGTH_BYTES = _LENGTH.size
_REFERENCE = 2
REFERENCE_FLAG: Final = bytes((_REFERENCE,))
REFERENCE_BYTES: Final = 33
"""Size of the body of a block's row; no other body begins with the flag."""
LET_GO = bytes((3,))
"""The body of a row for records deleted by retention, at `received_at`."""


class Row(NamedTuple):
    """A stored part of a stream; without a body it is a gap. A block's row has the `received_at` of its first piece."""

    first: int
    last: int
    received_at: float
    body: bytes | None


def reference(digest: str) -> bytes:
    """Return the body of a block's row."""
    return REFERENCE_FLAG + bytes.fromhex(digest)


def referred_by(body: bytes) -> str:
    """Return the digest of the block in this body."""
    return bytes(body[1:]).hex()


def is_reference(row: Row) -> bool:
    """Whether a row refers to a block."""
    return row.body is not None and row.body[0] == _REFERENCE


def opened(row: Row, low: int, high: int, blocks: Blocks) -> Iterator[Row]:
    """Yield the row itself, or the rows in its block that overlap positions [low, high)."""
    if is_reference(row):
        yield from map(_row, _block(row, blocks).pieces(low, high))
    else:
        yield row


def opened_back(row: Row, low: int, high: int, blocks: Blocks) -> Iterator[Row]:
    """Like `opened`, in reverse order."""
    if is_reference(row):
        yield from map(_row, _block(row, blocks).pieces_back(low, high))
    else:
        yield row


def _block(row: Row, blocks: Blocks) -> Block:
    digest = referred_by(row.body or b"")
    if digest not in blocks:
        raise LogElsewhere(digest)
    return blocks[digest]


def _row(piece: Piece) -> Row:
    return Row(piece.first, piece.last, piece.received_at, bytes((RAW,)) + piece.data)


def content(body: bytes) -> bytes:
    """Unframe a body: log bytes, or joined records."""
    return unframe(body, max_bytes=_MAX_BODY_BYTES)


def pieces(chunk: Chunk, low: int, high: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Split positions [low, high] of a chunk into rows: first, last, body."""
    start, end = low - chunk.first, high - chunk.first + 1
    if chunk.is_gap:
        yield low, high, None
    elif chunk.stream.channel is Channel.LOG:
        for at in range(start, end, LOG_PIECE_BYTES):
            piece = chunk.data[at : min(at + LOG_PIECE_BYTES, end)]
            first = chunk.first + at
            yield first, first + len(piece) - 1, frame(piece)
    else:
        yield low, high, frame(_join(chunk.records[start:end]), _RECORDS_LEVEL)


def part(row: Row, channel: Channel, start: int) -> Recorded | Gap | LetGo:
    """Decode a row for readers, trimmed to begin at `start`."""
    first = max(row.first, start)
    if row.body is None:
        return Gap(first, row.last)
    if row.body == LET_GO:
        return LetGo(first, row.last)
    whole = content(row.body)
    if channel is Channel.LOG:
        data = whole[first - row.first :]
        return Recorded(first=first, last=row.last, received_at=row.received_at, data=data)
    records = split(whole)[first - row.first :]
    return Recorded(first=first, last=row.last, received_at=row.received_at, records=records)


def weight(part: Recorded | Gap | LetGo) -> int:
    """Return the size of a part as counted against a page's limit."""
    if isinstance(part, Gap | LetGo):
        return 1
    return len(part.data) + sum(map(len, part.records))


def _join(records: Sequence[bytes]) -> bytes:
    """Join records, each prefixed with its length, 4 bytes little-endian."""
    return b"".join(part for record in records for part in (_LENGTH.pack(len(record)), record))


def split(body: bytes) -> tuple[bytes, ...]:
    """Split joined records."""
    records = []
    at, end, length_at = 0, len(body), _LENGTH.unpack_from
    while at < end:
        begin = at + _LENGTH_BYTES
        at = begin + length_at(body, at)[0]
        records.append(body[begin:at])
    return tuple(records)
